"""Qwen3: a Llama whose queries and keys are RMS-normalised per head before they are rotated."""

from collections.abc import Mapping
from typing import Any

from refimpl.contract import host
from refimpl.models.config import check_keys, flag
from refimpl.models.families import llama, qwen2
from refimpl.models.spec import ModelSpec
from refimpl.models.tensor import Tensor

__all__ = ["MODEL_TYPES", "spec", "weights"]

MODEL_TYPES = ("qwen3",)


@host
def spec(config: Mapping[str, Any]) -> ModelSpec:
    """Read a config of this family; an absent head_dim is 128 here, whatever the width."""
    check_keys(config, llama.KEYS | qwen2.WINDOW_KEYS | {"attention_bias"})
    biases = ("b_q", "b_k", "b_v", "b_o") if flag(config, "attention_bias") else ()
    return llama.llama_like(
        config, "qwen3", head_dim=128, windows=qwen2.qwen_windows(config), biases=biases, qk_norm=True
    )


@host
def weights(tensors: Mapping[str, Tensor], spec: ModelSpec) -> dict[str, Tensor]:
    """Name the tensors of a checkpoint of this family."""
    return llama.weights(tensors, spec)
