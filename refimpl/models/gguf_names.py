"""What a GGUF file says, in the words of this project: metadata as a config.json, tensors as weights."""

import math
from collections.abc import Mapping
from itertools import product
from typing import Any

import numpy as np

from refimpl.contract import Array, CheckpointError, Int, host
from refimpl.models.config import check_keys, integer, number
from refimpl.models.spec import ModelSpec
from refimpl.models.tensor import Tensor
from refimpl.models.weights import name_weights

__all__ = ["ARCHITECTURES", "gguf_config", "gguf_weights", "halves_order"]

ARCHITECTURES = ("gpt2", "llama", "qwen2", "qwen3", "phi3")

_KEYS = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "attention.sliding_window": "sliding_window",
    "rope.freq_base": "rope_theta",
}
_GPT2_KEYS = {
    "block_count": "n_layer",
    "context_length": "n_positions",
    "embedding_length": "n_embd",
    "feed_forward_length": "n_inner",
    "attention.head_count": "n_head",
    "attention.layer_norm_epsilon": "layer_norm_epsilon",
}
_ALSO_READ = (
    "vocab_size", "attention.value_length", "rope.dimension_count", "rope.scale_linear", "rope.scaling.type",
    "rope.scaling.factor", "rope.scaling.original_context_length", "rope.scaling.attn_factor",
    "rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow",
)  # fmt: skip
_HARMLESS = ("rope.scaling.finetuned", "tensor_data_layout")

_SPLIT = {"attn_q": "w_q", "attn_k": "w_k", "attn_v": "w_v", "ffn_gate": "w_gate", "ffn_up": "w_up"}
_STACKED = {
    "gpt2": {"attn_qkv": "w_q w_k w_v", "ffn_up": "w_up"},
    "phi3": {"attn_qkv": "w_q w_k w_v", "ffn_up": "w_gate w_up"},
}
_FACTORS = ("rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight")


