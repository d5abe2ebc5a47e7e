"""The kernels of cuts that span a row, one block a row: the best token, the first k, the first mass."""

import math
from functools import cache
from typing import Any

from gpu.compile import Kernel, numba_kernel
from gpu.number import read, storage
from refimpl.contract import host

__all__ = ["NAN", "NONE", "best_kernel", "last_key", "last_token", "minus_infinity", "top_k_kernel", "top_p_kernel"]

NAN, NONE = -1, -2
"""In place of a token: the row holds NaN; its largest number is infinite."""


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

    from gpu.compile import device_function
    from gpu.select import block_min, fold, key
    from gpu.warp import block, thread

    held, wide, rank = storage(dtype), read(dtype), key(dtype)

    @device_function
    def lesser(least, i, number, _):
        return min(least, rank(number) << uint64(32) | i)

    find = fold(lesser)

    @numba_kernel("int32[::1]", f"{held}[:, ::1]", name=f"best[{dtype}]")
    def best(best, logits):
        row = logits[block()]
        least = block_min(find(~uint64(0), row, row))
        if thread() == uint64(0):
            token = least & uint64(0xFFFFFFFF)
            nothing = int32(NONE) if math.isinf(wide(row[token])) else int32(token)
            best[block()] = int32(NAN) if least >> uint64(32) == uint64(0) else nothing

    return best


@host
@cache
def last_key(rank: Any, bits: int, mass: Any, first_target: Any, copies: int) -> Any:
    """Return the function that has a block find the key at which the running mass exceeds a target, by radix.

    Eight bits a pass; beside it comes what is left of the target there. ``rank(values, number)`` is the key, of so
    many bits, and ``mass(values, i)`` the mass of a token; ``first_target(wanted, sums)`` is the target, from the sums
    of the first pass. Shared memory adds 64 bits by trying again until nobody came between, so such sums have copies:
    neighbours in a row often share their first bits.
    """
    from numba import cuda, int32, int64, uint64

    from gpu.compile import device_function
    from gpu.select import BINS, clear, first_above, fold, gather
    from gpu.warp import lane, warp

    kind = int64 if copies > 1 else int32

    @device_function
    def add(_, i, number, context):
        values, held, place, shift = context
        own = rank(values, number) >> shift
        if own >> uint64(8) == place:
            cuda.atomic.add(held, (lane() % uint64(copies), own & uint64(255)), kind(mass(values, i)))
        return _

    count = fold(add)

    @device_function
    def last_key(row, values, wanted, sums, found):
        held = cuda.shared.array((copies, BINS), kind)
        place, target, shift = uint64(0), int64(0), uint64(bits)
        while shift:
            shift -= uint64(8)
            clear(held)
            cuda.syncthreads()
            count(0, row, (values, held, place, shift))
            cuda.syncthreads()
            gather(sums, held)
            cuda.syncthreads()
            if warp() == uint64(0):
                if shift == uint64(bits - 8):
                    target = first_target(wanted, sums)
                first_above(sums, target, found)
            cuda.syncthreads()
            place, target = place << uint64(8) | uint64(found[0]), found[1]
        return place, target

    return last_key


@host
@cache
def last_token(dtype: str, mass: Any, first_target: Any, copies: int) -> Any:
    """Return the function that has a block find the token, by value and then by index, of ``last_key``.

    Its key and its index come back. The key comes first, then the index among equals.
    """
    from numba import cuda, int64, uint64

    from gpu.compile import device_function
    from gpu.select import KEY_BITS, key, sum_chunks, take_place
    from gpu.warp import warp

    rank = key(dtype)

    @device_function
    def ranked(_, number):
        return rank(number)

    @device_function
    def equal_mass(context, i):
        row, values, place = context
        return mass(values, i) if rank(row[i]) == place else int64(0)

    find = last_key(ranked, KEY_BITS[dtype], mass, first_target, copies)
    sum_equal, take_equal = sum_chunks(equal_mass), take_place(equal_mass)

    @device_function
    def last_token(row, values, wanted, sums, found):
        place, target = find(row, values, wanted, sums, found)
        context = (row, values, place)
        sum_equal(context, uint64(row.size), sums)
        cuda.syncthreads()
        if warp() == uint64(0):
            take_equal(context, uint64(row.size), sums, target, found)
        cuda.syncthreads()
        return place, uint64(found[0])

    return last_token


@cache
def _select(dtype: str, mass: Any, first_target: Any, copies: int, ties: str = "first") -> Any:
    """Return the function that has a block keep the first tokens of a row, in order, until their mass exceeds a target.

    Of the equals of the last of them it keeps those up to it, or all.
    """
    from numba import cuda, int64, uint64

    from gpu.compile import device_function
    from gpu.select import BINS, fold, key

    rank, cut, find = key(dtype), minus_infinity(dtype), last_token(dtype, mass, first_target, copies)
    up_to_it = ties == "first"

    @device_function
    def keep(_, i, number, context):
        out, place, last = context
        own = rank(number)
        out[i] = number if own < place or (own == place and i <= last) else cut
        return _

    write = fold(keep)

    @device_function
    def select(out, row, values, wanted):
        sums, found = cuda.shared.array(BINS, int64), cuda.shared.array(2, int64)
        place, last = find(row, values, wanted, sums, found)
        write(0, row, (out, place, last if up_to_it else ~uint64(0)))

    return select


@host
@cache
def top_k_kernel(dtype: str, ties: str = "first") -> Kernel:
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

    held, select = storage(dtype), _select(dtype, one, first_target, 1, ties)

    @numba_kernel(f"{held}[:, ::1]", f"{held}[:, ::1]", "int64", name=f"top_k[{dtype}, {ties}]")
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

    held, select = storage(dtype), _select(dtype, weight, first_target, 16)

    @numba_kernel(f"{held}[:, ::1]", f"{held}[:, ::1]", "int64[:, ::1]", "uint64", name=f"top_p[{dtype}]")
    def top_p(out, logits, weights, share):
        select(out[block()], logits[block()], weights[block()], share)

    return top_p
