"""Models that people know, by the config.json that each was published with: to be counted, or run without their files.

``random:llama-3.1-8b`` names one with random weights, which are made when they are read. It has no tokenizer.
"""

import json
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from refimpl.contract import Array, UsageError, host
from refimpl.models.spec import ModelSpec, weight_shapes
from refimpl.models.tensor import Tensor

__all__ = ["PREFIX", "published", "published_config", "random_weights"]

PREFIX = "random:"

_DEVIATION = 0.02  # of a matrix's numbers, as transformers begins its training


@host
@cache
def published(kind: str = "decoders") -> dict[str, dict[str, Any]]:
    """Return the configs of ``decoders``, or of ``encoders`` with and without a decoder, by the names of the models."""
    configs: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_suffix(".json").read_text("utf-8"))[kind]
    return configs


@host
def published_config(ref: str) -> dict[str, Any]:
    """Return the config that ``random:NAME`` stands for.

    >>> published_config("random:mixtral-8x7b")["num_local_experts"]
    8
    >>> published_config("random:gpt-5")
    Traceback (most recent call last):
    ...
    refimpl.contract.UsageError: there is no random:gpt-5; there are gemma-2-2b, gemma-3-1b, gemma-3-270m, ...
    """
    name = ref.removeprefix(PREFIX).lower()
    if name not in published():
        raise UsageError(f"there is no {ref}; there are {', '.join(published())}")
    return published()[name]


@host
def random_weights(spec: ModelSpec) -> dict[str, Tensor]:
    """Return weights of bfloat16, always the same, that are made anew each time they are read; experts one by one."""
    return {name: _drawn(name, shape, spec.gain_offset) for name, shape in weight_shapes(spec).items()}


def _drawn(name: str, shape: tuple[int, ...], offset: float) -> Tensor:
    def part(number: int) -> Tensor:
        return _drawn(f"{name}.{number}", shape[1:], offset)

    return Tensor("bfloat16", shape, _maker(name, shape, offset), part if len(shape) > 2 else None)


def _maker(name: str, shape: tuple[int, ...], offset: float) -> Callable[[], Array]:
    def make() -> Array:
        if name.endswith(".gain"):
            return np.full(shape, 1 - offset, ml_dtypes.bfloat16)
        if len(shape) == 1 or ".b_" in name:
            return np.zeros(shape, ml_dtypes.bfloat16)
        if len(shape) > 2:
            return np.stack([_maker(f"{name}.{e}", shape[1:], offset)() for e in range(shape[0])])
        rng = np.random.default_rng(zlib.crc32(name.encode()))
        numbers = rng.standard_normal(shape, np.float32)
        numbers *= np.float32(_DEVIATION)
        return numbers.astype(ml_dtypes.bfloat16)

    return make
