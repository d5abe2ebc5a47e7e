"""Faults of norms of channels, of vectors, of sums and behind gates."""

from typing import Any

import numpy as np

from golden.derive import norms
from golden.values import Array

__all__ = [
    "always_silu", "centred_once_by_group", "channels_interleaved", "eps_added_to_length", "eps_as_floor",
    "eps_under_root", "gain_by_place", "gate_after_norm", "gate_before_norm", "group_bias_forgotten", "groups_ignored",
    "mean_of_squares", "output_normed_alone", "stream_lost", "sum_offset_ignored", "vector_squares_in_dtype",
]  # fmt: skip


def channels_interleaved(x: Array, gain: Array, bias: Array | None = None, *, groups: int, eps: float = 1e-5) -> Array:
    """Channel c belongs to group c mod groups."""
    order = np.arange(len(gain)).reshape(-1, groups).T.ravel()
    moved = norms.group_norm(x[order], gain[order], None if bias is None else bias[order], groups=groups, eps=eps)
    return moved[np.argsort(order)]


def groups_ignored(x: Array, gain: Array, bias: Array | None = None, *, groups: int, eps: float = 1e-5) -> Array:
    """One group of all channels."""
    return norms.group_norm(x, gain, bias, groups=1, eps=eps)


def gain_by_place(x: Array, gain: Array, bias: Array | None = None, *, groups: int, eps: float = 1e-5) -> Array:
    """The gain runs along the last axis."""
    plain = norms.group_norm(x, np.ones(len(gain)), groups=groups, eps=eps)
    return plain * np.resize(gain, x.shape[-1]) + (0 if bias is None else np.resize(bias, x.shape[-1]))


def group_bias_forgotten(x: Array, gain: Array, bias: Array, **named: Any) -> Array:
    """No bias."""
    return norms.group_norm(x, gain, **named)


def centred_once_by_group(x: Array, gain: Array, bias: Array | None = None, *, groups: int, eps: float = 1e-5) -> Array:
    """The rounding of a large mean stays in every value."""
    rows = x.astype(np.float32).reshape(groups, -1)
    rows = rows - rows.mean(-1, keepdims=True)
    plain = rows / np.sqrt((rows * rows).mean(-1, keepdims=True) + np.float32(eps))
    y = plain.reshape(len(gain), -1) * gain[:, None] + (0 if bias is None else bias[:, None])
    return y.reshape(x.shape)


def mean_of_squares(x: Array, eps: float = 1e-6, **_: bool) -> Array:
    """RMS norm: the mean of the squares, not their sum."""
    return x / np.sqrt(np.mean(np.square(x, dtype=np.float64), -1, keepdims=True) + eps)


def vector_squares_in_dtype(x: Array, eps: float = 1e-6, **_: bool) -> Array:
    """Squares in the dtype of the input: float16 overflows above 255."""
    return x / np.sqrt(np.sum(x * x, -1, keepdims=True) + x.dtype.type(eps))


def eps_as_floor(x: Array, eps: float = 1e-6, **_: bool) -> Array:
    """eps bounds the length from below, as in torch.nn.functional.normalize."""
    return norms.l2_norm(x.astype(np.float64), eps, eps_is_floor=True)


def eps_under_root(x: Array, eps: float = 1e-6, **_: bool) -> Array:
    """eps under the root, as in flash-linear-attention."""
    return norms.l2_norm(x.astype(np.float64), eps)


def eps_added_to_length(x: Array, eps: float = 1e-6, **_: bool) -> Array:
    """eps is added to the root."""
    return x / (np.sqrt(np.sum(np.square(x, dtype=np.float64), -1, keepdims=True)) + eps)


def gate_before_norm(
    x: Array, gate: Array, gain: Array, eps: float = 1e-6, *, activation: str = "silu", **_: bool
) -> Array:
    """The gate before the norm, as in Mamba-2."""
    return _gated(x, gate, gain, eps, False, activation)


def gate_after_norm(
    x: Array, gate: Array, gain: Array, eps: float = 1e-6, *, activation: str = "silu", **_: bool
) -> Array:
    """The gate after the norm, as in Qwen3-Next."""
    return _gated(x, gate, gain, eps, True, activation)


def always_silu(
    x: Array, gate: Array, gain: Array, eps: float = 1e-6, *, norm_before_gate: bool = True, **_: str
) -> Array:
    """silu where the gate is a sigmoid."""
    return _gated(x, gate, gain, eps, norm_before_gate, "silu")


def _gated(x: Array, gate: Array, gain: Array, eps: float, is_first: bool, activation: str) -> Array:
    x, gate, gain = (each.astype(np.float64) for each in (x, gate, gain))
    return norms.gated_rms_norm(x, gate, gain, eps, norm_before_gate=is_first, activation=activation)


def output_normed_alone(x: Array, residual: Array, gain: Array, eps: float = 1e-6, **_: float) -> tuple[Array, Array]:
    """The layer's output is normalised, and then added."""
    return norms.add_rms_norm(x, np.zeros_like(x), gain, eps)[0], x + residual


def stream_lost(x: Array, residual: Array, gain: Array, eps: float = 1e-6, **named: float) -> tuple[Array, Array]:
    """The stream that is handed on is the old one."""
    return norms.add_rms_norm(x, residual, gain, eps, **named)[0], residual


def sum_offset_ignored(x: Array, residual: Array, gain: Array, eps: float = 1e-6, **_: float) -> tuple[Array, Array]:
    """gain_offset is not read."""
    return norms.add_rms_norm(x, residual, gain, eps)
