"""Draws, one block a row of probabilities."""

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

__all__ = ["VARIANTS", "draw", "draw_into", "draw_race", "draw_race_into"]

_NONE = -2  # in place of a token: nothing can be drawn


@op
def draw(probs: Float[Array, " V"], u: float) -> int:
    """One block a row: the largest; the sums of 256 chunks, in shared memory; one warp finds the chunk and walks it."""
    require(0 <= u < 1, "C1", f"u is in [0, 1), got {u}")
    require(probs.ndim == 1, "C2", f"probabilities are one row, got shape {probs.shape}")
    rows, ids = device.array(probs)[None], device.empty(1, np.int32)
    if probs.size:
        draw_into(ids, rows, device.array(np.array([int(float(u) * 2**53)], np.uint64)))
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


@op
def draw_race(probs: Float[Array, " V"], noise: Float[Array, " V"]) -> int:
    """One block a row: the least of the times, the bits of a float64, which order them; of equals the least index."""
    require(probs.ndim == 1, "C2", f"probabilities are one row, got shape {probs.shape}")
    times = device.to_host(noise).astype(np.float64)
    timed = times.shape == probs.shape and bool((times >= 0).all()) and bool(np.isfinite(times).all())
    require(timed, "C1", f"noise is {probs.shape} finite numbers, not negative, got shape {noise.shape}")
    rows, ids = device.array(probs)[None], device.empty(1, np.int32)
    if probs.size:
        draw_race_into(ids, rows, device.array(noise)[None])
    drawn = int(device.to_host(ids)[0]) if probs.size else _NONE
    require(drawn != _NONE, "C2", "probabilities are finite and not negative, and one is positive")
    return drawn


@kernel
def draw_race_into(ids: Int[Array, " R"], probs: Float[Array, "R V"], noise: Float[Array, "R V"]) -> None:
    """Draw one token of each row by a race, with noise of ``exponential_into``, float32; -2 where nothing can be drawn.

    An id is a function of its row and its noise alone.
    """
    rows, V = probs.shape
    device.launch(_race(named(probs), named(noise)), rows, threads_for(V), ids, probs, noise)


@cache
def _ends(dtype: str) -> tuple[Any, Any]:
    """Return the function with which a thread finds the ends of its elements of a row, and the one that judges a row.

    The ends are (key, index) of the largest as one number, and the key of the least.
    """
    from numba import float32, uint16, uint64

    from gpu.compile import device_function
    from gpu.select import fold, key

    rank, zero = key(dtype), float32(0) if dtype == "float32" else uint16(0)

    @device_function
    def widest(state, i, number, _):
        place = rank(number)
        return min(state[0], place << uint64(32) | i), max(state[1], place)

    @device_function
    def is_fair(largest, lowest):
        return lowest <= rank(zero) and float32(0) < largest < float32(math.inf)

    return fold(widest), is_fair


@cache
def _draw(dtype: str) -> Kernel:
    from numba import cuda, int32, int64, uint64

    from gpu.compile import device_function
    from gpu.select import BINS, block_min, share_of, sum_chunks, take_place, total
    from gpu.warp import block, thread, warp

    held, wide, (ends, is_fair) = storage(dtype), read(dtype), _ends(dtype)

    @device_function
    def power(exponent):
        return cuda.libdevice.int_as_float(int32(exponent + int32(127)) << int32(23))

    @device_function
    def weight(context, i):
        probs, some, more = context
        return cuda.libdevice.float2ll_rn(wide(probs[i]) * some * more)

    sum_all, take = sum_chunks(weight), take_place(weight)

    @numba_kernel("int32[::1]", f"{held}[:, ::1]", "uint64[::1]", name=f"draw[{dtype}]")
    def draw(ids, probs, units):
        sums, found = cuda.shared.array(BINS, int64), cuda.shared.array(2, int64)
        row = probs[block()]
        best, highest = ends((~uint64(0), uint64(0)), row, row)
        largest = wide(row[block_min(best) & uint64(0xFFFFFFFF)])
        if not is_fair(largest, ~block_min(~highest)):
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


@cache
def _race(dtype: str, noise_dtype: str) -> Kernel:
    from numba import cuda, float32, float64, int32, uint64

    from gpu.compile import device_function
    from gpu.select import block_min, fold
    from gpu.warp import block, thread

    held, wide, (ends, is_fair) = storage(dtype), read(dtype), _ends(dtype)
    wide_noise = read(noise_dtype)

    @device_function
    def sooner(state, i, number, noise):
        p = wide(number)
        if not p > float32(0):
            return state
        time = uint64(cuda.libdevice.double_as_longlong(float64(abs(wide_noise(noise[i]))) / float64(p)))
        return (time, i) if time < state[0] else state

    first = fold(sooner)

    @numba_kernel(
        "int32[::1]", f"{held}[:, ::1]", f"{storage(noise_dtype)}[:, ::1]", name=f"draw_race[{dtype}, {noise_dtype}]"
    )
    def draw_race(ids, probs, noise):
        row = probs[block()]
        best, highest = ends((~uint64(0), uint64(0)), row, row)
        largest = wide(row[block_min(best) & uint64(0xFFFFFFFF)])
        fair = is_fair(largest, ~block_min(~highest))
        time, i = first((~uint64(0), ~uint64(0)), row, noise[block()])
        earliest = block_min(time)
        winner = block_min(i if time == earliest else ~uint64(0))
        if thread() == uint64(0):
            ids[block()] = int32(winner) if fair else int32(_NONE)

    return draw_race


def _workload() -> dict[str, Any]:
    probs = np.random.default_rng(0).random(32000).astype(np.float32)
    return {"probs": probs / probs.sum(), "u": 0.5}


def _takes(probs: Array, *_: Any, **__: Any) -> bool:
    return str(probs.dtype) in DTYPES


def _race_workload() -> dict[str, Any]:
    times = np.random.default_rng(1).exponential(size=32000).astype(np.float32)
    return {"probs": _workload()["probs"], "noise": times}


VARIANTS = (
    Variant("numba", "draw", draw, _takes, _workload),
    Variant("numba", "draw_race", draw_race, _takes, _race_workload),
)
