"""GGUF metadata and tensors say the same model as the checkpoint that they were made of."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refimpl.blocks import FORMATS
from refimpl.contract import CheckpointError
from refimpl.llm.position import rope, rope_table
from refimpl.llm.rope_scaling import rope_frequencies
from refimpl.models.families import read_spec
from refimpl.models.gguf_names import gguf_config, gguf_weights, halves_order
from refimpl.models.spec import ModelSpec, weight_shapes
from refimpl.models.tensor import Tensor
from tests.models.tiny import CONFIGS, GPT2, LLAMA, random_weights

KEYS = {
    "num_hidden_layers": "block_count", "max_position_embeddings": "context_length", "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length", "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv", "head_dim": "attention.key_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon", "n_layer": "block_count", "n_positions": "context_length",
    "n_embd": "embedding_length", "n_head": "attention.head_count",
}  # fmt: skip
NAMES = {
    "embedding": "token_embd.weight", "position_embedding": "position_embd.weight", "lm_head": "output.weight",
    "final_norm.gain": "output_norm.weight", "final_norm.bias": "output_norm.bias",
}  # fmt: skip
PARTS = {
    "attention_norm.gain": "attn_norm.weight", "attention_norm.bias": "attn_norm.bias",
    "mlp_norm.gain": "ffn_norm.weight", "mlp_norm.bias": "ffn_norm.bias",
    "q_norm.gain": "attn_q_norm.weight", "k_norm.gain": "attn_k_norm.weight",
} | {
    f"{letter}_{ours}": f"{theirs}.{kind}"
    for letter, kind in (("w", "weight"), ("b", "bias"))
    for ours, theirs in (
        ("q", "attn_q"), ("k", "attn_k"), ("v", "attn_v"), ("o", "attn_output"), ("gate", "ffn_gate"),
        ("up", "ffn_up"), ("down", "ffn_down"),
    )
}  # fmt: skip


def metadata_of(arch: str, config: dict[str, Any]) -> dict[str, Any]:
    own = {f"{arch}.{KEYS[key]}": value for key, value in config.items() if key in KEYS}
    return {"general.architecture": arch, "tokenizer.ggml.eos_token_id": 2, "tokenizer.ggml.model": "gpt2"} | own


def interleave(rows: np.ndarray, num_heads: int) -> np.ndarray:
    """Reorder rows as llama.cpp's converter does: a head's halves become pairs."""
    halves = rows.reshape(num_heads, 2, len(rows) // num_heads // 2, *rows.shape[1:])
    return halves.swapaxes(1, 2).reshape(rows.shape)


def stack(out: dict[str, np.ndarray], i: int, kind: str, parts: tuple[str, ...], name: str) -> None:
    pieces = [out.pop(f"blk.{i}.{part}.{kind}") for part in parts if f"blk.{i}.{part}.{kind}" in out]
    if pieces:
        out[f"blk.{i}.{name}.{kind}"] = np.concatenate(pieces)


def gguf_tensors(weights: dict[str, np.ndarray], spec: ModelSpec) -> dict[str, Tensor]:
    """Name and arrange weights as a GGUF file does."""
    out: dict[str, np.ndarray] = {}
    for name, weight in weights.items():
        _, _, part = name.partition(".")
        i, _, part = part.partition(".")
        if spec.family == "llama" and part in ("w_q", "b_q", "w_k", "b_k"):
            weight = interleave(weight, spec.num_heads if part[-1] == "q" else spec.num_kv_heads)
        out[NAMES.get(name) or f"blk.{i}.{PARTS[part]}"] = weight.astype(np.float32)
    if spec.family in ("gpt2", "phi3"):
        for i in range(spec.num_layers):
            for kind in ("weight", "bias"):
                stack(out, i, kind, ("attn_q", "attn_k", "attn_v"), "attn_qkv")
                stack(out, i, kind, ("ffn_gate", "ffn_up"), "ffn_up")
    return {name: Tensor("float32", array.shape, array) for name, array in out.items()}


@pytest.mark.parametrize("name", ["gpt2", "llama", "llama_bias", "qwen3", "phi3", "qwen2", "mistral"])
def test_file_is_the_checkpoint_that_it_was_made_of(name: str):
    spec = read_spec(CONFIGS[name])
    weights = random_weights(spec)
    arch = spec.family
    metadata = metadata_of(arch, CONFIGS[name])
    if any(spec.windows):
        metadata[f"{arch}.attention.sliding_window"] = 3
    if arch == "phi3":
        metadata["phi3.rope.dimension_count"] = 2
    tensors = gguf_tensors(weights, spec)
    read = read_spec(gguf_config(metadata, tensors))
    if arch == "qwen2":  # GGUF has one window for all layers
        assert read.windows == (3, 3)
    else:
        assert read == spec
    for key, tensor in gguf_weights(tensors, read).items():
        np.testing.assert_array_equal(tensor.read(), weights[key].astype(np.float32), err_msg=key)


@given(st.integers(1, 4), st.integers(1, 6), st.integers(0, 2**32 - 1))
def test_order_of_halves_turns_pairs_into_halves(num_heads: int, pairs: int, seed: int):
    random = np.random.default_rng(seed)
    cos, sin = rope_table(np.arange(3), rope_frequencies(2 * pairs)[0], dtype=np.float64)
    x = random.standard_normal((3, num_heads, 2 * pairs))
    order = halves_order(num_heads, 2 * pairs)
    turned = rope(x, cos, sin, interleaved=True).reshape(3, -1)[:, order]
    halves = rope(x.reshape(3, -1)[:, order].reshape(x.shape), cos, sin)
    np.testing.assert_allclose(turned, halves.reshape(3, -1), atol=1e-14)


def test_rows_of_blocks_are_moved_whole():
    config = LLAMA | {"hidden_size": 32, "head_dim": 8, "num_hidden_layers": 1}
    spec = read_spec(config)
    tensors = gguf_tensors(random_weights(spec), spec)
    for part, heads in (("attn_q", 4), ("attn_k", 2)):
        data = np.random.default_rng(heads).integers(0, 255, (8 * heads, FORMATS["q4_1"].bytes), np.uint8)
        tensors[f"blk.0.{part}.weight"] = Tensor("q4_1", (8 * heads, 32), data)
    weights = gguf_weights(tensors, read_spec(gguf_config(metadata_of("llama", config), tensors)))
    for part, theirs, heads in (("w_q", "attn_q", 4), ("w_k", "attn_k", 2)):
        tensor = weights[f"layers.0.{part}"]
        assert tensor.format == "q4_1"
        np.testing.assert_array_equal(interleave(tensor.data, heads), tensors[f"blk.0.{theirs}.weight"].data)


def read_rope(more: dict[str, Any], factors: dict[str, list[float]] | None = None, arch: str = "llama"):
    spec = read_spec(LLAMA)
    tensors = gguf_tensors({"embedding": np.zeros(weight_shapes(spec)["embedding"])}, spec)
    tensors |= {name: Tensor("float32", (len(x),), np.float32(x)) for name, x in (factors or {}).items()}
    rope = read_spec(gguf_config(metadata_of(arch, LLAMA) | more, tensors)).rope
    assert rope is not None
    return rope_frequencies(rope.dim, rope.theta, scaling=rope.scaling, seq_len=64, **dict(rope.params))


def test_scalings_of_the_metadata():
    plain, _ = rope_frequencies(4, 10000.0)
    np.testing.assert_allclose(read_rope({})[0], plain)
    np.testing.assert_allclose(read_rope({"llama.rope.freq_base": 100.0})[0], rope_frequencies(4, 100.0)[0])
    linear = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}
    np.testing.assert_allclose(read_rope(linear)[0], plain / 4)
    np.testing.assert_allclose(read_rope({"llama.rope.scale_linear": 2.0})[0], plain / 2)


def test_yarn_of_the_metadata():
    yarn = {"type": "yarn", "factor": 4.0, "original_context_length": 16}
    read = {f"llama.rope.scaling.{key}": value for key, value in yarn.items()}
    expected = rope_frequencies(4, scaling="yarn", factor=4.0, original_max_position_embeddings=16)
    np.testing.assert_allclose(read_rope(read)[0], expected[0])
    assert read_rope(read)[1] == expected[1]
    assert read_rope(read | {"llama.rope.scaling.attn_factor": 0.5})[1] == pytest.approx(expected[1] / 2)


def test_tables_of_factors():
    plain, _ = rope_frequencies(4)
    stretched, factor = read_rope({}, {"rope_freqs.weight": [1.0, 8.0]})
    np.testing.assert_allclose(stretched, plain / [1, 8])
    assert factor == 1.0
    both = {"rope_factors_short.weight": [1.0, 2.0], "rope_factors_long.weight": [3.0, 4.0]}
    scaling = {"phi3.rope.scaling.original_context_length": 16, "phi3.rope.scaling.attn_factor": 1.25}
    stretched, factor = read_rope(scaling, both, "phi3")
    np.testing.assert_allclose(stretched, plain / [3, 4])
    assert factor == 1.25


def test_ends_of_the_metadata():
    tensors = {"token_embd.weight": Tensor("float32", (23, 12), np.zeros((23, 12), np.float32))}
    metadata = metadata_of("llama", LLAMA) | {"tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eot_token_id": 7}
    spec = read_spec(gguf_config(metadata, tensors))
    assert (spec.bos_id, spec.eos_ids, spec.tied_embeddings) == (1, (2, 7), True)


@pytest.mark.parametrize(
    ("message", "arch", "more"),
    [
        ("'mamba' is not supported; supported: gpt2", "mamba", {}),
        ("expert_count", "llama", {"llama.expert_count": 8}),
        ("differs between layers", "llama", {"llama.attention.head_count": [4, 2]}),
        ("rotating 2 of 4", "llama", {"llama.rope.dimension_count": 2}),
        ("values of 8 beside keys of 4", "llama", {"llama.attention.value_length": 8}),
        ("longrope, default, su, not 'ntk'", "llama", {"llama.rope.scaling.type": "ntk"}),
        ("must list 2 factors", "llama", {"llama.rope.scaling.type": "longrope"}),
        ("embedding_length", "llama", {"llama.embedding_length": None}),
        ("embedding_length", "llama", {"llama.embedding_length": "wide"}),
    ],
)
def test_what_is_refused_is_named(message: str, arch: str, more: dict[str, Any]):
    tensors = {"token_embd.weight": Tensor("float32", (23, 12), np.zeros((23, 12), np.float32))}
    with pytest.raises(CheckpointError) as refusal:
        read_spec(gguf_config(metadata_of(arch, LLAMA) | more, tensors))
    assert message in str(refusal.value)


def test_off_values_are_harmless():
    tensors = {"token_embd.weight": Tensor("float32", (23, 12), np.zeros((23, 12), np.float32))}
    off = {"gpt2.expert_count": 0, "gpt2.rope.scaling.finetuned": False, "gpt2.attention.head_count": [3, 3]}
    plain = read_spec(gguf_config(metadata_of("gpt2", GPT2), tensors))
    assert read_spec(gguf_config(metadata_of("gpt2", GPT2) | off, tensors)) == plain
