"""The sampler's kernels that span a row, one block a row: the best token, the cuts by order, the draw."""

import math
from functools import cache
from typing import Any

from gpu.compile import Kernel, numba_kernel
from gpu.number import read, storage
from refimpl.contract import host

__all__ = ["NAN", "NONE", "best_kernel", "draw_kernel", "minus_infinity", "top_k_kernel", "top_p_kernel"]

NAN, NONE = -1, -2
"""In place of a token: the row holds NaN; its largest number is infinite, or nothing that can be drawn."""


@host
def minus_infinity(dtype: str) -> Any:
    """Return -inf as kernels store it."""
    from numba import float32, uint16

    return {"float32": float32(float("-inf")), "bfloat16": uint16(0xFF80), "float16": uint16(0xFC00)}[dtype]


@host
@cache
def best_kernel(dtype: str) -> Kernel:
    """Return the kernel of ``best_into``: the least (key, index) of a row as one 64-bit number."""
    from numba import int32, uint64

    from gpu.select import block_min, key
    from gpu.warp import block, thread, threads

    held, wide, rank = storage(dtype), read(dtype), key(dtype)

    @numba_kernel("int32[::1]", f"{held}[:, ::1]", name=f"best[{dtype}]")
    def best(best, logits):
        row, i = logits[block()], thread()
        least = ~uint64(0)
        while i < uint64(row.size):
            least = min(least, rank(row[i]) << uint64(32) | i)
            i += threads()
        least = block_min(least)
        if thread() == uint64(0):
            token = least & uint64(0xFFFFFFFF)
            nothing = int32(NONE) if math.isinf(wide(row[token])) else int32(token)
            best[block()] = int32(NAN) if least >> uint64(32) == uint64(0) else nothing

    return best


@cache
def _last_key(dtype: str, mass: Any, first_target: Any) -> Any:
    """Return the function that has a block find the key at which the running mass exceeds a target, by radix.

    Eight bits a pass; beside it comes what is left of the target there. ``mass(weights, i)`` is the mass of a token,
    ``first_target(wanted, sums)`` the target, from the masses of the first pass.
    """
    from numba import cuda, int64, uint64

    from gpu.compile import device_function
    from gpu.select import KEY_BITS, clear, first_above, key
    from gpu.warp import thread, threads, warp

    rank, bits = key(dtype), KEY_BITS[dtype]

    @device_function
    def last_key(logits, weights, wanted, sums, found):
        place, target, shift = uint64(0), int64(0), uint64(bits)
        while shift:
            shift -= uint64(8)
            clear(sums)
            cuda.syncthreads()
            i = thread()
            while i < uint64(logits.size):
                own = rank(logits[i]) >> shift
                if own >> uint64(8) == place:
                    cuda.atomic.add(sums, own & uint64(255), mass(weights, i))
                i += threads()
            cuda.syncthreads()
            if warp() == uint64(0):
                if shift == uint64(bits - 8):
                    target = first_target(wanted, sums)
                first_above(sums, target, found)
            cuda.syncthreads()
            place, target = place << uint64(8) | uint64(found[0]), found[1]
        return place, target

    return last_key


@cache
def _select(dtype: str, mass: Any, first_target: Any) -> Any:
    """Return the function that has a block keep the first tokens of a row, in order, until their mass exceeds a target.

    The key of the last of them comes first, then its index among equals.
    """
    from numba import cuda, int64, uint64

    from gpu.compile import device_function
    from gpu.select import BINS, key, sum_chunks, take_place
    from gpu.warp import thread, threads, warp

    rank, cut, last_key = key(dtype), minus_infinity(dtype), _last_key(dtype, mass, first_target)

    @device_function
    def equal_mass(context, i):
        logits, weights, place = context
        return mass(weights, i) if rank(logits[i]) == place else int64(0)

    sum_equal, take_equal = sum_chunks(equal_mass), take_place(equal_mass)

    @device_function
    def select(out, logits, weights, wanted):
        sums, found = cuda.shared.array(BINS, int64), cuda.shared.array(2, int64)
        size = uint64(logits.size)
        place, target = last_key(logits, weights, wanted, sums, found)
        context = (logits, weights, place)
        sum_equal(context, size, sums)
        cuda.syncthreads()
        if warp() == uint64(0):
            take_equal(context, size, sums, target, found)
        cuda.syncthreads()
        i, last = thread(), uint64(found[0])
        while i < size:
            own = rank(logits[i])
            out[i] = logits[i] if own < place or (own == place and i <= last) else cut
            i += threads()

    return select


@host
@cache
def top_k_kernel(dtype: str) -> Kernel:
    """Return the kernel of ``top_k_into``: a mass of 1 for every token, and k of them."""
    from numba import int64

    from gpu.compile import device_function
    from gpu.warp import block

    @device_function
    def one(_, i):
        return int64(1)

    @device_function
    def first_target(k, sums):
        return k - int64(1)

    held, select = storage(dtype), _select(dtype, one, first_target)

    @numba_kernel(f"{held}[:, ::1]", f"{held}[:, ::1]", "int64", name=f"top_k[{dtype}]")
    def top_k(out, logits, k):
        select(out[block()], logits[block()], logits[block()], k)

    return top_k


@host
@cache
def top_p_kernel(dtype: str) -> Kernel:
    """Return the kernel of ``top_p_into``; ``share`` is p in units of 2^-53."""
    from numba import int64, uint64

    from gpu.compile import device_function
    from gpu.select import share_of, total
    from gpu.warp import block

    @device_function
    def weight(weights, i):
        return weights[i]

    @device_function
    def first_target(share, sums):
        mass = total(sums)
        return share_of(share, mass, uint64(1)) if share else int64(0)

    held, select = storage(dtype), _select(dtype, weight, first_target)

    @numba_kernel(f"{held}[:, ::1]", f"{held}[:, ::1]", "int64[:, ::1]", "uint64", name=f"top_p[{dtype}]")
    def top_p(out, logits, weights, share):
        select(out[block()], logits[block()], weights[block()], share)

    return top_p


@host
@cache
def draw_kernel(dtype: str) -> Kernel:
    """Return the kernel of ``draw_into``; ``units`` are u in units of 2^-53."""
    from numba import cuda, float32, int32, int64, uint16, uint64

    from gpu.compile import device_function
    from gpu.select import BINS, block_min, key, share_of, sum_chunks, take_place, total
    from gpu.warp import block, thread, threads, warp

    held, wide, rank = storage(dtype), read(dtype), key(dtype)
    zero = float32(0) if dtype == "float32" else uint16(0)

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
        row, best, highest, i = probs[block()], ~uint64(0), uint64(0), thread()
        while i < uint64(row.size):
            place = rank(row[i])
            best, highest = min(best, place << uint64(32) | i), max(highest, place)
            i += threads()
        largest = wide(row[block_min(best) & uint64(0xFFFFFFFF)])
        negative = ~block_min(~highest) > rank(zero)
        if negative or not float32(0) < largest < float32(math.inf):
            if thread() == uint64(0):
                ids[block()] = int32(NONE)
            return
        exponent = int32(39) - cuda.libdevice.ilogbf(largest)
        some, more = power(exponent >> int32(1)), power(exponent - (exponent >> int32(1)))
        context = (row, some, more)
        sum_all(context, uint64(row.size), sums)
        cuda.syncthreads()
        if warp() == uint64(0):
            take(context, uint64(row.size), sums, share_of(units[block()], total(sums), uint64(0)), found)
            if thread() == uint64(0):
                ids[block()] = int32(found[0])

    return draw
