"""The causal convolution of a video, term by term."""

import math
from itertools import product

import numpy as np

from golden.values import Array

__all__ = ["conv3d"]


def conv3d(
    x: Array, w: Array, b: Array | None = None, state: Array | None = None, *,
    stride: tuple[int, int, int] = (1, 1, 1), padding: tuple[tuple[int, int], tuple[int, int]] = ((0, 0), (0, 0)),
) -> tuple[Array, Array]:  # fmt: skip
    taps, (top, bottom), (left, right) = w.shape[2:], *padding
    past = np.zeros((len(x), taps[0] - 1, *x.shape[2:])) if state is None else state
    frames = [past[:, t] for t in range(past.shape[1])] + [x[:, t] for t in range(x.shape[1])]
    rows = range(-top, x.shape[2] + bottom - taps[1] + 1, stride[1])
    columns = range(-left, x.shape[3] + right - taps[2] + 1, stride[2])
    pictures, first = [], 0
    while first + taps[0] <= len(frames):
        picture = np.zeros((len(w), len(rows), len(columns)))
        for o, (u, row), (v, column) in product(range(len(w)), enumerate(rows), enumerate(columns)):
            terms = [
                frames[first + h][c, row + i, column + j] * w[o, c, h, i, j]
                for c, h, i, j in np.ndindex(w.shape[1:])
                if 0 <= row + i < x.shape[2] and 0 <= column + j < x.shape[3]
            ]
            picture[o, u, v] = math.fsum(terms) + (0.0 if b is None else b[o])
        pictures.append(picture)
        first += stride[0]
    left_over = np.stack(frames[first:], 1) if frames[first:] else np.zeros((len(x), 0, *x.shape[2:]))
    return np.stack(pictures, 1), left_over
