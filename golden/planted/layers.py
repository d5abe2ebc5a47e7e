"""Faults of linear maps, norms, embeddings and feed-forward networks."""

from typing import Any

import numpy as np

from golden.derive import layers
from golden.values import Array

__all__ = [
    "activation_not_read", "bias_forgotten", "biases_forgotten", "centred_once", "deviation_unbiased", "eps_outside",
    "gain_plus_one", "id_off_by_one", "limit_ignored", "mean_kept", "offset_ignored", "positions_from_zero",
    "squares_in_dtype", "up_gates_gate", "variance_by_squares", "w_not_transposed",
]  # fmt: skip


def bias_forgotten(x: Array, w: Array, b: Array) -> Array:
    """The bias is left out."""
    return layers.linear(x, w)


def w_not_transposed(x: Array, w: Array, b: Array | None = None) -> Array:
    """y = x w instead of x w^T; shapes tell only where w is not square."""
    return layers.linear(x, w.T, b)


def up_gates_gate(x: Array, w_gate: Array, w_up: Array, w_down: Array, **rest: Any) -> Array:
    """The two projections change places."""
    return layers.gated_mlp(x, w_up, w_gate, w_down, **rest)


def biases_forgotten(x: Array, *weights: Array, activation: str, **named: Array) -> Array:
    """No bias anywhere."""
    kept = {name: w for name, w in named.items() if name.startswith("w_")}
    return (layers.gated_mlp if "w_gate" in kept else layers.mlp)(x, *weights, **kept, activation=activation)


def activation_not_read(x: Array, activation: str, **weights: Array) -> Array:
    """The default activation whatever the keyword says."""
    return (layers.gated_mlp if "w_gate" in weights else layers.mlp)(x, **weights)


def limit_ignored(x: Array, limit: float, **named: Any) -> Array:
    """The bound of gpt-oss whatever is asked."""
    return layers.gated_mlp(x, **named)


def squares_in_dtype(x: Array, gain: Array, eps: float = 1e-6) -> Array:
    """Squares in the dtype of the input: float16 overflows above 255."""
    mean = np.mean(x * x, -1, keepdims=True)
    return x / np.sqrt(mean + x.dtype.type(eps)) * gain


def eps_outside(x: Array, gain: Array, eps: float = 1e-6) -> Array:
    """eps is added to the root, not under it."""
    return x / (np.sqrt(np.mean(np.square(x, dtype=np.float64), -1, keepdims=True)) + eps) * gain


def gain_plus_one(x: Array, gain: Array, eps: float = 1e-6, **_: Any) -> Array:
    """Gemma's 1 + gain for everyone."""
    return layers.rms_norm(x, gain, eps, gain_offset=1.0)


def mean_kept(x: Array, gain: Array, bias: Array | None = None, eps: float = 1e-5) -> Array:
    """Layer norm without taking the mean away."""
    return layers.rms_norm(x, gain, eps) + (0 if bias is None else bias)


def deviation_unbiased(x: Array, gain: Array, bias: Array | None = None, eps: float = 1e-5) -> Array:
    """The variance over D - 1."""
    variance = x.var(-1, ddof=1, keepdims=True)
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(variance + eps) * gain + (0 if bias is None else bias)


def variance_by_squares(x: Array, gain: Array, bias: Array | None = None, eps: float = 1e-5) -> Array:
    """E[x^2] - E[x]^2 in float32: a large offset cancels all there is."""
    x = x.astype(np.float32)
    mean = x.mean(-1, keepdims=True)
    return (x - mean) / np.sqrt((x * x).mean(-1, keepdims=True) - mean * mean + np.float32(eps)) * gain + bias


def centred_once(x: Array, gain: Array, bias: Array | None = None, eps: float = 1e-5) -> Array:
    """The rounding of a large mean stays in every value."""
    x = x.astype(np.float32)
    x = x - x.mean(-1, keepdims=True)
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(eps)) * gain + bias


def id_off_by_one(ids: Array, table: Array) -> Array:
    """Row i + 1 for token i."""
    return table[(ids + 1) % len(table)]


def positions_from_zero(x: Array, positions: Array, table: Array) -> Array:
    """Every chunk starts at position 0."""
    return x + table[: len(x)]


def offset_ignored(x: Array, gain: Array, eps: float = 1e-6, **_: Any) -> Array:
    """gain_offset is not read."""
    return layers.rms_norm(x, gain, eps)
