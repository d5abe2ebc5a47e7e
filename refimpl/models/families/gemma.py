"""Gemma 2 and 3: norms before and behind, gains stored less 1, scaled embeddings, windows in most layers.

Gemma 2 caps scores and logits; Gemma 3 normalises queries and keys, and its windows turn by a theta of their own.
"""

from collections.abc import Mapping
from typing import Any

from refimpl.contract import host
from refimpl.models.architecture import WINDOWS, Architecture, marked_layers
from refimpl.models.config import check_keys, flag, integer, number
from refimpl.models.families.llama import TENSORS
from refimpl.models.reading import KEYS, attention_spec, layers_of, mlp_spec, model_spec, ropes_by_kind, windows
from refimpl.models.spec import ModelSpec
from refimpl.models.tensor import Tensor
from refimpl.models.weights import name_weights

__all__ = ["GGUF", "MODEL_TYPES", "spec", "weights"]

_KEYS = KEYS | {
    "hidden_activation", "query_pre_attn_scalar", "sliding_window", "final_logit_softcapping", "attention_bias",
    "layer_types",
}  # fmt: skip
_PATTERN, _CAP = "sliding_window_pattern", "attn_logit_softcapping"
MODEL_TYPES = {"gemma2": _KEYS | {_CAP}, "gemma3_text": _KEYS | {"rope_local_base_freq", _PATTERN, f"_{_PATTERN}"}}
_METADATA = WINDOWS | {key: key for key in ("final_logit_softcapping", _CAP)}
_THIRD = _METADATA | {"rope.freq_base_swa": "rope_local_base_freq"}
GGUF = {
    "gemma2": Architecture("gemma2", _METADATA, configure=lambda config, meta: _gguf(config, meta, 46)),
    "gemma3": Architecture("gemma3_text", _THIRD, {"sliding_window": None}, configure=lambda c, m: _gguf(c, m, 62)),
}

_TENSORS = TENSORS | {
    "model.layers.{i}.post_attention_layernorm.weight": "layers.{i}.attention_post_norm.gain",
    "model.layers.{i}.pre_feedforward_layernorm.weight": "layers.{i}.mlp_norm.gain",
    "model.layers.{i}.post_feedforward_layernorm.weight": "layers.{i}.mlp_post_norm.gain",
}


@host
def spec(config: Mapping[str, Any]) -> ModelSpec:
    """Read a config of this family: every second layer of Gemma 2 sees all, every sixth of Gemma 3."""
    third = config["model_type"] == "gemma3_text"
    check_keys(config, MODEL_TYPES[config["model_type"]])
    caps = [_cap(config, key, cap) for key, cap in ((_CAP, 50), ("final_logit_softcapping", 30))]
    scale = float(number(config, "query_pre_attn_scalar", 256, least=1e-6, most=1e9)) ** -0.5
    own: dict[str, Any] = {"qk_norm": "head", "rope": None} if third else {}
    mixer = attention_spec(
        config, head_dim=256, biases="qkvo" if flag(config, "attention_bias") else "", scale=scale, softcap=caps[0],
        **own,
    )  # fmt: skip
    every = integer(config, _PATTERN, 6) if third else 2
    mixers = windows(config, mixer, lambda number: (number + 1) % every != 0, 4096)
    mixers = ropes_by_kind(config, mixers, 1e6, 1e4, "rope_local_base_freq") if third else mixers
    network = mlp_spec(config, key="hidden_activation", default="gelu_pytorch_tanh")
    return model_spec(
        config, "gemma", layers_of(mixers, network, "sandwich"), tied=True, gain_offset=1.0, logit_softcap=caps[1],
        embedding_scale=integer(config, "hidden_size") ** 0.5,
    )


def _gguf(config: Mapping[str, Any], meta: Mapping[str, Any], largest: int) -> dict[str, Any]:
    """State query_pre_attn_scalar, of which GGUF says nothing: it is head_dim but in the model of most layers."""
    part = integer(config, "hidden_size") // integer(config, "num_attention_heads")
    scalar = part if config.get("num_hidden_layers") == largest else config["head_dim"]
    return {"query_pre_attn_scalar": scalar} | marked_layers(meta)


def _cap(config: Mapping[str, Any], key: str, default: float) -> float | None:
    """Read a cap: absent, Gemma 2 has one and Gemma 3 none; null is none."""
    if key not in config:
        return default if config["model_type"] == "gemma2" else None
    return None if config[key] is None else float(number(config, key, least=1e-6, most=1e9))


@host
def weights(tensors: Mapping[str, Tensor], spec: ModelSpec) -> dict[str, Tensor]:
    """Name the tensors of a checkpoint of this family."""
    return name_weights(tensors, spec, _TENSORS, prefix="model.")
