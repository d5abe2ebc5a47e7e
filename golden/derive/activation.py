"""Activations, element by element, by the functions of Python's math."""

import math
from collections.abc import Callable

import numpy as np

from golden.values import Array

__all__ = [
    "geglu", "gelu_erf", "gelu_quick", "gelu_tanh", "log_softmax", "logsumexp", "relu", "silu", "softmax", "swiglu",
]  # fmt: skip


def _each(function: Callable[[float], float]) -> Callable[[Array], Array]:
    def over(x: Array) -> Array:
        return np.array([function(float(value)) for value in np.ravel(x)]).reshape(np.shape(x))

    return over


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))


relu = _each(lambda x: x if x > 0 or math.isnan(x) else 0.0)
silu = _each(lambda x: x * _sigmoid(x))
gelu_erf = _each(lambda x: x * 0.5 * math.erfc(-x / math.sqrt(2)))
gelu_tanh = _each(lambda x: 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))))
gelu_quick = _each(lambda x: x * _sigmoid(1.702 * x))


def swiglu(gate: Array, up: Array) -> Array:
    return silu(gate) * up


def geglu(gate: Array, up: Array) -> Array:
    return gelu_tanh(gate) * up


def _log_sum(row: Array) -> float:
    largest = float(max(row))
    if math.isinf(largest):
        return largest
    return largest + math.log(math.fsum(math.exp(float(value) - largest) for value in row))


def logsumexp(x: Array, axis: int = -1) -> Array:
    return np.apply_along_axis(_log_sum, axis, x)


def log_softmax(x: Array, axis: int = -1) -> Array:
    return x - np.expand_dims(logsumexp(x, axis), axis)


def softmax(x: Array, axis: int = -1) -> Array:
    return np.apply_along_axis(lambda row: np.array([math.exp(value - _log_sum(row)) for value in row]), axis, x)
