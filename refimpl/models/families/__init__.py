"""Every family: a config becomes a spec, a file's tensors become its weights.

A family is one file of this folder. It holds ``MODEL_TYPES`` (the model types that it reads, and of each the keys),
``spec(config)`` and ``weights(tensors, spec)``; and ``GGUF``, if GGUF files know it (see models/gguf_names.py).
Nothing else names it: a file that is put here is found.
"""

import pkgutil
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any

from refimpl.contract import CheckpointError, host

__all__ = ["SUPPORTED", "families", "family_of", "read_spec", "read_weights"]


@host
@cache
def families() -> dict[str, ModuleType]:
    """Import the families, by their names."""
    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    modules = {name: import_module(f"{__name__}.{name}") for name in names}
    return {name: module for name, module in modules.items() if hasattr(module, "MODEL_TYPES")}


SUPPORTED = tuple(sorted(kind for family in families().values() for kind in family.MODEL_TYPES))
"""The model_type names that can be run."""

_SEEING = ("gemma3", "llama4")  # models of pictures and text, whose text model is a family's


@host
def family_of(config: Mapping[str, Any]) -> ModuleType:
    """Find the family that reads a config.

    >>> from refimpl.models.families import family_of
    >>> family_of({"model_type": "rwkv"})
    Traceback (most recent call last):
    ...
    refimpl.contract.CheckpointError: config.json: model_type 'rwkv' is not supported; supported: bart, bert, ...
    """
    kind = config.get("model_type")
    found = [family for family in families().values() if isinstance(kind, str) and kind in family.MODEL_TYPES]
    if not found:
        named, known = repr(kind)[:80], ", ".join(SUPPORTED)
        raise CheckpointError(f"config.json: model_type {named} is not supported; supported: {known}")
    return found[0]


@host
def read_spec(config: Mapping[str, Any]) -> Any:
    """Turn a config.json into a ModelSpec, or into the spec of an encoder or encoder-decoder.

    Of a model that also sees, it is the config of its text model.
    """
    kind, text = config.get("model_type"), config.get("text_config")
    if kind in _SEEING and isinstance(text, Mapping):
        config = {**text, "model_type": f"{kind}_text", "eos_token_id": config.get("eos_token_id")}
    return family_of(config).spec(config)


@host
def read_weights(tensors: Mapping[str, Any], spec: Any) -> dict[str, Any]:
    """Turn the tensors of a checkpoint, under their Hugging Face names, into the weights of a spec.

    Where a language model stands beside one for pictures, only its tensors are taken.
    """
    text = {_of_text(name): tensor for name, tensor in tensors.items() if _of_text(name)}
    tensors = text if any(name.startswith("model.") for name in text) else tensors
    weights: dict[str, Any] = families()[spec.family].weights(tensors, spec)
    return weights


def _of_text(name: str) -> str:
    """Return the name that a tensor of a language model beside one for pictures has alone; "" for any other."""
    for start, own in (("model.language_model.", "model."), ("language_model.model.", "model.")):
        if name.startswith(start):
            return own + name.removeprefix(start)
    return "lm_head.weight" if name in ("lm_head.weight", "language_model.lm_head.weight") else ""
