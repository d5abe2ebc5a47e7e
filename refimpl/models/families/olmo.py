"""OLMo 2 and 3: norms behind the parts instead of before them, queries and keys normalised over all heads at once."""

from collections.abc import Mapping
from typing import Any

from refimpl.contract import host
from refimpl.models import reading
from refimpl.models.architecture import WINDOWS, Architecture, marked_layers
from refimpl.models.config import check_keys, flag, layer_count
from refimpl.models.families.llama import TENSORS
from refimpl.models.spec import ModelSpec
from refimpl.models.tensor import Tensor
from refimpl.models.weights import name_weights

__all__ = ["GGUF", "MODEL_TYPES", "spec", "weights"]

_KEYS = reading.KEYS | {"attention_bias"}
MODEL_TYPES = {"olmo2": _KEYS, "olmo3": _KEYS | {"sliding_window", "layer_types"}}
GGUF = {
    "olmo2": Architecture(
        "olmo2", WINDOWS | {"rope.freq_base_swa": ""},
        configure=lambda config, meta: _third(config, meta) if "sliding_window" in config else {},
    ),
}

_TENSORS = TENSORS | {
    "model.layers.{i}.post_attention_layernorm.weight": "layers.{i}.attention_post_norm.gain",
    "model.layers.{i}.post_feedforward_layernorm.weight": "layers.{i}.mlp_post_norm.gain",
}


@host
def spec(config: Mapping[str, Any]) -> ModelSpec:
    """Read a config of this family; three of four layers of OLMo 3 slide, and a scaling of RoPE is not for these."""
    kind = config["model_type"]
    check_keys(config, MODEL_TYPES[kind])
    biases = "qkvo" if flag(config, "attention_bias") else ""
    if kind == "olmo2":
        mixers = [reading.attention_spec(config, biases=biases, qk_norm="row")] * layer_count(config)
    else:
        mixer = reading.attention_spec(config, biases=biases, qk_norm="row", rope=None)
        mixers = reading.windows(config, mixer, lambda number: (number + 1) % 4 != 0, 4096)
        mixers = reading.ropes_by_kind(config, mixers, 5e5, 5e5)
    return reading.model_spec(config, "olmo", reading.layers_of(mixers, reading.mlp_spec(config), "after"), eps=1e-5)


def _third(config: Mapping[str, Any], meta: Mapping[str, Any]) -> dict[str, Any]:
    """State what a GGUF file of OLMo 3 says: its layers that slide turn by the same theta unless it names another."""
    theta = config.get("rope_theta", 5e5)
    ropes = {reading.FULL: {"rope_theta": theta} | (config["rope_scaling"] or {})}
    ropes[reading.SLIDES] = {"rope_theta": meta.get("rope.freq_base_swa", theta)}
    return {"model_type": "olmo3", "rope_parameters": ropes, "rope_scaling": None} | marked_layers(meta)


@host
def weights(tensors: Mapping[str, Tensor], spec: ModelSpec) -> dict[str, Tensor]:
    """Name the tensors of a checkpoint of this family."""
    return name_weights(tensors, spec, _TENSORS, prefix="model.")
