"""Selection: keys that sort, and the first place at which a running sum exceeds a target.

All sums are of integers: their order does not matter, so a kernel finds the very place that the reference finds.
Kernels import this module when they are made.
"""

from functools import cache
from typing import Any

from numba import cuda, int64, uint32, uint64

from gpu.compile import device_function
from gpu.warp import lane, thread, threads, warp, warp_sum
from refimpl.contract import host

__all__ = [
    "BINS", "KEY_BITS", "block_min", "block_total", "clear", "first_above", "fold", "gather", "key", "share_of",
    "sum_chunks", "take_place", "total", "warp_min",
]

BINS = 256
"""How many sums a row is cut into, in shared memory."""

KEY_BITS = {"float32": 32, "bfloat16": 16, "float16": 16}
_INFINITY = {"float32": 0x7F800000, "bfloat16": 0x7F80, "float16": 0x7C00}
_ALL, _EACH = 0xFFFFFFFF, BINS // 32


@host
@cache
def key(dtype: str) -> Any:
    """Return the function that turns a stored number into its place in the order from NaN, 0, over +inf down to -inf.

    Equal numbers have equal keys, 0 and -0 too. The key of x below 0 is its bits, above 0 ``sign - 1 - bits``.
    """
    sign, infinity = 1 << KEY_BITS[dtype] - 1, _INFINITY[dtype]
    bits_of = _float_bits if dtype == "float32" else _stored_bits

    @device_function
    def key(number):
        bits = bits_of(number)
        if bits & uint64(sign - 1) > uint64(infinity):
            return uint64(0)
        if bits > uint64(sign):
            return bits
        return uint64(sign - 1) - (bits & uint64(sign - 1))

    return key


@device_function
def _float_bits(number):
    return uint64(uint32(cuda.libdevice.float_as_int(number)))


@device_function
def _stored_bits(bits):
    return uint64(bits)


@device_function
def warp_min(x):
    """Give every lane the least of the warp's uint64 values."""
    offset = 16
    while offset:
        x = min(x, uint64(cuda.shfl_xor_sync(_ALL, int64(x), offset)))
        offset >>= 1
    return x


@device_function
def block_min(x):
    """Give every thread the least of the block's uint64 values."""
    partial = cuda.shared.array(32, uint64)
    x = warp_min(x)
    if lane() == uint64(0):
        partial[warp()] = x
    cuda.syncthreads()
    x = warp_min(partial[lane()] if lane() < threads() >> uint64(5) else ~uint64(0))
    cuda.syncthreads()  # the next one may overwrite partial
    return x


@device_function
def block_total(x):
    """Give every thread the sum of the block's int64 values."""
    partial = cuda.shared.array(32, int64)
    x = warp_sum(x)
    if lane() == uint64(0):
        partial[warp()] = x
    cuda.syncthreads()
    x = warp_sum(partial[lane()] if lane() < threads() >> uint64(5) else int64(0))
    cuda.syncthreads()  # the next one may overwrite partial
    return x


@host
@cache
def fold(step: Any) -> Any:
    """Return the function that has each thread of a block fold its elements of a row, four on their way at once.

    ``step(state, i, element, context)`` is the state after element i.
    """

    @device_function
    def fold(state, row, context):
        i, size, stride = thread(), uint64(row.size), threads()
        while i + uint64(3) * stride < size:
            first, second = row[i], row[i + stride]
            third, fourth = row[i + uint64(2) * stride], row[i + uint64(3) * stride]
            state = step(state, i, first, context)
            state = step(state, i + stride, second, context)
            state = step(state, i + uint64(2) * stride, third, context)
            state = step(state, i + uint64(3) * stride, fourth, context)
            i += uint64(4) * stride
        while i < size:
            state = step(state, i, row[i], context)
            i += stride
        return state

    return fold


@device_function
def clear(held):
    """Have a block set its sums to 0, all copies of them."""
    i = thread()
    while i < uint64(BINS):
        for copy in range(held.shape[0]):
            held[uint64(copy), i] = 0
        i += threads()


@device_function
def gather(sums, held):
    """Have a block add up the copies of its sums."""
    i = thread()
    while i < uint64(BINS):
        mine = int64(0)
        for copy in range(held.shape[0]):
            mine += int64(held[uint64(copy), i])
        sums[i] = mine
        i += threads()


@device_function
def total(sums):
    """Give every lane of a warp the total of the sums."""
    mine, i = int64(0), lane()
    while i < uint64(BINS):
        mine += sums[i]
        i += uint64(32)
    return warp_sum(mine)


@device_function
def share_of(units, whole, less):
    """Return (units whole - less) / 2^53, rounded down, of a product that is not below ``less``."""
    low, high = units * uint64(whole), cuda.libdevice.umul64hi(units, uint64(whole))
    if low < less:
        high -= uint64(1)
    return int64(high << uint64(11) | (low - less) >> uint64(53))


@device_function
def _running(x):
    """Give every lane of a warp the sum of the values up to its own."""
    offset = uint64(1)
    while offset < uint64(32):
        below = cuda.shfl_up_sync(_ALL, x, offset)
        if lane() >= offset:
            x += below
        offset <<= uint64(1)
    return x


@device_function
def first_above(sums, target, found):
    """Have one warp find the first place at which the running sum exceeds the target.

    ``found`` gets it, and what is left of the target there; both stay as they are where no running sum exceeds it.
    """
    i, mine = lane() * uint64(_EACH), int64(0)
    for j in range(_EACH):
        mine += sums[i + uint64(j)]
    running = _running(mine)
    if running - mine <= target < running:
        target -= running - mine
        while sums[i] <= target:
            target -= sums[i]
            i += uint64(1)
        found[0], found[1] = int64(i), target
    cuda.syncwarp()


@host
@cache
def sum_chunks(weigh: Any) -> Any:
    """Return the function that has a block sum the weights of a row over contiguous chunks, as many as there are sums.

    ``weigh(row, i)`` is the weight of the row's element i; what a row is only ``weigh`` knows.
    """

    @device_function
    def sum_chunks(row, size, sums):
        width = (size + uint64(BINS - 1)) // uint64(BINS)
        chunk = warp()
        while chunk < uint64(BINS):
            i, end = chunk * width + lane(), min((chunk + uint64(1)) * width, size)
            mine = int64(0)
            while i < end:
                mine += weigh(row, i)
                i += uint64(32)
            mine = warp_sum(mine)
            if lane() == uint64(0):
                sums[chunk] = mine
            chunk += threads() >> uint64(5)

    return sum_chunks


@host
@cache
def take_place(weigh: Any) -> Any:
    """Return the function that has one warp find the first element whose running weight exceeds the target.

    Its index stands in ``found[0]``. The sums are those of ``sum_chunks``.
    """

    @device_function
    def take_place(row, size, sums, target, found):
        first_above(sums, target, found)
        width = (size + uint64(BINS - 1)) // uint64(BINS)
        start, target = uint64(found[0]) * width, found[1]
        cuda.syncwarp()
        while start < size:
            i = start + lane()
            mine = weigh(row, i) if i < size else int64(0)
            running = _running(mine)
            if running - mine <= target < running:
                found[0] = int64(i)
            everything = cuda.shfl_sync(_ALL, running, 31)
            if target < everything:
                break
            target -= everything
            start += uint64(32)
        cuda.syncwarp()

    return take_place
