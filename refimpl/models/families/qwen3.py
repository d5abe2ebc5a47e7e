"""Qwen3: a Llama whose queries and keys are RMS-normalised per head before they are rotated."""

from collections.abc import Mapping
from typing import Any

from refimpl.contract import host
from refimpl.models.architecture import Architecture
from refimpl.models.config import check_keys, flag
from refimpl.models.families.llama import weights
from refimpl.models.families.qwen2 import WINDOW_KEYS, gguf_windows, qwen_windows
from refimpl.models.reading import KEYS, attention_spec, layers_of, mlp_spec, model_spec
from refimpl.models.spec import ModelSpec

__all__ = ["GGUF", "MODEL_TYPES", "spec", "weights"]

MODEL_TYPES = {"qwen3": KEYS | WINDOW_KEYS | {"attention_bias"}}
GGUF = {"qwen3": Architecture("qwen3", {"attention.sliding_window": "sliding_window"}, configure=gguf_windows)}


@host
def spec(config: Mapping[str, Any]) -> ModelSpec:
    """Read a config of this family; an absent head_dim is 128 here, whatever the width."""
    check_keys(config, MODEL_TYPES["qwen3"])
    biases = "qkvo" if flag(config, "attention_bias") else ""
    mixers = qwen_windows(config, attention_spec(config, head_dim=128, biases=biases, qk_norm="head"))
    return model_spec(config, "qwen3", layers_of(mixers, mlp_spec(config)))
