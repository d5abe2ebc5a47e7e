"""Layers of denoisers: timestep embedding, adaptive norm, gate, patches; number by number."""

import math
from itertools import product

import numpy as np

from golden.values import Array

__all__ = [
    "adaln", "axial_rope_table", "gated_residual", "patchify", "sincos_table_2d", "sincos_table_3d",
    "timestep_embedding", "unpatchify",
]  # fmt: skip


def timestep_embedding(
    timesteps: Array, dim: int, *, flip_sin_to_cos: bool = False, downscale_freq_shift: float = 1.0,
    scale: float = 1.0, max_period: float = 10000.0,
) -> Array:  # fmt: skip
    half, y = dim // 2, np.zeros((len(timesteps), dim))
    first, second = (math.cos, math.sin) if flip_sin_to_cos else (math.sin, math.cos)
    for t, i in np.ndindex(len(timesteps), half):
        angle = float(timesteps[t]) * scale * math.exp(-math.log(max_period) * i / (half - downscale_freq_shift))
        y[t, i], y[t, half + i] = first(angle), second(angle)
    return y


def _of_token(modulation: Array, t: int) -> list[float]:
    row: list[float] = (modulation if modulation.ndim == 1 else modulation[t]).tolist()
    return row


def adaln(x: Array, shift: Array, scale: Array, eps: float = 1e-6) -> Array:
    y = np.empty_like(x)
    for t, row in enumerate(x.tolist()):
        mean = math.fsum(row) / len(row)
        root = math.sqrt(math.fsum((value - mean) ** 2 for value in row) / len(row) + eps)
        each = zip(row, _of_token(shift, t), _of_token(scale, t), strict=True)
        y[t] = [(value - mean) / root * (1 + factor) + more for value, more, factor in each]
    return y


def gated_residual(x: Array, y: Array, gate: Array) -> Array:
    total = np.empty_like(x)
    for t, d in np.ndindex(x.shape):
        total[t, d] = x[t, d] + _of_token(gate, t)[d] * y[t, d]
    return total


def _places(sizes: tuple[int, ...]) -> list[tuple[int, ...]]:
    return list(product(*map(range, sizes)))


def _inner(channels: int, patch: tuple[int, ...], channels_last: bool) -> list[tuple[int, tuple[int, ...]]]:
    """Return channel and place in the patch of every value of a token, in order."""
    if channels_last:
        return [(c, place) for place in _places(patch) for c in range(channels)]
    return [(c, place) for c in range(channels) for place in _places(patch)]


def patchify(x: Array, patch: tuple[int, ...], *, channels_last: bool = False) -> Array:
    tokens = []
    for corner in _places(tuple(n // p for n, p in zip(x.shape[1:], patch, strict=True))):
        first = [u * p for u, p in zip(corner, patch, strict=True)]
        inner = _inner(len(x), patch, channels_last)
        tokens.append([x[c, *(f + i for f, i in zip(first, place, strict=True))] for c, place in inner])
    return np.array(tokens)


def unpatchify(x: Array, grid: tuple[int, ...], patch: tuple[int, ...], *, channels_last: bool = False) -> Array:
    channels = x.shape[1] // math.prod(patch)
    y = np.empty((channels, *(n * p for n, p in zip(grid, patch, strict=True))))
    for token, corner in zip(x, _places(grid), strict=True):
        for value, (c, place) in zip(token, _inner(channels, patch, channels_last), strict=True):
            y[c, *(u * p + i for u, p, i in zip(corner, patch, place, strict=True))] = value
    return y


def _sines(position: float, width: int) -> list[float]:
    angles = [position / 10000.0 ** (2 * i / width) for i in range(width // 2)]
    return [*map(math.sin, angles), *map(math.cos, angles)]


def sincos_table_2d(
    grid: tuple[int, int], dim: int, *, base_size: int | None = None, interpolation_scale: float = 1.0
) -> Array:
    down, right = (interpolation_scale * (1 if base_size is None else n / base_size) for n in grid)
    return np.array([_sines(x / right, dim // 2) + _sines(y / down, dim // 2) for y, x in _places(grid)])


def sincos_table_3d(
    grid: tuple[int, int, int], dim: int, *, spatial_scale: float = 1.0, temporal_scale: float = 1.0
) -> Array:
    wide, short = dim * 3 // 8, dim // 4
    rows = []
    for frame, y, x in _places(grid):
        rows.append(_sines(frame / temporal_scale, short))
        rows[-1] += _sines(x / spatial_scale, wide) + _sines(y / spatial_scale, wide)
    return np.array(rows)


def axial_rope_table(positions: Array, widths: tuple[int, ...], theta: float = 10000.0) -> tuple[Array, Array]:
    angles = []
    for place in positions.tolist():
        each = zip(place, widths, strict=True)
        angles.append([p / theta ** (2 * i / n) for p, n in each for i in range(n // 2)])
    return np.vectorize(math.cos)(angles), np.vectorize(math.sin)(angles)
