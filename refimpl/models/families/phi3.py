"""Phi-3: a Llama whose files stack query, key and value, and gate and up, in one matrix each."""

from collections.abc import Mapping
from typing import Any

from refimpl.contract import host
from refimpl.models.architecture import Architecture
from refimpl.models.config import check_keys
from refimpl.models.families.llama import TENSORS
from refimpl.models.reading import KEYS, attention_spec, layers_of, mlp_spec, model_spec, windows
from refimpl.models.spec import ModelSpec
from refimpl.models.tensor import Tensor
from refimpl.models.weights import name_weights

__all__ = ["GGUF", "MODEL_TYPES", "spec", "weights"]

_UNUSED = {"full_attn_mod", "interpolate_factor"}  # Phi-4-mini states them, its model reads neither
MODEL_TYPES = {"phi3": KEYS | {"sliding_window"} | _UNUSED}
GGUF = {
    "phi3": Architecture(
        "phi3", {"attention.sliding_window": "sliding_window"},
        tensors={"ffn_up.weight": "w_gate w_up", "ffn_gate.weight": ""},
    ),
}

_TENSORS = {name: targets for name, targets in TENSORS.items() if "_proj" not in name} | {
    "model.layers.{i}.self_attn.qkv_proj.weight": "layers.{i}.w_q layers.{i}.w_k layers.{i}.w_v",
    "model.layers.{i}.self_attn.o_proj.weight": "layers.{i}.w_o",
    "model.layers.{i}.mlp.gate_up_proj.weight": "layers.{i}.w_gate layers.{i}.w_up",
    "model.layers.{i}.mlp.down_proj.weight": "layers.{i}.w_down",
}


@host
def spec(config: Mapping[str, Any]) -> ModelSpec:
    """Read a config of this family; every layer slides where sliding_window is set."""
    check_keys(config, MODEL_TYPES["phi3"])
    mixers = windows(config, attention_spec(config, partial=1.0), lambda _: True)
    return model_spec(config, "phi3", layers_of(mixers, mlp_spec(config)), eps=1e-5)


@host
def weights(tensors: Mapping[str, Tensor], spec: ModelSpec) -> dict[str, Tensor]:
    """Name the tensors of a checkpoint of this family."""
    return name_weights(tensors, spec, _TENSORS, prefix="model.")
