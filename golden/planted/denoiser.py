"""Faults of the layers of denoisers, and of tables of positions on several axes."""

from typing import Any

import numpy as np

from golden.derive import denoiser
from golden.values import Array

__all__ = [
    "angles_in_float32", "axes_swapped", "base_ignored", "channels_in_other_order", "columns_first",
    "cosines_and_sines", "denominators_of_other_form", "deviation_unbiased", "eps_outside_root", "first_axis_last",
    "first_gate_for_all", "first_token_for_all", "frames_last", "gate_ignored", "gate_of_stream", "gate_plus_one",
    "mean_taken_once", "odd_end_repeated", "one_frequency_for_all_axes", "patch_transposed", "scale_without_one",
    "shift_and_scale_swapped", "timesteps_as_they_are", "unpatched_columns_first", "unpatched_in_other_order",
    "unpatched_transposed", "whole_timesteps",
]  # fmt: skip


def cosines_and_sines(timesteps: Array, dim: int, *, flip_sin_to_cos: bool = False, **keywords: Any) -> Array:
    """What should come first comes second."""
    return denoiser.timestep_embedding(timesteps, dim, flip_sin_to_cos=not flip_sin_to_cos, **keywords)


def denominators_of_other_form(
    timesteps: Array, dim: int, *, downscale_freq_shift: float = 1.0, **keywords: Any
) -> Array:
    """Half for half - 1, and the other way."""
    return denoiser.timestep_embedding(timesteps, dim, downscale_freq_shift=1 - downscale_freq_shift, **keywords)


def timesteps_as_they_are(timesteps: Array, dim: int, *, scale: float = 1.0, **keywords: Any) -> Array:
    """Timesteps in 0..1 are not brought to 0..1000."""
    return denoiser.timestep_embedding(timesteps, dim, **keywords)


def whole_timesteps(timesteps: Array, dim: int, **keywords: Any) -> Array:
    """Timesteps between two whole numbers are cut."""
    return denoiser.timestep_embedding(np.floor(timesteps.astype(np.float64)), dim, **keywords)


def angles_in_float32(timesteps: Array, dim: int, **keywords: Any) -> Array:
    """Angles lose their fraction to float32."""
    half = dim // 2
    w = np.float32(10000.0) ** (-np.arange(half, dtype=np.float32) / np.float32(half - 1))
    angles = timesteps.astype(np.float32)[:, None] * w
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1)


def odd_end_repeated(timesteps: Array, dim: int, **keywords: Any) -> Array:
    """An odd width ends in the last value once more."""
    y = denoiser.timestep_embedding(timesteps, dim, **keywords)
    return np.concatenate([y[:, :-1], y[:, -2:-1]], axis=1)


def _widened(*arrays: Array) -> list[Array]:
    return [x.astype(np.float64) for x in arrays]


def scale_without_one(x: Array, shift: Array, scale: Array, eps: float = 1e-6) -> Array:
    """Times scale, not 1 + scale."""
    x, shift, scale = _widened(x, shift, scale)
    return denoiser.adaln(x, shift, scale - 1, eps)


def shift_and_scale_swapped(x: Array, shift: Array, scale: Array, eps: float = 1e-6) -> Array:
    """The scale is read as the shift."""
    x, shift, scale = _widened(x, shift, scale)
    return denoiser.adaln(x, scale, shift, eps)


def deviation_unbiased(x: Array, shift: Array, scale: Array, eps: float = 1e-6) -> Array:
    """The variance is divided by one less."""
    x, shift, scale = _widened(x, shift, scale)
    deviation = np.sqrt(x.var(-1, ddof=1, keepdims=True) + eps)
    return (x - x.mean(-1, keepdims=True)) / deviation * (1 + scale) + shift


def eps_outside_root(x: Array, shift: Array, scale: Array, eps: float = 1e-6) -> Array:
    """eps is added to the deviation."""
    x, shift, scale = _widened(x, shift, scale)
    return (x - x.mean(-1, keepdims=True)) / (x.std(-1, keepdims=True) + eps) * (1 + scale) + shift


def mean_taken_once(x: Array, shift: Array, scale: Array, eps: float = 1e-6) -> Array:
    """The rounding of a large mean stays in every value."""
    rows = x.astype(np.float32)
    rows = rows - rows.mean(-1, keepdims=True)
    return rows / np.sqrt((rows * rows).mean(-1, keepdims=True) + np.float32(eps)) * (1 + scale) + shift


def first_token_for_all(x: Array, shift: Array, scale: Array, eps: float = 1e-6) -> Array:
    """All tokens are told what the first one is told."""
    x, shift, scale = _widened(x, shift, scale)
    return denoiser.adaln(x, shift[0], scale[0], eps)


def gate_plus_one(x: Array, y: Array, gate: Array) -> Array:
    """Times 1 + gate, as scales are."""
    x, y, gate = _widened(x, y, gate)
    return x + (1 + gate) * y


