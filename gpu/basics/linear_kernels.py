"""The kernels behind ``gpu.basics.linear``, each made once for the dtypes of y, x, w and b.

Both sum in one order: lane l of a warp takes the terms d = l, l + 32, l + 64 ... by fused multiply-adds, and the 32
sums are added in a butterfly. Where b or the residual is absent, an empty array stands for it.
"""

from functools import cache
from typing import Any

from gpu.compile import Kernel, device_function, numba_kernel
from gpu.number import read, storage, write
from refimpl.contract import host

__all__ = ["COLUMNS", "ROWS", "TILE_THREADS", "WARPS", "few_rows", "finish_output", "tile_sums", "tiled"]

WARPS = 8
"""Of a block of the kernel for few rows; each computes one column of y."""
ROWS, COLUMNS = 16, 32
"""Of y that a block of the tiled kernel computes."""
_TALL, _WIDE, _VALUES = 8, 4, 32  # what one of its warps computes: a value for every lane in the end
_SLAB = 64  # the part of D that is in shared memory
TILE_THREADS = ROWS * COLUMNS
_STEP = TILE_THREADS // _SLAB


@host
@cache
def few_rows(y_dtype: str, x_dtype: str, w_dtype: str, b_dtype: str, rows: int) -> Kernel:
    """Return the kernel in which a warp reads one row of w once for ``rows`` rows of x."""
    from numba import cuda, float32, uint64

    from gpu.warp import block, lane, warp, warp_sum

    wide_x, wide_w, finish = read(x_dtype), read(w_dtype), finish_output(y_dtype, b_dtype)

    @numba_kernel(*_types(y_dtype, x_dtype, w_dtype, b_dtype), name=f"linear[{x_dtype}, {w_dtype}] {rows} rows")
    def linear_few(y, x, w, b, residual):
        T, D = uint64(x.shape[0]), uint64(x.shape[1])
        o, top = block() * uint64(WARPS) + warp(), uint64(cuda.blockIdx.y) * uint64(rows)
        if o >= uint64(w.shape[0]):
            return
        sums = cuda.local.array(rows, float32)
        for r in range(rows):
            sums[r] = float32(0)
        d = lane()
        while d < D:
            weight = wide_w(w[o, d])
            for r in range(rows):
                sums[r] = cuda.fma(wide_x(x[min(top + uint64(r), T - uint64(1)), d]), weight, sums[r])
            d += uint64(32)
        for r in range(rows):
            total = warp_sum(sums[r])
            if lane() == uint64(r):
                finish(y, b, residual, top + uint64(r), o, total)

    return linear_few


@host
@cache
def tiled(y_dtype: str, x_dtype: str, w_dtype: str, b_dtype: str) -> Kernel:
    """Return the kernel in which 16 warps share slabs of x and w; each warp computes 8 rows by 4 columns of y."""
    from numba import cuda, uint64

    from gpu.warp import block

    sum_tile, finish = tile_sums(x_dtype, w_dtype), finish_output(y_dtype, b_dtype)

    @numba_kernel(
        *_types(y_dtype, x_dtype, w_dtype, b_dtype), name=f"linear[{x_dtype}, {w_dtype}] tiled",
        launch_bounds=(TILE_THREADS, 2),
    )
    def linear_tiled(y, x, w, b, residual):
        top, left = uint64(cuda.blockIdx.y) * uint64(ROWS), block() * uint64(COLUMNS)
        t, o, total = sum_tile(x, w, top, left)
        finish(y, b, residual, t, o, total)

    return linear_tiled


