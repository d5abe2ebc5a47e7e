"""The linear map, each output summed in one order: a row's result has the same bits alone, in a batch, in a prefill."""

from typing import Any

import ml_dtypes
import numpy as np

from gpu import device
from gpu.basics import gemv
from gpu.basics.linear_kernels import COLUMNS, ROWS, TILE_THREADS, WARPS, few_rows, tiled
from gpu.grid import blocks_for
from gpu.number import named
from gpu.registry import Variant
from refimpl.contract import Array, Float, kernel, op, require

__all__ = ["VARIANTS", "linear", "linear_into"]

_FEW = 8  # rows of x up to which weights are the traffic, and no tile is worth its barriers


@op
def linear(x: Float[Array, "T D"], w: Float[Array, "O D"], b: Float[Array, " O"] | None = None) -> Float[Array, "T O"]:
    """Rows of whole 16-byte words: a warp two outputs of up to 4 rows of x, sums in registers (gemv.cu).

    Else, up to 8 rows: one warp an output column, eight a block, sums in registers; x and w come straight from memory.
    More rows: 16 by 32 outputs a block of 512 threads, slabs of 64 columns of x and w as float32 in 12 KiB of shared
    memory; a lane of a warp holds partial sums of 8 by 4 outputs in registers, and folds them at the end.
    """
    _check(x, w, b)
    y = device.empty((len(x), len(w)), x.dtype)
    linear_into(y, device.array(x), device.array(w), None if b is None else device.array(b))
    return y


@kernel
def linear_into(
    y: Float[Array, "T O"], x: Float[Array, "T D"], w: Float[Array, "O D"], b: Float[Array, " O"] | None = None,
    residual: Float[Array, "T O"] | None = None,
) -> None:
    """Write x w^T + b + residual into ``y``, which may be ``residual``. Only these two must share a dtype."""
    _check(x, w, b)
    if y.dtype == x.dtype and gemv.gemv_takes(x, w, b):
        gemv.gemv_into(y, x, w, b, residual)
    else:
        _launch(y, x, w, b, residual, len(x) > _FEW)


def _check(x: Array, w: Array, b: Array | None) -> None:
    fits = x.ndim == w.ndim == 2 and x.shape[1] == w.shape[1]
    require(fits, "C1", f"x and w are matrices of one width, got shapes {x.shape} and {w.shape}")
    require(b is None or b.shape == w.shape[:1], "C2", f"b has shape {b is not None and b.shape}, not {w.shape[:1]}")


def _linear(x: Array, w: Array, b: Array | None, is_tiled: bool) -> Array:
    _check(x, w, b)
    y = device.empty((len(x), len(w)), x.dtype)
    _launch(y, device.array(x), device.array(w), None if b is None else device.array(b), None, is_tiled)
    return y


def _launch(y: Array, x: Array, w: Array, b: Array | None, residual: Array | None, is_tiled: bool) -> None:
    b = w.reshape(-1)[:0] if b is None else b
    residual = y[:0] if residual is None else residual
    dtypes = named(y), named(x), named(w), named(b)
    T, width = y.shape
    if y.size == 0:
        return
    if is_tiled:
        grid = blocks_for(width, COLUMNS), blocks_for(T, ROWS)
        device.launch(tiled(*dtypes), grid, TILE_THREADS, y, x, w, b, residual)
    else:
        rows = 1 if T == 1 else 4
        grid = blocks_for(width, WARPS), blocks_for(T, rows)
        device.launch(few_rows(*dtypes, rows), grid, 32 * WARPS, y, x, w, b, residual)


def _workload(T: int) -> dict[str, Any]:
    draw = np.random.default_rng(0).standard_normal
    return {name: draw((rows, 1024)).astype(ml_dtypes.bfloat16) for name, rows in (("x", T), ("w", 512))}


VARIANTS = (
    Variant("few", "linear", lambda x, w, b=None: _linear(x, w, b, False), lambda x, w, b=None: len(x) <= _FEW,
            lambda: _workload(1)),
    Variant("tiled", "linear", lambda x, w, b=None: _linear(x, w, b, True), lambda *_, **__: True,
            lambda: _workload(32)),
    *gemv.VARIANTS,
)  # fmt: skip
