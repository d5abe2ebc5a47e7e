"""Pictures and videos as tokens: patches, and where they stand: tables of sines, and of rotations on several axes."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from refimpl.basics.conv import are_whole
from refimpl.contract import Array, Float, Int, UsageError, host, op, require

__all__ = [
    "axial_rope_table", "grid_of", "grid_positions", "patchify", "rope_widths", "sincos_table_2d", "sincos_table_3d",
    "unpatchify",
]  # fmt: skip


@op
def patchify(x: Float[Array, "C ..."], patch: tuple[int, ...], *, channels_last: bool = False) -> Float[Array, "T D"]:
    """Cut a picture [C Y X] or a video [C frames Y X] into patches, each the values of one token.

    Tokens follow one another as places do, X fastest. A linear map of these tokens is a convolution whose stride is its
    kernel: w [outputs, C, py, px] as a matrix of ``outputs`` rows.

    Math: y[t] = x[c, u py + i, v px + j] for t = (u, v), its values ordered by (c, i, j), or by (i, j, c) if
        channels_last; a video has frames before the rows.
    Cost: no flop; one read and one write: bound by memory, and on a GPU fused with what reads it.
    Numerics: a copy, exact in every dtype.
    Constraints:
        (C1) x is [C Y X] or [C frames Y X], and patch holds a whole number from 1 for each axis of places.
        (C2) the patch divides the sizes.
    Source: Dosovitskiy et al., ViT, 2020; Peebles, Xie, DiT, 2022.

    >>> patchify(np.arange(8.0).reshape(1, 2, 4), (2, 2))
    array([[0., 1., 4., 5.],
           [2., 3., 6., 7.]])
    """
    fits = x.ndim in (3, 4) and are_whole(patch, (x.ndim - 1,), 1)
    require(fits, "C1", f"[C Y X] or [C frames Y X] and a patch from 1 for each axis, not {x.shape} and {patch}")
    grid, sides = [n // p for n, p in zip(x.shape[1:], patch, strict=True)], [int(p) for p in patch]
    even = all(n % p == 0 for n, p in zip(x.shape[1:], sides, strict=True))
    require(even, "C2", f"patches of {tuple(sides)} do not divide the sizes {x.shape[1:]}")
    split = x.reshape(len(x), *(n for pair in zip(grid, sides, strict=True) for n in pair))
    places, inner = range(1, 2 * len(grid), 2), range(2, 2 * len(grid) + 1, 2)
    order = (*places, *inner, 0) if channels_last else (*places, 0, *inner)
    return split.transpose(order).reshape(int(np.prod(grid)), len(x) * int(np.prod(sides)))


@op
def unpatchify(
    x: Float[Array, "T D"], grid: tuple[int, ...], patch: tuple[int, ...], *, channels_last: bool = False
) -> Float[Array, "C ..."]:
    """Put tokens together to a picture [C Y X], or a video [C frames Y X]: patchify undone.

    Math: the y of patchify(y, patch) = x, for as many patches on each axis as grid says.
    Cost: no flop; one read and one write: bound by memory.
    Numerics: a copy, exact in every dtype.
    Constraints:
        (C1) grid and patch hold 2 or 3 whole numbers from 1 each.
        (C2) x has a row for each place of the grid, and the patch divides its width.
    Source: Peebles, Xie, DiT, 2022, section 3.2, where channels come last.

    >>> unpatchify(np.array([[0.0, 1.0, 4.0, 5.0], [2.0, 3.0, 6.0, 7.0]]), (1, 2), (2, 2))
    array([[[0., 1., 2., 3.],
            [4., 5., 6., 7.]]])
    """
    fits = any(are_whole(grid, (axes,), 1) and are_whole(patch, (axes,), 1) for axes in (2, 3))
    require(fits, "C1", f"grid {grid} and patch {patch} are not 2 or 3 whole numbers from 1 each")
    sizes, sides = [int(n) for n in grid], [int(p) for p in patch]
    count, each, axes = int(np.prod(sizes, dtype=object)), int(np.prod(sides, dtype=object)), len(sizes)
    fits = x.ndim == 2 and len(x) == count and x.shape[1] > 0 and x.shape[1] % each == 0
    require(fits, "C2", f"{count} tokens whose width {each} divides, not {x.shape}, for grid {grid} and patch {patch}")
    inner = (*sides, x.shape[1] // each) if channels_last else (x.shape[1] // each, *sides)
    split, first = x.reshape(*sizes, *inner), axes + (0 if channels_last else 1)
    channel = 2 * axes if channels_last else axes
    order = (channel, *(place for axis in range(axes) for place in (axis, first + axis)))
    return split.transpose(order).reshape(-1, *(n * p for n, p in zip(sizes, sides, strict=True)))


@host
def grid_of(shape: tuple[int, ...], patch: tuple[int, ...]) -> tuple[int, ...]:
    """Return how many patches lie on each axis of a picture [C Y X] or a video.

    >>> grid_of((4, 8, 6), (2, 2))
    (4, 3)
    """
    return tuple(n // p for n, p in zip(shape[1:], patch, strict=True))


@host
def grid_positions(grid: tuple[int, ...]) -> Int[Array, "T axes"]:
    """Return where each token stands on each axis, in the order of patchify.

    >>> grid_positions((1, 2)).tolist()
    [[0, 0], [0, 1]]
    """
    return np.stack([each.reshape(-1) for each in np.indices(grid)], axis=-1)


def _waves(positions: Array, dim: int, theta: float = 10000.0) -> Array:
    """Return sines, then cosines, of positions [T] at dim / 2 frequencies, in float64."""
    angles = positions[:, None] * theta ** (-np.arange(dim // 2) / (dim / 2))
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1)


@host
def sincos_table_2d(
    grid: tuple[int, int], dim: int, *, base_size: int | None = None, interpolation_scale: float = 1.0,
    dtype: Any = np.float32,
) -> Float[Array, "T D"]:
    """Tabulate where the patches of a picture stand, for ``learned_position`` to add.

    The first half of a token's values says where it stands in its row (X), the second which row that is (Y): DiT has
    them so. With ``base_size``, a larger grid is squeezed into the range that the network was trained on.

    Math: [sin(p w), cos(p w)] for p = x, then for p = y; w[i] = 10000^(-4 i / dim), x = column base_size / columns /
        interpolation_scale, likewise y; without base_size, base_size / columns is 1.
    Source: Dosovitskiy et al., ViT, 2020; Peebles, Xie, DiT, 2022; interpolation: Chen et al., PixArt-alpha, 2023.

    >>> sincos_table_2d((1, 2), 4).round(3)
    array([[0.   , 1.   , 0.   , 1.   ],
           [0.841, 0.54 , 0.   , 1.   ]], dtype=float32)
    """
    if dim < 4 or dim % 4:
        raise UsageError(f"a table of two axes has a width that 4 divides, not {dim}")
    squeezed = [1 if base_size is None else n / base_size for n in grid]
    row, column = (grid_positions(grid) / squeezed / interpolation_scale).T
    return np.concatenate([_waves(column, dim // 2), _waves(row, dim // 2)], axis=1).astype(dtype)


@host
def sincos_table_3d(
    grid: tuple[int, int, int], dim: int, *, spatial_scale: float = 1.0, temporal_scale: float = 1.0,
    dtype: Any = np.float32,
) -> Float[Array, "T D"]:
    """Tabulate where the patches of a video stand: a quarter of the values for the frame, the others as in a picture.

    Source: Yang et al., CogVideoX, 2024.

    >>> sincos_table_3d((2, 1, 1), 16)[:, :4].round(3)
    array([[0.   , 0.   , 1.   , 1.   ],
           [0.841, 0.01 , 0.54 , 1.   ]], dtype=float32)
    """
    if dim < 16 or dim % 16:
        raise UsageError(f"a table of three axes has a width that 16 divides, not {dim}")
    frames = _waves(np.arange(grid[0]) / temporal_scale, dim // 4)
    places = sincos_table_2d(grid[1:], dim // 4 * 3, interpolation_scale=spatial_scale, dtype=np.float64)
    each = frames.repeat(len(places), axis=0), np.tile(places, (grid[0], 1))
    return np.concatenate(each, axis=1).astype(dtype)


@host
def rope_widths(head_dim: int, axes: int) -> tuple[int, ...]:
    """Split a head among the axes of a picture or video, evenly in pairs; the first axis takes what is left (Wan).

    >>> rope_widths(128, 3), rope_widths(64, 2)
    ((44, 42, 42), (32, 32))
    """
    each = 2 * (head_dim // (2 * axes))
    return head_dim - (axes - 1) * each, *[each] * (axes - 1)


@host
def axial_rope_table(
    positions: Int[Array, "T axes"], widths: Sequence[int], theta: float = 10000.0, dtype: Any = np.float32
) -> tuple[Float[Array, "T J"], Float[Array, "T J"]]:
    """Tabulate the rotations of tokens that stand on several axes, for ``rope`` to turn by: each axis its own pairs.

    The models that have it pair neighbours: ``rope(..., interleaved=True)``. Text beside a picture stands at 0 (Flux).

    Math: pair i of an axis of width n turns by its position times theta^(-2 i / n); the axes stand side by side.
    Source: Su et al., 2021; Black Forest Labs, Flux, 2024; Wan Team, Wan, 2025.

    >>> cos, sin = axial_rope_table(grid_positions((1, 2)), (2, 2))
    >>> sin.round(3)
    array([[0.   , 0.   ],
           [0.   , 0.841]], dtype=float32)
    """
    if len(widths) != positions.shape[1] or any(n < 0 or n % 2 for n in widths):
        raise UsageError(f"widths {tuple(widths)} are not an even one for each of {positions.shape[1]} axes")
    each = [p[:, None] * theta ** (-np.arange(n // 2) / (n / 2)) for p, n in zip(positions.T, widths, strict=True) if n]
    angles = np.concatenate(each, axis=1)
    return np.cos(angles).astype(dtype), np.sin(angles).astype(dtype)
