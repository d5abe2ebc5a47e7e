"""Faults of sigmoid, softplus and the clamped gate."""

from typing import Any

import numpy as np

from golden.derive import gated, layers
from golden.values import Array

__all__ = [
    "alpha_not_read", "clamp_forgotten", "gate_bounded_below", "limit_not_read", "mlp_gated_by_silu",
    "nan_bounded", "one_not_added", "sigmoid_by_tanh", "sigmoid_cut", "sigmoid_hard", "sigmoid_unguarded",
    "softplus_is_relu", "softplus_unguarded", "up_bounded_above",
]  # fmt: skip


def sigmoid_unguarded(x: Array) -> Array:
    """exp(x) / (1 + exp(x)): inf / inf for large values."""
    return np.exp(x) / (1 + np.exp(x))


def sigmoid_by_tanh(x: Array) -> Array:
    """(1 + tanh(x / 2)) / 2: the lower tail cancels."""
    return (1 + np.tanh(x / 2)) / 2


def sigmoid_cut(x: Array) -> Array:
    """0 from -18 on."""
    return np.where(x <= -18, 0, gated.sigmoid(x))


def sigmoid_hard(x: Array) -> Array:
    """The piecewise linear stand-in."""
    return np.clip(x.astype(np.float32) / 6 + 0.5, 0, 1)


def softplus_unguarded(x: Array) -> Array:
    """log(1 + exp(x)) as it stands: inf for large values, 0 for small."""
    return np.log(1 + np.exp(x.astype(np.float32)))


def softplus_is_relu(x: Array) -> Array:
    """max(x, 0), its limit."""
    return np.maximum(x, 0)


def clamp_forgotten(gate: Array, up: Array, *, limit: float = 7.0, **named: float) -> Array:
    """No bounds."""
    return gated.swiglu_clamped(gate, up, limit=np.inf, **named)


def gate_bounded_below(gate: Array, up: Array, *, limit: float = 7.0, **named: float) -> Array:
    """The gate is bounded on both sides, as up is."""
    return gated.swiglu_clamped(np.maximum(gate, -limit), up, limit=limit, **named)


def up_bounded_above(gate: Array, up: Array, *, limit: float = 7.0, **named: float) -> Array:
    """Up is bounded on one side, as the gate is."""
    return _opening(gate, limit, named) * (np.minimum(up, limit) + 1)


def one_not_added(gate: Array, up: Array, *, limit: float = 7.0, **named: float) -> Array:
    """up instead of up + 1."""
    return _opening(gate, limit, named) * np.clip(up, -limit, limit)


def _opening(gate: Array, limit: float, named: dict[str, float]) -> Array:
    wide = np.asarray(gate, np.float64)
    return gated.swiglu_clamped(wide, np.zeros_like(wide), limit=limit, **named)


def alpha_not_read(gate: Array, up: Array, **keywords: float) -> Array:
    """The sigmoid of the gate itself: silu."""
    return gated.swiglu_clamped(gate, up, limit=keywords.get("limit", 7.0), alpha=1.0)


def limit_not_read(gate: Array, up: Array, **keywords: float) -> Array:
    """The bound of gpt-oss whatever is asked."""
    return gated.swiglu_clamped(gate, up, alpha=keywords.get("alpha", 1.702))


def nan_bounded(gate: Array, up: Array, **_: float) -> Array:
    """fmin and fmax, which give the bound for NaN."""
    return gated.swiglu_clamped(np.fmin(gate, 7.0), np.fmax(np.fmin(up, 7.0), -7.0))


def mlp_gated_by_silu(activation: str, **arguments: Any) -> Array:
    """Llama's gate in gpt-oss."""
    return layers.gated_mlp(**arguments, activation="silu")
