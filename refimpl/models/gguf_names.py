"""What a GGUF file says, in the words of this project: metadata as a config.json, tensors as weights.

Here stands what all architectures have in common; a family says what is its own (see models/architecture.py).
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

import numpy as np

from refimpl.contract import Array, CheckpointError, Int, host
from refimpl.models.architecture import Architecture
from refimpl.models.config import check_keys, integer, number
from refimpl.models.families import families, family_of, read_spec
from refimpl.models.spec import ModelSpec
from refimpl.models.tensor import Tensor
from refimpl.models.weights import name_weights

__all__ = ["architectures", "gguf_config", "gguf_spec", "gguf_weights", "halves_order"]

_KEYS = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "rope.freq_base": "rope_theta",
}
_FURTHER = "nextn_predict_layers"  # the last layers are not the model's: they guess further tokens
_ALSO_READ = (
    "vocab_size", "attention.value_length", "rope.dimension_count", "rope.scale_linear", "rope.scaling.type",
    "rope.scaling.factor", "rope.scaling.original_context_length", "rope.scaling.attn_factor",
    "rope.scaling.yarn_attn_factor", "rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow", _FURTHER,
)  # fmt: skip
_HARMLESS = ("rope.scaling.finetuned", "tensor_data_layout")
_PATTERN = "attention.sliding_window_pattern"  # the one value that may differ between layers
_TOLD = {
    "attention_bias": ("attn_q.bias", "attn_qkv.bias"), "qkv_bias": ("attn_q.bias", "attn_qkv.bias"),
    "mlp_bias": ("ffn_up.bias",), "use_qk_norm": ("attn_q_norm.weight",),
}  # fmt: skip
"""Config keys that the presence of a tensor tells."""

_NETWORK = ("gate", "up", "down")
_MATRICES = {f"attn_{name}": f"w_{name}" for name in "qkv"} | {"attn_output": "w_o", "attn_qkv": "w_q w_k w_v"}
for _name in _NETWORK:
    _MATRICES |= {f"ffn_{_name}": f"w_{_name}", f"ffn_{_name}_exps": f"experts.w_{_name}"}
    _MATRICES |= {f"ffn_{_name}_shexp": f"shared.w_{_name}"}
_MATRICES |= {"ffn_gate_up_exps": "experts.w_gate experts.w_up"}
_NORMS = {
    "attn_norm": "attention_norm", "post_attention_norm": "attention_post_norm", "ffn_norm": "mlp_norm",
    "post_ffw_norm": "mlp_post_norm", "attn_q_norm": "q_norm", "attn_k_norm": "k_norm",
}  # fmt: skip
_TENSORS = {
    "token_embd.weight": "embedding", "position_embd.weight": "position_embedding", "output.weight": "lm_head",
    "output_norm.weight": "final_norm.gain", "output_norm.bias": "final_norm.bias",
}  # fmt: skip
_IN_LAYERS = {
    "ffn_gate_inp.weight": "router", "ffn_gate_inp.bias": "router.bias", "exp_probs_b.bias": "router.correction",
    "ffn_gate_inp_shexp.weight": "shared.w_share", "attn_sinks.weight": "sinks",
} | {
    f"{theirs}.{kind}": f"{ours}.{part}"
    for theirs, ours in _NORMS.items()
    for kind, part in (("weight", "gain"), ("bias", "bias"))
} | {
    f"{theirs}.{kind}": ours.replace("w_", f"{letter}_")
    for theirs, ours in _MATRICES.items()
    for kind, letter in (("weight", "w"), ("bias", "b"))
}  # fmt: skip
_STACKS = {"attn_qkv": ("attn_q", "attn_k", "attn_v"), "ffn_gate_up_exps": ("ffn_gate_exps", "ffn_up_exps")}
_FACTORS = ("rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight")


@cache
@host
def architectures() -> dict[str, Architecture]:
    """Gather the architectures of all families."""
    told = [getattr(family, "GGUF", {}) for family in families().values()]
    return {arch: what for own in told for arch, what in own.items()}


@host
def gguf_config(metadata: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """Write the config.json that a GGUF file stands for.

    >>> from refimpl.models.gguf_names import gguf_config
    >>> gguf_config({"general.architecture": "rwkv7"}, {})
    Traceback (most recent call last):
    ...
    refimpl.contract.CheckpointError: GGUF architecture 'rwkv7' is not supported; supported: gemma2, gemma3, ...
    """
    arch, own = _architecture(metadata)
    meta = _metadata(metadata, arch, own)
    keys = {**(_KEYS if own.rotary else {}), **own.keys}
    check_keys(meta, {*keys, *(_ALSO_READ if own.rotary else ()), *_HARMLESS}, f"GGUF metadata of {arch}")
    if "token_embd.weight" not in tensors:
        raise CheckpointError("tensor token_embd.weight is missing")
    config = {**own.absent, "model_type": own.model_type, "vocab_size": tensors["token_embd.weight"].shape[0]}
    config |= _positions(meta, tensors, own) if own.rotary else {}
    config |= {ours: meta[theirs] for theirs, ours in keys.items() if theirs in meta and ours}
    if _FURTHER in meta:
        config["num_hidden_layers"] = integer(meta, "block_count") - integer(meta, _FURTHER)
    config["tie_word_embeddings"] = "output.weight" not in tensors
    bos, *ends = (metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("bos", "eos", "eot"))
    config |= {"bos_token_id": bos, "eos_token_id": [token for token in ends if token is not None]}
    config |= own.configure(config, meta)
    known = family_of(config).MODEL_TYPES[config["model_type"]]
    told = known & _TOLD.keys()
    if "head_dim" not in known and "attention.key_length" not in meta:
        config.pop("head_dim", None)  # it is the width over the number of heads
    return config | {key: not _held(tensors).isdisjoint(_TOLD[key]) for key in told}


@host
def gguf_spec(metadata: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Any:
    """Turn the metadata of a GGUF file into a ModelSpec; gains are stored as they are used, whatever the family."""
    return replace(read_spec(gguf_config(metadata, tensors)), gain_offset=0.0)


def _architecture(metadata: Mapping[str, Any]) -> tuple[str, Architecture]:
    arch = metadata.get("general.architecture")
    if not isinstance(arch, str) or arch not in architectures():
        known = ", ".join(sorted(architectures()))
        raise CheckpointError(f"GGUF architecture {repr(arch)[:80]} is not supported; supported: {known}")
    return arch, architectures()[arch]


def _metadata(metadata: Mapping[str, Any], arch: str, own: Architecture) -> dict[str, Any]:
    """Take the architecture's own metadata, without its name; 0 experts and a window of 0 say that there are none."""
    meta = {key.removeprefix(f"{arch}."): value for key, value in metadata.items() if key.startswith(f"{arch}.")}
    for key, only in {"attention.causal": True, **own.only}.items():
        if meta.pop(key, only) != only:
            seen = repr(metadata[f"{arch}.{key}"])[:80]
            raise CheckpointError(f"GGUF metadata of {arch}: {key} must be {only}, not {seen}")
    meta = {key: value if key == _PATTERN else _one(key, value) for key, value in meta.items()}
    return {key: value for key, value in meta.items() if isinstance(value, list) or value != 0}


