"""Every family: a config becomes a ModelSpec, a file's tensors become its weights."""

from collections.abc import Callable, Mapping
from typing import Any

from refimpl.contract import CheckpointError, host
from refimpl.models.families import gpt2, llama, phi3, qwen2, qwen3
from refimpl.models.spec import ModelSpec
from refimpl.models.tensor import Tensor

__all__ = ["SUPPORTED", "read_spec", "read_weights"]

_FAMILIES = {"gpt2": gpt2, "llama": llama, "qwen2": qwen2, "qwen3": qwen3, "phi3": phi3}
_SPECS: dict[str, Callable[[Mapping[str, Any]], ModelSpec]] = {
    name: family.spec for family in _FAMILIES.values() for name in family.MODEL_TYPES
}
_WEIGHTS: dict[str, Callable[[Mapping[str, Tensor], ModelSpec], dict[str, Tensor]]] = {
    name: family.weights for name, family in _FAMILIES.items()
}

SUPPORTED = tuple(_SPECS)
"""The model_type names that can be run."""


@host
def read_spec(config: Mapping[str, Any]) -> ModelSpec:
    """Turn a config.json into a ModelSpec.

    >>> from refimpl.models.families import read_spec
    >>> read_spec({"model_type": "rwkv"})
    Traceback (most recent call last):
    ...
    refimpl.contract.CheckpointError: config.json: model_type 'rwkv' is not supported; supported: gpt2, llama, ...
    """
    kind = config.get("model_type")
    if kind not in SUPPORTED:
        named, known = repr(kind)[:80], ", ".join(SUPPORTED)
        raise CheckpointError(f"config.json: model_type {named} is not supported; supported: {known}")
    return _SPECS[kind](config)


@host
def read_weights(tensors: Mapping[str, Tensor], spec: ModelSpec) -> dict[str, Tensor]:
    """Turn the tensors of a checkpoint, under their Hugging Face names, into the weights of a ModelSpec."""
    return _WEIGHTS[spec.family](tensors, spec)
