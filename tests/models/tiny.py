"""Tiny checkpoints with random weights, written as their publishers would."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from refimpl.models.families import read_spec
from refimpl.models.spec import ModelSpec, weight_shapes

LLAMA = {
    "model_type": "llama", "vocab_size": 23, "hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 4, "intermediate_size": 10, "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5, "eos_token_id": 2,
}  # fmt: skip
GPT2 = {
    "model_type": "gpt2", "vocab_size": 23, "n_positions": 32, "n_embd": 12, "n_layer": 2, "n_head": 3,
    "eos_token_id": 2,
}  # fmt: skip
PHI3_FACTORS = {"type": "longrope", "short_factor": [1.0, 1.5], "long_factor": [2.0, 5.0]}
CONFIGS = {
    "gpt2": GPT2,
    "llama": LLAMA,
    "llama_bias": LLAMA | {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    "llama_dynamic": LLAMA | {"max_position_embeddings": 8, "rope_scaling": {"type": "dynamic", "factor": 4.0}},
    "mistral": LLAMA | {"model_type": "mistral", "sliding_window": 3},
    "qwen2": LLAMA | {
        "model_type": "qwen2", "use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1,
    },
    "qwen3": LLAMA | {"model_type": "qwen3"},
    "phi3": LLAMA | {"model_type": "phi3", "partial_rotary_factor": 0.5},
    "phi3_longrope": LLAMA | {
        "model_type": "phi3", "original_max_position_embeddings": 8, "rope_scaling": PHI3_FACTORS,
    },
}  # fmt: skip
EXPERTS = {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 6}
MORE = CONFIGS | {
    "gemma2": LLAMA | {"model_type": "gemma2", "sliding_window": 3, "query_pre_attn_scalar": 5},
    "gemma3": LLAMA | {"model_type": "gemma3_text", "sliding_window": 3, "sliding_window_pattern": 2},
    "olmo2": LLAMA | {"model_type": "olmo2"},
    "olmo3": LLAMA | {
        "model_type": "olmo3", "sliding_window": 3, "layer_types": ["sliding_attention", "full_attention"],
    },
    "granite": LLAMA | {
        "model_type": "granite", "embedding_multiplier": 3.0, "attention_multiplier": 0.3, "residual_multiplier": 0.5,
        "logits_scaling": 4.0,
    },
    "smollm3": LLAMA | {"model_type": "smollm3", "no_rope_layers": [1, 0]},
    "mixtral": LLAMA | {"model_type": "mixtral", "num_local_experts": 4},
    "qwen2_moe": LLAMA | EXPERTS | {"model_type": "qwen2_moe", "shared_expert_intermediate_size": 7},
    "qwen3_moe": LLAMA | EXPERTS | {"model_type": "qwen3_moe", "decoder_sparse_step": 2, "norm_topk_prob": True},
    "glm4_moe": LLAMA | {
        "model_type": "glm4_moe", "num_experts_per_tok": 2, "moe_intermediate_size": 6, "n_routed_experts": 6,
        "n_group": 3, "topk_group": 2, "routed_scaling_factor": 1.5, "use_qk_norm": True, "attention_bias": True,
    },
    "gpt_oss": LLAMA | {"model_type": "gpt_oss", "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 3},
    "llama4": LLAMA | {
        "model_type": "llama4_text", "num_local_experts": 3, "attention_chunk_size": 3, "floor_scale": 4,
        "intermediate_size_mlp": 9, "interleave_moe_layer_step": 2, "no_rope_layers": [1, 0],
    },
}  # fmt: skip
"""Configs of every family of decoders; the first of them also have a way to be written as a checkpoint here."""


def random_weights(spec: ModelSpec, seed: int = 0) -> dict[str, np.ndarray]:
    """Return weights large enough that every part of the model shows in the logits."""
    random = np.random.default_rng(seed)
    middle = 1 - spec.gain_offset
    return {
        name: 0.6 * random.standard_normal(shape) if "norm.gain" not in name
        else middle + 0.2 * random.standard_normal(shape)
        for name, shape in weight_shapes(spec).items()
    }  # fmt: skip


def published(weights: dict[str, np.ndarray], spec: ModelSpec) -> dict[str, np.ndarray]:
    """Return the tensors under the names and in the layout of transformers."""
    out: dict[str, np.ndarray] = {}
    for name, weight in weights.items():
        out[_NAMES[spec.family == "gpt2"](name)] = weight
    if spec.family == "phi3":
        for i in range(spec.num_layers):
            layer = f"model.layers.{i}."
            qkv = [out.pop(f"{layer}self_attn.{part}_proj.weight") for part in "qkv"]
            pair = [out.pop(f"{layer}mlp.{part}_proj.weight") for part in ("gate", "up")]
            out[layer + "self_attn.qkv_proj.weight"] = np.concatenate(qkv)
            out[layer + "mlp.gate_up_proj.weight"] = np.concatenate(pair)
    if spec.family == "gpt2":
        for i in range(spec.num_layers):
            for kind in ("weight", "bias"):
                qkv = [out.pop(f"transformer.h.{i}.attn.{part}.{kind}") for part in "qkv"]
                out[f"transformer.h.{i}.attn.c_attn.{kind}"] = np.concatenate(qkv)
        out = {name: weight.T if ".c_" in name else weight for name, weight in out.items()}
    return {name: np.ascontiguousarray(weight, np.float32) for name, weight in out.items()}


def _llama_name(name: str) -> str:
    fixed = {"embedding": "model.embed_tokens.weight", "final_norm.gain": "model.norm.weight"}
    if name in fixed or name == "lm_head":
        return fixed.get(name, "lm_head.weight")
    _, i, part = name.split(".", 2)
    norms = {"attention_norm.gain": "input_layernorm", "mlp_norm.gain": "post_attention_layernorm"}
    norms |= {"q_norm.gain": "self_attn.q_norm", "k_norm.gain": "self_attn.k_norm"}
    if part in norms:
        return f"model.layers.{i}.{norms[part]}.weight"
    room = "self_attn" if part[2:] in "qkvo" else "mlp"
    return f"model.layers.{i}.{room}.{part[2:]}_proj.{'weight' if part[0] == 'w' else 'bias'}"


def _gpt2_name(name: str) -> str:
    fixed = {"embedding": "wte.weight", "position_embedding": "wpe.weight"}
    fixed |= {"final_norm.gain": "ln_f.weight", "final_norm.bias": "ln_f.bias"}
    if name in fixed:
        return "transformer." + fixed[name]
    _, i, part = name.split(".", 2)
    kind = "weight" if part[0] == "w" or part.endswith("gain") else "bias"
    rooms = {"attention_norm": "ln_1", "mlp_norm": "ln_2"}
    rooms |= {"q": "attn.q", "k": "attn.k", "v": "attn.v", "o": "attn.c_proj", "up": "mlp.c_fc", "down": "mlp.c_proj"}
    return f"transformer.h.{i}.{rooms[part.split('.')[0].removeprefix('w_').removeprefix('b_')]}.{kind}"


_NAMES = {False: _llama_name, True: _gpt2_name}


def write_checkpoint(folder: Path, config: dict[str, Any], seed: int = 0) -> Path:
    """Write config.json and model.safetensors into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    spec = read_spec(config)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(published(random_weights(spec, seed), spec), folder / "model.safetensors")
    return folder