def _positions(meta: Mapping[str, Any], tensors: Mapping[str, Tensor], own: Architecture) -> dict[str, Any]:
    """Read heads and their rotation."""
    width, heads = integer(meta, "embedding_length"), integer(meta, "attention.head_count")
    head_dim = integer(meta, "attention.key_length", max(width // heads, 1))
    rotated, value_dim = (integer(meta, key, head_dim) for key in ("rope.dimension_count", "attention.value_length"))
    if value_dim != head_dim:
        raise CheckpointError(f"GGUF metadata: values of {value_dim} beside keys of {head_dim} are not supported")
    if own.paired and rotated != head_dim:
        raise CheckpointError(f"GGUF metadata: rotating {rotated} of {head_dim} dimensions in pairs is not supported")
    part = 1.0 if rotated == head_dim else (rotated + 0.5) / head_dim  # in the middle: to be multiplied and cut off
    turned = {"rope_theta": 10000.0, "partial_rotary_factor": part, "rope_scaling": _rope_scaling(meta, tensors)}
    return {"head_dim": head_dim, **turned}


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
        scaling |= {key: meta.get(f"rope.scaling.yarn_{key}") for key in ("beta_fast", "beta_slow")}
        scaling |= {"original_max_position_embeddings": original}
        scaling |= {"attention_factor": meta.get("rope.scaling.yarn_attn_factor")}
        if attention is not None:  # it multiplies the factor that YaRN computes; in a config it replaces it
            stretch = number(scaling, "factor", 1.0, least=1e-6, most=1e6)
            scaling["attention_factor"] = number({"attn_factor": attention}, "attn_factor", least=1e-6, most=1e6)
            scaling["attention_factor"] *= 1 + 0.1 * math.log(stretch)
    return None if kind == "none" else scaling


@host
def halves_order(num_heads: int, head_dim: int) -> Int[Array, " O"]:
    """List the rows of an interleaved projection in the order of rotated halves: all even rows of a head, all odd ones.

    GGUF files of some architectures keep the rows of q and k interleaved, so that pairs (2i, 2i + 1) rotate.
    ``num_heads`` is that of the projection itself: the key heads for k.

    >>> from refimpl.models.gguf_names import halves_order
    >>> halves_order(2, 4)
    array([0, 2, 1, 3, 4, 6, 5, 7])
    """
    rows = np.arange(num_heads * head_dim).reshape(num_heads, head_dim // 2, 2)
    return rows.swapaxes(1, 2).reshape(-1)


@host
def gguf_weights(metadata: Mapping[str, Any], tensors: Mapping[str, Tensor], spec: ModelSpec) -> dict[str, Tensor]:
    """Name the tensors of a GGUF file, with the rows of q and k in the order of rotated halves."""
    own = _architecture(metadata)[1]
    guessing = {name.rpartition("nextn.")[0] for name in tensors if ".nextn." in name}  # layers for further tokens
    kept = {name: _row(name, tensor) for name, tensor in tensors.items() if not name.startswith(tuple(guessing))}
    table = {f"blk.{{i}}.{theirs}": _each_layer(ours) for theirs, ours in _layer_names(kept, own.tensors).items()}
    weights = name_weights(kept, spec, _TENSORS | table, ignored=_FACTORS)
    if not own.paired:
        return weights
    order = {"q": halves_order(spec.num_heads, spec.head_dim), "k": halves_order(spec.num_kv_heads, spec.head_dim)}
    for i, (letter, rows) in product(range(spec.num_layers), order.items()):
        for name in {f"layers.{i}.w_{letter}", f"layers.{i}.b_{letter}"} & weights.keys():
            weights[name] = weights[name].take_rows(rows)
    return weights


def _layer_names(tensors: Mapping[str, Tensor], own: Mapping[str, str]) -> dict[str, str]:
    """Name what a layer of this file may hold: projections may be stacked, experts may have tensors of their own."""
    names, stems = {**_IN_LAYERS, **own}, {name.rpartition(".")[0] for name in _held(tensors)}
    for whole, parts in _STACKS.items():
        left_out = parts if whole in stems else (whole,)
        names = {name: ours for name, ours in names.items() if name.rpartition(".")[0] not in left_out}
    if "ffn_up.0" in stems:
        names |= {f"ffn_{name}_exps.weight": "" for name in _NETWORK}
        names |= {f"ffn_{name}.{{e}}.weight": f"experts.w_{name}" for name in _NETWORK}
    return names


def _held(tensors: Mapping[str, Tensor]) -> set[str]:
    """Gather what layers hold, whatever their numbers."""
    return {name.split(".", 2)[2] for name in tensors if name.startswith("blk.") and name.count(".") > 2}


def _row(name: str, tensor: Tensor) -> Tensor:
    """Give the weights of the gate of a shared expert, which GGUF holds as a vector, their only row."""
    if not name.endswith("ffn_gate_inp_shexp.weight") or len(tensor.shape) != 1:
        return tensor
    return Tensor(tensor.format, (1, *tensor.shape), tensor.data[None])


def _each_layer(names: str) -> str:
    return " ".join(f"layers.{{i}}.{name}" for name in names.split())
