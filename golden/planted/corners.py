"""One fault for the corners of every operation: the last number of the result is not written, and keeps what it held.

It is what a kernel does whose grid is rounded down, or whose last tile is not there; an axis of size 1 is that tile.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from golden.derive import DERIVATIONS
from golden.values import Array

__all__ = ["OPS", "without_last"]

OPS = (
    "bad_words", "dequantize", "draw", "draw_race", "embedding", "exponential_decay", "force_tokens",
    "frequency_penalty", "gated_mlp", "geglu", "gelu_erf", "gelu_quick", "gelu_tanh", "greedy", "learned_position",
    "linear_int8", "log_softmax", "logit_bias", "logsumexp", "min_p", "mlp", "no_repeat_ngram", "philox",
    "presence_penalty", "quantize_int8", "relu", "repetition_penalty", "rms_norm", "rope", "sequence_bias", "silu",
    "softmax", "suppress_tokens", "swiglu", "temperature", "top_k", "top_p",
)  # fmt: skip


def without_last(op: str) -> Callable[..., Any]:
    """Return the derivation of an operation, its last number spoiled."""

    def unwritten(**arguments: Any) -> Any:
        result = DERIVATIONS[op](**{name: _wide(value) for name, value in arguments.items()})
        return tuple(map(_spoiled, result)) if isinstance(result, tuple) else _spoiled(result)

    return unwritten


def _wide(value: Any) -> Any:
    is_float = isinstance(value, np.ndarray) and value.dtype.kind not in "iub"
    return value.astype(np.float64) if is_float else value


def _spoiled(result: Any) -> Array:
    spoiled = np.array(result)
    spoiled.flat[-1] = 3 if spoiled.flat[-1] != 3 else 4
    return spoiled
