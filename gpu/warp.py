"""Where a thread stands, and what the threads of a warp or a block compute together, for kernels.

A module imports it when it makes a kernel, not before: it needs the toolkit.
Indices are uint64: Numba looks out for negative ones (``x[-1]`` is the last element), with four instructions an access,
and makes float64 of a signed and an unsigned number.
"""

import math

from numba import cuda, float32, uint64

from gpu.compile import device_function

__all__ = ["ALL", "block", "block_max", "block_sum", "lane", "thread", "threads", "warp", "warp_max", "warp_sum"]

ALL = 0xFFFFFFFF
"""The mask of a whole warp."""


@device_function
def thread():
    """Return the index of the thread in its block."""
    return uint64(cuda.threadIdx.x)


@device_function
def threads():
    """Return how many threads a block has."""
    return uint64(cuda.blockDim.x)


@device_function
def block():
    """Return the index of the block in its grid."""
    return uint64(cuda.blockIdx.x)


@device_function
def lane():
    """Return the index of the thread in its warp."""
    return uint64(cuda.threadIdx.x & 31)


@device_function
def warp():
    """Return the index of the warp in its block."""
    return uint64(cuda.threadIdx.x >> 5)


@device_function
def warp_sum(x):
    """Give every lane the sum of the warp's values, in one order and so with the same bits."""
    offset = 16
    while offset:
        x += cuda.shfl_xor_sync(ALL, x, offset)
        offset >>= 1
    return x


@device_function
def warp_max(x):
    """Give every lane the largest of the warp's values; NaN only where all are."""
    offset = 16
    while offset:
        x = cuda.libdevice.fmaxf(x, cuda.shfl_xor_sync(ALL, x, offset))
        offset >>= 1
    return x


@device_function
def block_sum(x):
    """Give every thread the sum of the block's values; a block of one warp needs no barrier."""
    partial = cuda.shared.array(32, float32)
    x = warp_sum(x)
    if cuda.blockDim.x == 32:
        return x
    if lane() == uint64(0):
        partial[warp()] = x
    cuda.syncthreads()
    x = warp_sum(partial[lane()] if lane() < threads() >> uint64(5) else float32(0))
    cuda.syncthreads()  # the next sum may overwrite partial
    return x


@device_function
def block_max(x):
    """Give every thread the largest of the block's values, as ``block_sum`` gives their sum."""
    partial = cuda.shared.array(32, float32)
    x = warp_max(x)
    if cuda.blockDim.x == 32:
        return x
    if lane() == uint64(0):
        partial[warp()] = x
    cuda.syncthreads()
    x = warp_max(partial[lane()] if lane() < threads() >> uint64(5) else float32(-math.inf))
    cuda.syncthreads()  # the next one may overwrite partial
    return x
