"""The kernels of temperature and cuts that are a thread an element, one block to a run of a row."""

import math
from functools import cache

from gpu.compile import Kernel, numba_kernel
from gpu.llm.row_kernels import minus_infinity
from gpu.number import read, storage, write_double
from refimpl.contract import host

__all__ = ["greedy_kernel", "min_p_kernel", "temperature_kernel", "top_p_weights_kernel"]


@host
@cache
def greedy_kernel(dtype: str) -> Kernel:
    """Return the kernel of ``greedy_into``."""
    from numba import cuda, uint64

    from gpu.warp import block, thread, threads

    held, cut = storage(dtype), minus_infinity(dtype)

    @numba_kernel(f"{held}[:, ::1]", f"{held}[:, ::1]", "int32[::1]", name=f"greedy[{dtype}]")
    def greedy(out, logits, best):
        row, i = uint64(cuda.blockIdx.y), block() * threads() + thread()
        if i < uint64(logits.shape[1]):
            out[row, i] = logits[row, i] if i == uint64(best[row]) else cut

    return greedy


@host
@cache
def temperature_kernel(dtype: str) -> Kernel:
    """Return the kernel of ``temperature_into``."""
    from numba import cuda, float64, int32, uint64

    from gpu.warp import block, thread, threads

    held, wide, narrow = storage(dtype), read(dtype), write_double(dtype)

    @numba_kernel(f"{held}[:, ::1]", f"{held}[:, ::1]", "int32[::1]", "float64", name=f"temperature[{dtype}]")
    def temperature(out, logits, best, t):
        row, i = uint64(cuda.blockIdx.y), block() * threads() + thread()
        if i < uint64(logits.shape[1]):
            largest = float64(wide(logits[row, uint64(max(best[row], int32(0)))]))
            overflows = math.isinf(wide(narrow(float64(2) * largest / t)))
            shift = largest if overflows else float64(0)
            out[row, i] = narrow((float64(wide(logits[row, i])) - shift) / t)

    return temperature


@host
@cache
def min_p_kernel(dtype: str) -> Kernel:
    """Return the kernel of ``min_p_into``."""
    from numba import cuda, float64, int32, uint64

    from gpu.warp import block, thread, threads

    held, wide, cut = storage(dtype), read(dtype), minus_infinity(dtype)

    @numba_kernel(f"{held}[:, ::1]", f"{held}[:, ::1]", "int32[::1]", "float64", name=f"min_p[{dtype}]")
    def min_p(out, logits, best, least):
        row, i = uint64(cuda.blockIdx.y), block() * threads() + thread()
        if i < uint64(logits.shape[1]):
            largest = float64(wide(logits[row, uint64(max(best[row], int32(0)))]))
            kept = float64(wide(logits[row, i])) - largest >= least
            out[row, i] = logits[row, i] if kept else cut

    return min_p


@host
@cache
def top_p_weights_kernel(dtype: str) -> Kernel:
    """Return the kernel that makes the weights of ``top_p_into``: exp(l - max l) in units of 2^-40."""
    from numba import cuda, float64, int32, int64, uint64

    from gpu.warp import block, thread, threads

    held, wide = storage(dtype), read(dtype)

    @numba_kernel("int64[:, ::1]", f"{held}[:, ::1]", "int32[::1]", name=f"top_p_weights[{dtype}]")
    def top_p_weights(weights, logits, best):
        row, i = uint64(cuda.blockIdx.y), block() * threads() + thread()
        if i < uint64(logits.shape[1]):
            largest = float64(wide(logits[row, uint64(max(best[row], int32(0)))]))
            ratio = cuda.libdevice.exp(float64(wide(logits[row, i])) - largest)
            weights[row, i] = cuda.libdevice.double2ll_rn(ratio * float64(2**40)) if best[row] >= 0 else int64(1)

    return top_p_weights