@host
def gguf_config(metadata: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """Write the config.json that a GGUF file stands for.

    >>> from refimpl.models.gguf_names import gguf_config
    >>> gguf_config({"general.architecture": "rwkv7"}, {})
    Traceback (most recent call last):
    ...
    refimpl.contract.CheckpointError: GGUF architecture 'rwkv7' is not supported; supported: gpt2, llama, ...
    """
    arch = metadata.get("general.architecture")
    if not isinstance(arch, str) or arch not in ARCHITECTURES:
        raise CheckpointError(f"GGUF architecture {arch!r} is not supported; supported: {', '.join(ARCHITECTURES)}")
    own = {key: _one(key, value) for key, value in metadata.items() if key.startswith(f"{arch}.")}
    meta = {key.removeprefix(f"{arch}."): value for key, value in own.items() if value != 0}  # 0 experts, window 0
    keys = _GPT2_KEYS if arch == "gpt2" else _KEYS
    check_keys(meta, {*keys, *_ALSO_READ, *_HARMLESS}, f"GGUF metadata of {arch}")
    if "token_embd.weight" not in tensors:
        raise CheckpointError("tensor token_embd.weight is missing")
    config = {ours: meta[theirs] for theirs, ours in keys.items() if theirs in meta}
    config |= {"model_type": arch, "vocab_size": tensors["token_embd.weight"].shape[0]}
    config["tie_word_embeddings"] = "output.weight" not in tensors
    bos, *ends = (metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("bos", "eos", "eot"))
    config |= {"bos_token_id": bos, "eos_token_id": [token for token in ends if token is not None]}
    return config if arch == "gpt2" else config | _llama_like(arch, meta, tensors)


def _llama_like(arch: str, meta: dict[str, Any], tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    width, heads = integer(meta, "embedding_length"), integer(meta, "attention.head_count")
    head_dim = integer(meta, "attention.key_length", max(width // heads, 1))
    rotated, value_dim = (integer(meta, key, head_dim) for key in ("rope.dimension_count", "attention.value_length"))
    if value_dim != head_dim:
        raise CheckpointError(f"GGUF metadata: values of {value_dim} beside keys of {head_dim} are not supported")
    if arch == "llama" and rotated != head_dim:
        raise CheckpointError(f"GGUF metadata: rotating {rotated} of {head_dim} dimensions of llama is not supported")
    more: dict[str, Any] = {"head_dim": head_dim, "rope_scaling": _rope_scaling(meta, tensors)}
    more |= {} if rotated == head_dim else {"partial_rotary_factor": rotated / head_dim}
    more |= {"attention_bias": True} if arch != "qwen2" and "blk.0.attn_q.bias" in tensors else {}
    more |= {"mlp_bias": True} if arch == "llama" and "blk.0.ffn_up.bias" in tensors else {}
    if "attention.sliding_window" in meta and arch != "phi3":
        more |= {"model_type": "mistral"} if arch == "llama" else {"use_sliding_window": True, "max_window_layers": 0}
    return more


def _one(key: str, value: Any) -> Any:
    """Reduce a value per layer to the one that all layers share."""
    if not isinstance(value, list | np.ndarray):
        return value
    values = list(value)
    if not values or any(other != values[0] for other in values):
        raise CheckpointError(f"GGUF metadata: {key} differs between layers, which is not supported")
    return values[0]


def _rope_scaling(meta: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> dict[str, Any] | None:
    kind, factor = meta.get("rope.scaling.type", "none"), meta.get("rope.scaling.factor")
    original = meta.get("rope.scaling.original_context_length") or integer(meta, "context_length")
    attention = meta.get("rope.scaling.attn_factor")
    given = [tensors[name].read(np.float64).tolist() if name in tensors else None for name in _FACTORS]
    if given[0] or given[1] or kind == "longrope":  # Llama 3 divides by rope_freqs: one list for every length
        return {
            "type": "longrope", "short_factor": given[0] or given[1], "long_factor": given[0] or given[2],
            "original_max_position_embeddings": original, "attention_factor": 1.0 if attention is None else attention,
        }  # fmt: skip
    if "rope.scale_linear" in meta:
        return {"type": "linear", "factor": meta["rope.scale_linear"]}
    scaling: dict[str, Any] = {"type": kind, "factor": factor}
    if kind == "yarn":
        scaling |= {"original_max_position_embeddings": original, "beta_fast": meta.get("rope.scaling.yarn_beta_fast")}
        scaling |= {"beta_slow": meta.get("rope.scaling.yarn_beta_slow")}
        if attention is not None:  # in GGUF it multiplies the factor that YaRN computes; in a config it replaces it
            stretch = number(scaling, "factor", 1.0, least=1e-6, most=1e6)
            scaling["attention_factor"] = number({"attn_factor": attention}, "attn_factor", least=1e-6, most=1e6)
            scaling["attention_factor"] *= 1 + 0.1 * math.log(stretch)
    return None if kind == "none" else scaling


@host
def halves_order(num_heads: int, head_dim: int) -> Int[Array, " O"]:
    """List the rows of an interleaved projection in the order of rotated halves: all even rows of a head, all odd ones.

    GGUF files of architecture llama keep the rows of q and k interleaved, so that pairs (2i, 2i + 1) rotate.
    ``num_heads`` is that of the projection itself: the key heads for k.

    >>> from refimpl.models.gguf_names import halves_order
    >>> halves_order(2, 4)
    array([0, 2, 1, 3, 4, 6, 5, 7])
    """
    rows = np.arange(num_heads * head_dim).reshape(num_heads, head_dim // 2, 2)
    return rows.swapaxes(1, 2).reshape(-1)


@host
def gguf_weights(tensors: Mapping[str, Tensor], spec: ModelSpec) -> dict[str, Tensor]:
    """Name the tensors of a GGUF file, with the rows of q and k in the order of rotated halves."""
    matrices = _STACKED.get(spec.family, _SPLIT) | {"attn_output": "w_o", "ffn_down": "w_down"}
    table = {"token_embd.weight": "embedding", "position_embd.weight": "position_embedding", "output.weight": "lm_head"}
    table |= {f"blk.{{i}}.{theirs}.weight": _each_layer(ours) for theirs, ours in matrices.items()}
    table |= {f"blk.{{i}}.{theirs}.bias": _each_layer(ours.replace("w_", "b_")) for theirs, ours in matrices.items()}
    norms = {"attn_norm": "attention_norm", "ffn_norm": "mlp_norm", "attn_q_norm": "q_norm", "attn_k_norm": "k_norm"}
    for kind, ours in (("weight", "gain"), ("bias", "bias")):
        table |= {f"blk.{{i}}.{name}.{kind}": f"layers.{{i}}.{norm}.{ours}" for name, norm in norms.items()}
        table[f"output_norm.{kind}"] = f"final_norm.{ours}"
    weights = name_weights(tensors, spec, table, ignored=_FACTORS)
    if spec.family != "llama":
        return weights
    order = {"q": halves_order(spec.num_heads, spec.head_dim), "k": halves_order(spec.num_kv_heads, spec.head_dim)}
    for i, (letter, rows) in product(range(spec.num_layers), order.items()):
        for name in {f"layers.{i}.w_{letter}", f"layers.{i}.b_{letter}"} & weights.keys():
            weights[name] = weights[name].take_rows(rows)
    return weights


def _each_layer(names: str) -> str:
    return " ".join(f"layers.{{i}}.{name}" for name in names.split())
