"""Faults of softmax and its kin, and of activations taken for one another."""

import numpy as np

from golden.derive import activation
from golden.values import Array

__all__ = [
    "exp_unshifted", "gate_is_up", "gated_by_erf", "gelu_by_erf", "gelu_by_sigmoid", "gelu_by_tanh",
    "log_of_softmax", "log_softmax_base_2", "log_to_base_2", "lse_unguarded", "nan_to_zero", "softmax_over_first",
    "softmax_over_last",
]  # fmt: skip


def exp_unshifted(x: Array, axis: int = -1) -> Array:
    """exp without taking the largest score away."""
    weights = np.exp(x.astype(np.float32))
    return weights / weights.sum(axis, keepdims=True)


def softmax_over_first(x: Array, axis: int = -1) -> Array:
    """The axis is ignored."""
    return activation.softmax(x, 0)


def log_of_softmax(x: Array, axis: int = -1) -> Array:
    """The logarithm of probabilities that have underflowed."""
    return np.log(activation.softmax(x, axis).astype(x.dtype))


def log_to_base_2(x: Array, axis: int = -1) -> Array:
    """The logarithm to base 2."""
    return activation.logsumexp(x, axis) / np.log(2)


def nan_to_zero(x: Array) -> Array:
    """x > 0 ? x : 0 turns NaN into 0."""
    return np.where(x > 0, x, 0)


def gelu_by_erf(x: Array) -> Array:
    """The exact GELU where an approximation is meant."""
    return activation.gelu_erf(x)


def gelu_by_tanh(x: Array) -> Array:
    """GELU by tanh where another is meant."""
    return activation.gelu_tanh(x)


def gelu_by_sigmoid(x: Array) -> Array:
    """x sigmoid(1.702 x) where another is meant."""
    return activation.gelu_quick(x)


def gate_is_up(gate: Array, up: Array) -> Array:
    """The two halves change places."""
    return activation.swiglu(up, gate)


def gated_by_erf(gate: Array, up: Array) -> Array:
    """The exact GELU in GeGLU."""
    return activation.gelu_erf(gate) * up


def softmax_over_last(x: Array, axis: int = -1) -> Array:
    """The last axis whatever is asked."""
    return activation.softmax(x)


def log_softmax_base_2(x: Array, axis: int = -1) -> Array:
    """The logarithm to base 2."""
    return activation.log_softmax(x, axis) / np.log(2)


def lse_unguarded(x: Array, axis: int = -1) -> Array:
    """-inf - -inf where nothing is seen."""
    most = x.max(axis, keepdims=True)
    return np.log(np.exp(x - most).sum(axis)) + np.squeeze(most, axis)
