"""Norms of channels, of vectors, of sums and behind gates: one row at a time, sums without rounding."""

import math

import numpy as np

from golden.derive.gated import sigmoid
from golden.values import Array

__all__ = ["add_rms_norm", "gated_rms_norm", "group_norm", "l2_norm"]


def group_norm(x: Array, gain: Array, bias: Array | None = None, *, groups: int, eps: float = 1e-5) -> Array:
    channels, shift = x.reshape(len(gain), -1), np.zeros(len(gain)) if bias is None else bias
    y, each = np.empty_like(channels), len(gain) // groups
    for first in range(0, len(gain), each):
        values = [value for channel in channels[first : first + each] for value in channel.tolist()]
        mean = math.fsum(values) / len(values)
        root = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / len(values) + eps)
        for c in range(first, first + each):
            y[c] = [(value - mean) / root * gain[c] + shift[c] for value in channels[c].tolist()]
    return y.reshape(x.shape)


def _rms_norm(row: Array, gain: Array, eps: float) -> list[float]:
    root = math.sqrt(math.fsum(value * value for value in row.tolist()) / len(row) + eps)
    return [value / root * scale for value, scale in zip(row.tolist(), gain.tolist(), strict=True)]


def _each(x: Array, gain: Array, eps: float) -> Array:
    return np.array([_rms_norm(row, gain, eps) for row in x.reshape(-1, x.shape[-1])]).reshape(x.shape)


def add_rms_norm(
    x: Array, residual: Array, gain: Array, eps: float = 1e-6, *, gain_offset: float = 0.0
) -> tuple[Array, Array]:
    return _each(x + residual, gain_offset + gain, eps), x + residual


def gated_rms_norm(
    x: Array, gate: Array, gain: Array, eps: float = 1e-6, *, norm_before_gate: bool = True, activation: str = "silu"
) -> Array:
    opening = sigmoid(gate) * (gate if activation == "silu" else 1.0)
    return _each(x, gain, eps) * opening if norm_before_gate else _each(x * opening, gain, eps)


def l2_norm(x: Array, eps: float = 1e-6, *, eps_is_floor: bool = False) -> Array:
    rows = []
    for row in x.reshape(-1, x.shape[-1]):
        squares = math.fsum(value * value for value in row.tolist())
        length = max(math.sqrt(squares), eps) if eps_is_floor else math.sqrt(squares + eps)
        rows.append([value / length for value in row.tolist()])
    return np.array(rows).reshape(x.shape)