def gate_of_stream(x: Array, y: Array, gate: Array) -> Array:
    """The gate acts on the stream."""
    x, y, gate = _widened(x, y, gate)
    return gate * x + y


def gate_ignored(x: Array, y: Array, gate: Array) -> Array:
    """A plain residual."""
    return x.astype(np.float64) + y


def first_gate_for_all(x: Array, y: Array, gate: Array) -> Array:
    """All tokens have the gate of the first one."""
    return denoiser.gated_residual(*_widened(x, y, gate[0]))


def channels_in_other_order(x: Array, patch: Any, *, channels_last: bool = False) -> Array:
    """Channels stand first where they should be last, and last where they should be first."""
    return denoiser.patchify(x, patch, channels_last=not channels_last)


def columns_first(x: Array, patch: Any, *, channels_last: bool = False) -> Array:
    """Tokens follow one another down a column."""
    tokens = denoiser.patchify(x, patch, channels_last=channels_last)
    rows, columns = x.shape[-2] // patch[-2], x.shape[-1] // patch[-1]
    return tokens.reshape(-1, rows, columns, tokens.shape[1]).swapaxes(1, 2).reshape(tokens.shape)


def patch_transposed(x: Array, patch: Any, *, channels_last: bool = False) -> Array:
    """Values of a patch run down its columns."""
    tokens = denoiser.patchify(x, patch, channels_last=channels_last)
    inner = (*patch, len(x)) if channels_last else (len(x), *patch)
    split = tokens.reshape(len(tokens), *inner)
    last = split.ndim - (2 if channels_last else 1)
    return split.swapaxes(last - 1, last).reshape(tokens.shape)


def frames_last(x: Array, patch: Any, *, channels_last: bool = False) -> Array:
    """Tokens of one place follow one another through the frames."""
    tokens = denoiser.patchify(x, patch, channels_last=channels_last)
    return tokens.reshape(x.shape[1] // patch[0], -1, tokens.shape[1]).swapaxes(0, 1).reshape(tokens.shape)


def unpatched_in_other_order(x: Array, grid: Any, patch: Any, *, channels_last: bool = False) -> Array:
    """Channels are read first where they stand last, and last where they stand first."""
    return denoiser.unpatchify(x, grid, patch, channels_last=not channels_last)


def unpatched_columns_first(x: Array, grid: Any, patch: Any, *, channels_last: bool = False) -> Array:
    """Tokens are laid down column by column."""
    order = np.arange(len(x)).reshape(-1, grid[-1], grid[-2]).swapaxes(1, 2).reshape(-1)
    return denoiser.unpatchify(x[order], grid, patch, channels_last=channels_last)


def unpatched_transposed(x: Array, grid: Any, patch: Any, *, channels_last: bool = False) -> Array:
    """The picture stands on its side: rows and columns of each channel are swapped, then cut to its shape."""
    y = denoiser.unpatchify(x, grid, patch, channels_last=channels_last)
    return y.swapaxes(-1, -2).reshape(y.shape)


def _sines(positions: Array, dim: int) -> Array:
    angles = positions[:, None] * 10000.0 ** (-np.arange(dim // 2) / (dim / 2))
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1)


def axes_swapped(grid: Any, dim: int, *, base_size: Any = None, interpolation_scale: float = 1.0) -> Array:
    """The row is told first, as the grid has it."""
    scales = [1 if base_size is None else n / base_size for n in grid]
    y, x = (places.reshape(-1) / s / interpolation_scale for places, s in zip(np.indices(grid), scales, strict=True))
    return np.concatenate([_sines(y, dim // 2), _sines(x, dim // 2)], axis=1)


def base_ignored(grid: Any, dim: int, **_: Any) -> Array:
    """Positions count patches, whatever the size that the network knows."""
    y, x = (places.reshape(-1) for places in np.indices(grid))
    return np.concatenate([_sines(x, dim // 2), _sines(y, dim // 2)], axis=1)


def first_axis_last(grid: Any, dim: int, *, spatial_scale: float = 1.0, temporal_scale: float = 1.0) -> Array:
    """The frame is told behind the place."""
    frame, y, x = (places.reshape(-1) for places in np.indices(grid))
    places = [_sines(each / spatial_scale, dim // 8 * 3) for each in (x, y)]
    return np.concatenate([*places, _sines(frame / temporal_scale, dim // 4)], axis=1)


def one_frequency_for_all_axes(positions: Array, widths: Any, theta: float = 10000.0) -> tuple[Array, Array]:
    """Frequencies run through the whole head, not anew on each axis."""
    w = theta ** (-np.arange(sum(widths) // 2) / (sum(widths) / 2))
    angles = positions[:, np.repeat(np.arange(len(widths)), [n // 2 for n in widths])] * w
    return np.cos(angles), np.sin(angles)
