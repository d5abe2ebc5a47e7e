"""Qwen2 and Qwen2.5: a Llama whose queries, keys and values have biases, and whose last layers may slide."""

from collections.abc import Mapping
from typing import Any

from refimpl.contract import host
from refimpl.models.architecture import Architecture
from refimpl.models.config import check_keys, flag, integer, layer_count
from refimpl.models.families.llama import weights
from refimpl.models.reading import KEYS, attention_spec, layers_of, mlp_spec, model_spec, windows
from refimpl.models.spec import AttentionSpec, ModelSpec

__all__ = ["GGUF", "MODEL_TYPES", "WINDOW_KEYS", "gguf_windows", "qwen_windows", "spec", "weights"]

WINDOW_KEYS = frozenset(("use_sliding_window", "sliding_window", "max_window_layers", "layer_types", "use_mrope"))
MODEL_TYPES = {"qwen2": KEYS | WINDOW_KEYS}


@host
def gguf_windows(config: Mapping[str, Any], meta: Mapping[str, Any]) -> dict[str, Any]:
    """State the window of a GGUF file, which has one for all layers."""
    return {"use_sliding_window": True, "max_window_layers": 0} if "sliding_window" in config else {}


GGUF = {"qwen2": Architecture("qwen2", {"attention.sliding_window": "sliding_window"}, configure=gguf_windows)}


@host
def qwen_windows(config: Mapping[str, Any], mixer: AttentionSpec) -> list[AttentionSpec]:
    """State the windows: none, or in the layers from max_window_layers on; a null use_sliding_window is false."""
    if not flag(config, "use_sliding_window"):
        return [mixer] * layer_count(config)
    first = integer(config, "max_window_layers", 28, least=0)
    return windows(config, mixer, lambda number: number >= first, 4096)


@host
def spec(config: Mapping[str, Any]) -> ModelSpec:
    """Read a config of this family."""
    check_keys(config, MODEL_TYPES["qwen2"])
    mixers = qwen_windows(config, attention_spec(config, biases="qkv"))
    return model_spec(config, "qwen2", layers_of(mixers, mlp_spec(config)))
