"""The draw, one block a row of probabilities."""

import math
from functools import cache
from typing import Any

import numpy as np

from gpu import device
from gpu.compile import Kernel, numba_kernel
from gpu.grid import threads_for
from gpu.number import DTYPES, named, read, storage
from gpu.registry import Variant
from refimpl.contract import Array, Float, Int, kernel, op, require

__all__ = ["VARIANTS", "draw", "draw_into"]

_NONE = -2  # in place of a token: nothing can be drawn


@op
def draw(probs: Float[Array, " V"], u: float) -> int:
    """One block a row: the largest; the sums of 256 chunks, in shared memory; one warp finds the chunk and walks it."""
    require(0 <= u < 1, "C1", f"u is in [0, 1), got {u}")
    require(probs.ndim == 1, "C2", f"probabilities are one row, got shape {probs.shape}")
    rows, ids = device.array(probs)[None], device.empty(1, np.int32)
    if probs.size:
        draw_into(ids, rows, device.array(np.array([int(u * 2**53)], np.uint64)))
    drawn = int(device.to_host(ids)[0]) if probs.size else _NONE
    require(drawn != _NONE, "C2", "probabilities are finite and not negative, and one is positive")
    return drawn


@kernel
def draw_into(ids: Int[Array, " R"], probs: Float[Array, "R V"], units: Int[Array, " R"]) -> None:
    """Draw one token of each row by noise in units of 2^-53, uint64; -2 where nothing can be drawn.

    An id is a function of its row and its noise alone.
    """
    rows, V = probs.shape
    device.launch(_draw(named(probs)), rows, threads_for(V), ids, probs, units)


@cache
def _draw(dtype: str) -> Kernel:
    from numba import cuda, float32, int32, int64, uint16, uint64

    from gpu.compile import device_function
    from gpu.select import BINS, block_min, fold, key, share_of, sum_chunks, take_place, total
    from gpu.warp import block, thread, warp

    held, wide, rank = storage(dtype), read(dtype), key(dtype)
    zero = float32(0) if dtype == "float32" else uint16(0)

    @device_function
    def power(exponent):
        return cuda.libdevice.int_as_float(int32(exponent + int32(127)) << int32(23))

    @device_function
    def weight(context, i):
        probs, some, more = context
        return cuda.libdevice.float2ll_rn(wide(probs[i]) * some * more)

    @device_function
    def widest(state, i, number, _):
        place = rank(number)
        return min(state[0], place << uint64(32) | i), max(state[1], place)

    sum_all, take, ends = sum_chunks(weight), take_place(weight), fold(widest)

    @numba_kernel("int32[::1]", f"{held}[:, ::1]", "uint64[::1]", name=f"draw[{dtype}]")
    def draw(ids, probs, units):
        sums, found = cuda.shared.array(BINS, int64), cuda.shared.array(2, int64)
        row = probs[block()]
        best, highest = ends((~uint64(0), uint64(0)), row, row)
        largest = wide(row[block_min(best) & uint64(0xFFFFFFFF)])
        negative = ~block_min(~highest) > rank(zero)
        if negative or not float32(0) < largest < float32(math.inf):
            if thread() == uint64(0):
                ids[block()] = int32(_NONE)
            return
        exponent = int32(39) - cuda.libdevice.ilogbf(largest)  # in two factors: alone, its power of 2 may be infinite
        some, more = power(exponent >> int32(1)), power(exponent - (exponent >> int32(1)))
        context = (row, some, more)
        sum_all(context, uint64(row.size), sums)
        cuda.syncthreads()
        if warp() == uint64(0):
            take(context, uint64(row.size), sums, share_of(units[block()], total(sums), uint64(0)), found)
            if thread() == uint64(0):
                ids[block()] = int32(found[0])

    return draw


def _workload() -> dict[str, Any]:
    probs = np.random.default_rng(0).random(32000).astype(np.float32)
    return {"probs": probs / probs.sum(), "u": 0.5}


VARIANTS = (Variant("numba", "draw", draw, lambda probs, u: str(probs.dtype) in DTYPES, _workload),)
