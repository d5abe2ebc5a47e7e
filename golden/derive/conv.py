"""Convolutions, term by term from the definition; the transposed one paints."""

import math
from itertools import product

import numpy as np

from golden.derive import activation as act
from golden.values import Array

__all__ = ["conv1d", "conv2d", "conv_transpose2d", "upsample_nearest"]


def conv1d(
    x: Array, w: Array, b: Array | None = None, state: Array | None = None, *, groups: int = 1,
    activation: str | None = None,
) -> tuple[Array, Array]:  # fmt: skip
    (outputs, per_group, taps), y = w.shape, np.zeros((len(x), len(w)))
    seen = np.concatenate([np.zeros((taps - 1, x.shape[1])) if state is None else state, x])
    for t, o in np.ndindex(y.shape):
        first = o * groups // outputs * per_group
        terms = [seen[t + i, first + c] * w[o, c, i] for c, i in np.ndindex(per_group, taps)]
        y[t, o] = math.fsum(terms) + (0.0 if b is None else b[o])
    return (act.silu(y) if activation == "silu" else y), seen[len(x) :]


def conv2d(
    x: Array, w: Array, b: Array | None = None, *, stride: tuple[int, int] = (1, 1),
    padding: tuple[tuple[int, int], tuple[int, int]] = ((0, 0), (0, 0)), dilation: tuple[int, int] = (1, 1),
    groups: int = 1,
) -> Array:  # fmt: skip
    outputs, per_group, *taps = w.shape
    places = [
        [at for at in range(-before, n + behind - d * (reach - 1)) if (at + before) % s == 0]
        for n, reach, s, d, (before, behind) in zip(x.shape[1:], taps, stride, dilation, padding, strict=True)
    ]
    y = np.zeros((outputs, len(places[0]), len(places[1])))
    for o, (u, top), (v, left) in product(range(outputs), enumerate(places[0]), enumerate(places[1])):
        first = o * groups // outputs * per_group
        terms = []
        for c, i, j in np.ndindex(per_group, *taps):
            row, column = top + i * dilation[0], left + j * dilation[1]
            if 0 <= row < x.shape[1] and 0 <= column < x.shape[2]:
                terms.append(x[first + c, row, column] * w[o, c, i, j])
        y[o, u, v] = math.fsum(terms) + (0.0 if b is None else b[o])
    return y


def conv_transpose2d(
    x: Array, w: Array, b: Array | None = None, *, stride: tuple[int, int] = (1, 1),
    padding: tuple[tuple[int, int], tuple[int, int]] = ((0, 0), (0, 0)), output_padding: tuple[int, int] = (0, 0),
    dilation: tuple[int, int] = (1, 1), groups: int = 1,
) -> Array:  # fmt: skip
    (C, Y, X), (_, per_group, ky, kx) = x.shape, w.shape
    each = zip((Y, X), (ky, kx), stride, dilation, output_padding, padding, strict=True)
    sizes = [(n - 1) * s + d * (taps - 1) + 1 + more - sum(cut) for n, taps, s, d, more, cut in each]
    terms: dict[tuple[int, int, int], list[float]] = {}
    for c, u, v, o, i, j in np.ndindex(C, Y, X, per_group, ky, kx):
        row, column = u * stride[0] + i * dilation[0], v * stride[1] + j * dilation[1]
        place = c * groups // C * per_group + o, row - padding[0][0], column - padding[1][0]
        terms.setdefault(place, []).append(x[c, u, v] * w[c, o, i, j])
    y = np.zeros((per_group * groups, *sizes))
    for place in np.ndindex(y.shape):
        y[place] = math.fsum(terms.get(place, [])) + (0.0 if b is None else b[place[0]])
    return y


def upsample_nearest(x: Array, scale: tuple[int, int]) -> Array:
    y = np.zeros((len(x), x.shape[1] * scale[0], x.shape[2] * scale[1]))
    for c, u, v in np.ndindex(y.shape):
        y[c, u, v] = x[c, u // scale[0], v // scale[1]]
    return y