@host
@cache
def tile_sums(x_dtype: str, w_dtype: str) -> Any:
    """Return the function with which a block sums a tile of x w^T; each lane gets the place of one sum, and the sum."""
    from numba import cuda, float32, uint64

    from gpu.warp import lane, warp

    stage_x, stage_w, fold, across = _stage(x_dtype, ROWS), _stage(w_dtype, COLUMNS), _fold(), COLUMNS // _WIDE

    @device_function
    def tile_sums(x, w, top, left):
        row, column = warp() // uint64(across) * uint64(_TALL), warp() % uint64(across) * uint64(_WIDE)
        slab_x = cuda.shared.array((ROWS, _SLAB), float32)
        slab_w = cuda.shared.array((COLUMNS, _SLAB), float32)
        sums, weights = cuda.local.array(_VALUES, float32), cuda.local.array(_WIDE, float32)
        for v in range(_VALUES):
            sums[v] = float32(0)
        start = uint64(0)
        while start < uint64(x.shape[1]):
            stage_x(slab_x, x, top, start)
            stage_w(slab_w, w, left, start)
            cuda.syncthreads()
            for part in range(_SLAB // 32):
                d = lane() + uint64(32 * part)
                for c in range(_WIDE):
                    weights[c] = slab_w[column + uint64(c), d]
                for r in range(_TALL):
                    value = slab_x[row + uint64(r), d]
                    for c in range(_WIDE):
                        sums[_WIDE * r + c] = cuda.fma(value, weights[c], sums[_WIDE * r + c])
            cuda.syncthreads()
            start += uint64(_SLAB)
        total = fold(sums)
        return top + row + lane() // uint64(_WIDE), left + column + lane() % uint64(_WIDE), total

    return tile_sums


def _types(y_dtype: str, x_dtype: str, w_dtype: str, b_dtype: str) -> tuple[str, ...]:
    matrices = [f"{storage(dtype)}[:, ::1]" for dtype in (y_dtype, x_dtype, w_dtype)]
    return (*matrices, f"{storage(b_dtype)}[::1]", matrices[0])


def _stage(dtype: str, rows: int) -> Any:
    """Return the function with which a block of the tiled kernel copies a slab, zeros standing beyond the matrix."""
    from numba import float32, uint64

    from gpu.warp import thread

    wide = read(dtype)

    @device_function
    def stage(slab, matrix, top, start):
        r, d = thread() // uint64(_SLAB), thread() % uint64(_SLAB)
        for step in range(rows // _STEP):
            at = r + uint64(step * _STEP)
            inside = top + at < uint64(matrix.shape[0]) and start + d < uint64(matrix.shape[1])
            slab[at, d] = wide(matrix[top + at, start + d]) if inside else float32(0)

    return stage


@cache
def _fold() -> Any:
    """Return the function that adds up 32 values over a warp with 31 shuffles: lane v gets the sum of value v.

    A shuffle pairs the lanes that a butterfly would; each gives away the half of its values that the other keeps.
    """
    halve_16, halve_8, halve_4, halve_2, halve_1 = (_halve(count) for count in (16, 8, 4, 2, 1))

    @device_function
    def fold(sums):
        halve_16(sums)
        halve_8(sums)
        halve_4(sums)
        halve_2(sums)
        halve_1(sums)
        return sums[0]

    return fold


def _halve(count: int) -> Any:
    from numba import cuda, uint64

    from gpu.warp import ALL, lane

    @device_function
    def halve(sums):
        is_upper = lane() & uint64(count) != uint64(0)
        for v in range(count):
            low, high = sums[v], sums[v + count]  # by value, or the array leaves the registers
            given, kept = (low, high) if is_upper else (high, low)
            sums[v] = kept + cuda.shfl_xor_sync(ALL, given, count)

    return halve


@host
@cache
def finish_output(y_dtype: str, b_dtype: str) -> Any:
    """Return the function that adds bias and residual, where there are any, and writes one output."""
    from numba import uint64

    wide_b, wide_y, narrow = read(b_dtype), read(y_dtype), write(y_dtype)

    @device_function
    def finish(y, b, residual, t, o, total):
        if t < uint64(y.shape[0]) and o < uint64(y.shape[1]):
            if o < uint64(b.size):
                total += wide_b(b[o])
            if t < uint64(residual.shape[0]):
                total += wide_y(residual[t, o])
            y[t, o] = narrow(total)

    return finish
