"""Qwen2 and Qwen2.5: a Llama whose queries, keys and values have biases, and whose last layers may slide."""

from collections.abc import Mapping
from typing import Any

from refimpl.contract import host
from refimpl.models.config import check_keys, flag, integer, layer_count, layer_windows
from refimpl.models.families import llama
from refimpl.models.spec import ModelSpec
from refimpl.models.tensor import Tensor

__all__ = ["MODEL_TYPES", "WINDOW_KEYS", "qwen_windows", "spec", "weights"]

MODEL_TYPES = ("qwen2",)

WINDOW_KEYS = frozenset(("use_sliding_window", "sliding_window", "max_window_layers", "layer_types", "use_mrope"))


@host
def qwen_windows(config: Mapping[str, Any]) -> tuple[int | None, ...]:
    """State the windows: none, or in the layers from max_window_layers on; a null use_sliding_window is false."""
    layers = layer_count(config)
    if not flag(config, "use_sliding_window"):
        return (None,) * layers
    return layer_windows(config, layers, integer(config, "max_window_layers", 28, least=0), 4096)


@host
def spec(config: Mapping[str, Any]) -> ModelSpec:
    """Read a config of this family."""
    check_keys(config, llama.KEYS | WINDOW_KEYS)
    return llama.llama_like(config, "qwen2", windows=qwen_windows(config), biases=("b_q", "b_k", "b_v"))


@host
def weights(tensors: Mapping[str, Tensor], spec: ModelSpec) -> dict[str, Tensor]:
    """Name the tensors of a checkpoint of this family."""
    return llama.weights(tensors, spec)
