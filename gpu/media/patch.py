"""Patches: one thread an element that is written; a picture is a video of one frame."""

import math
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np

from gpu import device
from gpu.grid import blocks_for
from gpu.media.denoiser_kernels import THREADS, patchify_kernel, unpatchify_kernel
from gpu.number import named
from gpu.registry import Variant
from refimpl.basics.conv import are_whole
from refimpl.contract import Array, Float, kernel, op, require

__all__ = ["VARIANTS", "patchify", "patchify_into", "unpatchify", "unpatchify_into"]

Sides: TypeAlias = tuple[int, ...]


@op
def patchify(x: Float[Array, "C ..."], patch: tuple[int, ...], *, channels_last: bool = False) -> Float[Array, "T D"]:
    """One thread an element of a token, blocks of 256; writes are in a row, reads are as long as a patch is broad."""
    fits = x.ndim in (3, 4) and are_whole(patch, (x.ndim - 1,), 1)
    require(fits, "C1", f"[C Y X] or [C frames Y X] and a patch from 1 for each axis, not {x.shape} and {patch}")
    sides = tuple(int(p) for p in patch)
    even = all(n % p == 0 for n, p in zip(x.shape[1:], sides, strict=True))
    require(even, "C2", f"patches of {sides} do not divide the sizes {x.shape[1:]}")
    count = math.prod(n // p for n, p in zip(x.shape[1:], sides, strict=True))
    out = device.empty((count, len(x) * math.prod(sides)), x.dtype)
    patchify_into(out, device.array(x), sides, channels_last=channels_last)
    return out


@kernel
def patchify_into(
    out: Float[Array, "T D"], x: Float[Array, "C ..."], patch: tuple[int, ...], *, channels_last: bool = False
) -> None:
    """Write the patches of ``x`` into ``out``."""
    made = patchify_kernel(named(x), bool(channels_last))
    if out.size:
        video, sides = x.reshape(_as_video(x.shape, 1)), _as_video(tuple(patch), 0)
        device.launch(made, blocks_for(out.size, THREADS), THREADS, out, video, *sides)


@op
def unpatchify(
    x: Float[Array, "T D"], grid: tuple[int, ...], patch: tuple[int, ...], *, channels_last: bool = False
) -> Float[Array, "C ..."]:
    """One thread an element of the picture, blocks of 256; writes are in a row."""
    fits = any(are_whole(grid, (axes,), 1) and are_whole(patch, (axes,), 1) for axes in (2, 3))
    require(fits, "C1", f"grid {grid} and patch {patch} are not 2 or 3 whole numbers from 1 each")
    sizes, sides = [int(n) for n in grid], tuple(int(p) for p in patch)
    count, each = math.prod(sizes), math.prod(sides)
    fits = x.ndim == 2 and len(x) == count and x.shape[1] > 0 and x.shape[1] % each == 0
    require(fits, "C2", f"{count} tokens whose width {each} divides, not {x.shape}, for grid {grid} and patch {patch}")
    places = (n * p for n, p in zip(sizes, sides, strict=True))
    out = device.empty((x.shape[1] // each, *places), x.dtype)
    unpatchify_into(out, device.array(x), sides, channels_last=channels_last)
    return out


@kernel
def unpatchify_into(
    out: Float[Array, "C ..."], x: Float[Array, "T D"], patch: tuple[int, ...], *, channels_last: bool = False
) -> None:
    """Write the picture of the patches ``x`` into ``out``."""
    made = unpatchify_kernel(named(x), bool(channels_last))
    if out.size:
        video, sides = out.reshape(_as_video(out.shape, 1)), _as_video(tuple(patch), 0)
        device.launch(made, blocks_for(out.size, THREADS), THREADS, video, x, *sides)


def _as_video(sizes: Sides, place: int) -> Sides:
    """Give a picture's sizes, or a patch's, an axis of one frame."""
    return sizes if len(sizes) == place + 3 else (*sizes[:place], 1, *sizes[place:])


def _picture() -> dict[str, Any]:
    return {"x": np.random.default_rng(0).standard_normal((4, 64, 64), np.float32), "patch": (2, 2)}


def _tokens() -> dict[str, Any]:
    x = np.random.default_rng(0).standard_normal((1024, 16)).astype(ml_dtypes.bfloat16)
    return {"x": x, "grid": (32, 32), "patch": (2, 2), "channels_last": True}


VARIANTS = tuple(
    Variant("numba", f.__name__, f, lambda *_, **__: True, workload)
    for f, workload in ((patchify, _picture), (unpatchify, _tokens))
)
