"""Faults of causal convolutions of videos."""

from typing import Any

import numpy as np

from golden.derive import conv3d as right
from golden.values import Array

__all__ = [
    "first_frame_repeated", "flipped_in_time", "last_column_unwritten", "padded_on_both_sides", "state_forgotten",
    "state_of_all_taps",
]  # fmt: skip


def padded_on_both_sides(x: Array, w: Array, b: Array | None = None, state: Array | None = None, **named: Any) -> Any:
    """Zeros around the video, so that a frame sees the next one."""
    half = (w.shape[2] - 1) // 2
    zeros = np.zeros((len(x), half, *x.shape[2:]))
    return right.conv3d(np.concatenate([x, zeros], 1), w, b, zeros if state is None else state, **named)


def first_frame_repeated(x: Array, w: Array, b: Array | None = None, state: Array | None = None, **named: Any) -> Any:
    """The first frame stands before itself, not zeros."""
    return right.conv3d(x, w, b, np.repeat(x[:, :1], w.shape[2] - 1, 1) if state is None else state, **named)


def flipped_in_time(x: Array, w: Array, b: Array | None = None, state: Array | None = None, **named: Any) -> Any:
    """A convolution of mathematics: the kernel backwards."""
    return right.conv3d(x, w[:, :, ::-1], b, state, **named)


def state_forgotten(x: Array, w: Array, b: Array | None = None, state: Array | None = None, **named: Any) -> Any:
    """Every chunk begins a new video."""
    return right.conv3d(x, w, b, None, **named)


def state_of_all_taps(x: Array, w: Array, b: Array | None = None, state: Array | None = None, **named: Any) -> Any:
    """The state is always taps - 1 frames, whatever the stride has read already."""
    past = np.zeros((len(x), w.shape[2] - 1, *x.shape[2:])) if state is None else state
    y, _ = right.conv3d(x, w, b, state, **named)
    return y, np.concatenate([past, x], 1)[:, x.shape[1] + past.shape[1] - w.shape[2] + 1 :]


def last_column_unwritten(x: Array, w: Array, b: Array | None = None, state: Array | None = None, **named: Any) -> Any:
    """What lies past the last whole tile is not written."""
    y, kept = right.conv3d(x, w, b, state, **named)
    y[..., -1] = 0
    return y, kept
