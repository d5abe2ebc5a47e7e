"""Mixtral: a Llama whose networks are mixtures of experts."""

from collections.abc import Mapping
from typing import Any

from refimpl.contract import host
from refimpl.models.config import check_keys, integer
from refimpl.models.families.llama import TENSORS
from refimpl.models.reading import KEYS, attention_spec, layers_of, model_spec, moe_spec, windows
from refimpl.models.spec import ModelSpec
from refimpl.models.tensor import Tensor
from refimpl.models.weights import name_weights

__all__ = ["MODEL_TYPES", "spec", "weights"]

MODEL_TYPES = {"mixtral": KEYS | {"num_local_experts", "num_experts_per_tok", "sliding_window"}}

_EXPERT = "model.layers.{i}.block_sparse_moe.experts.{e}."
_TENSORS = TENSORS | {
    "model.layers.{i}.block_sparse_moe.gate.weight": "layers.{i}.router",
    _EXPERT + "w1.weight": "layers.{i}.experts.w_gate",
    _EXPERT + "w2.weight": "layers.{i}.experts.w_down",
    _EXPERT + "w3.weight": "layers.{i}.experts.w_up",
}


@host
def spec(config: Mapping[str, Any]) -> ModelSpec:
    """Read a config of this family."""
    check_keys(config, MODEL_TYPES["mixtral"])
    size = integer(config, "intermediate_size")
    moe = moe_spec(config, ("num_local_experts", 8), ("num_experts_per_tok", 2), size)
    mixers = windows(config, attention_spec(config, theta=1e6), lambda _: True)
    return model_spec(config, "mixtral", layers_of(mixers, moe), eps=1e-5)


@host
def weights(tensors: Mapping[str, Tensor], spec: ModelSpec) -> dict[str, Tensor]:
    """Name the tensors of a checkpoint of this family."""
    return name_weights(tensors, spec, _TENSORS, prefix="model.")
