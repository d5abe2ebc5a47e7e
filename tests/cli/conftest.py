"""A real checkpoint of a few thousand weights, written here: a small llama with a byte-level tokenizer."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

WIDTH, LAYERS, HEADS, KV_HEADS, FFN, CONTEXT = 32, 2, 4, 2, 64, 65536
TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def _write_tokenizer(folder: Path, template: str | None) -> int:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False,
    )
    words = "the cat sat on the mat and the hat that the rat ate at the gate of the state"
    tokenizer.train_from_iterator([words] * 8, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"eos_token": "<|im_end|>", "bos_token": "<|im_start|>", "add_bos_token": False}
    config |= {"chat_template": template} if template else {}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return tokenizer.get_vocab_size()


def _write_weights(folder: Path, vocabulary: int) -> None:
    rng = np.random.default_rng(7)
    width = WIDTH // HEADS
    shapes = {"model.embed_tokens": (vocabulary, WIDTH)}
    for i in range(LAYERS):
        layer = f"model.layers.{i}."
        rows = {"q_proj": WIDTH, "k_proj": KV_HEADS * width, "v_proj": KV_HEADS * width, "o_proj": WIDTH}
        shapes |= {f"{layer}self_attn.{name}": (n, WIDTH) for name, n in rows.items()}
        shapes |= {f"{layer}mlp.gate_proj": (FFN, WIDTH), f"{layer}mlp.up_proj": (FFN, WIDTH)}
        shapes |= {f"{layer}mlp.down_proj": (WIDTH, FFN)}
        shapes |= {f"{layer}input_layernorm": (WIDTH,), f"{layer}post_attention_layernorm": (WIDTH,)}
    shapes |= {"model.norm": (WIDTH,)}
    tensors = {
        f"{name}.weight": (rng.standard_normal(shape) * 0.4 if len(shape) == 2 else np.ones(shape)).astype(np.float32)
        for name, shape in shapes.items()
    }
    save_file(tensors, str(folder / "model.safetensors"), metadata={"format": "pt"})


def write_model(folder: Path, template: str | None = TEMPLATE) -> Path:
    """Write a checkpoint folder; the end token is so unlikely that answers go on."""
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = _write_tokenizer(folder, template)
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": vocabulary,
        "hidden_size": WIDTH, "intermediate_size": FFN, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS, "max_position_embeddings": CONTEXT, "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": True, "bos_token_id": 1,
        "eos_token_id": 2, "torch_dtype": "float32",
    }
    (folder / "config.json").write_text(json.dumps(config))
    _write_weights(folder, vocabulary)
    return folder


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model with a chat template."""
    return str(write_model(tmp_path_factory.mktemp("chat") / "model"))


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model without a chat template."""
    return str(write_model(tmp_path_factory.mktemp("base") / "model", template=None))


@pytest.fixture(scope="session")
def start():
    """Start the command in a process of its own, streams as pipes."""

    def begin(*argv: str, **streams: object) -> "subprocess.Popen[bytes]":
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | streams
        root = Path(__file__).parents[2]
        command = [sys.executable, "-m", "gpu.run", *argv]
        return subprocess.Popen(command, cwd=root, env={**os.environ, "PYTHONWARNINGS": "error"}, **pipes)

    return begin
