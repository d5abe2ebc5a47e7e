"""Kernels for numbers of few bits with scales beside them: a thread an element, which finds its scale itself."""

from functools import cache
from typing import Any

import numpy as np

from gpu.compile import Kernel, device_function, numba_kernel
from gpu.narrow import NARROW, decode, encode
from gpu.number import read, storage, write
from refimpl.contract import host
from refimpl.llm.narrow_floats import NUMBERS

__all__ = ["absmax_kernel", "dequantize_linear_kernel", "held", "quantize_linear_kernel"]


@host
def held(format: str) -> str:
    """Return the name of the dtype that holds codes."""
    return np.dtype(NUMBERS[format][2]).name


@cache
def _place() -> Any:
    """Return the function that finds the scale of element i; an axis has a length, a block, a distance of scales."""
    from numba import uint64

    @device_function
    def place(axes, i):
        at, axis = uint64(0), uint64(axes.shape[0])
        while axis > uint64(0):
            axis -= uint64(1)
            length = uint64(axes[axis, 0])
            at += i % length // uint64(axes[axis, 1]) * uint64(axes[axis, 2])
            i //= length
        return at

    return place


@cache
def _code(format: str) -> Any:
    """Return the function that rounds a quotient to a code: quotient, zero point -> int32."""
    from numba import cuda, float32, int32

    if format in ("e4m3", "e5m2"):
        narrow = encode(format)
        return device_function(lambda ratio, zero: narrow(ratio))
    if format == "e2m1":
        four = encode(format)
        return device_function(lambda ratio, zero: four(ratio if ratio == ratio else float32(0)))
    least, largest, _ = NUMBERS[format]

    @device_function
    def whole(ratio, zero):
        code = cuda.libdevice.fadd_rn(cuda.libdevice.rintf(ratio), zero)
        return int32(min(max(code, float32(least)), float32(largest))) if code == code else int32(0)

    return whole


@host
@cache
def quantize_linear_kernel(format: str, dtype: str, scale_dtype: str) -> Kernel:
    """Return the kernel of ``quantize_linear_into``."""
    from numba import cuda, float32, uint64

    from gpu.warp import block, thread, threads

    wide, wide_scale, code, place = read(dtype), read(scale_dtype), _code(format), _place()

    @numba_kernel(
        f"{held(format)}[::1]", f"{storage(dtype)}[::1]", f"{storage(scale_dtype)}[::1]", "int32[::1]",
        "int64[:, ::1]", name=f"quantize_linear[{format}, {dtype}]",
    )  # fmt: skip
    def quantize_linear(q, x, scale, zero_point, axes):
        i = block() * threads() + thread()
        if i < uint64(x.size):
            at = place(axes, i)
            step = wide_scale(scale[at])
            ratio = cuda.libdevice.fdiv_rn(wide(x[i]), step) if step != float32(0) else float32(0)
            q[i] = code(ratio, float32(zero_point[at]) if zero_point.size else float32(0))

    return quantize_linear


@host
@cache
def dequantize_linear_kernel(format: str, dtype: str) -> Kernel:
    """Return the kernel of ``dequantize_linear_into``."""
    from numba import cuda, float32, uint64

    from gpu.warp import block, thread, threads

    wide, narrow, place = read(dtype), write(dtype), _place()
    value = decode(format) if format in NARROW else device_function(lambda code: float32(code))

    @numba_kernel(
        f"{storage(dtype)}[::1]", f"{held(format)}[::1]", f"{storage(dtype)}[::1]", "int32[::1]", "int64[:, ::1]",
        name=f"dequantize_linear[{format}, {dtype}]",
    )
    def dequantize_linear(x, q, scale, zero_point, axes):
        i = block() * threads() + thread()
        if i < uint64(q.size):
            at = place(axes, i)
            zero = float32(zero_point[at]) if zero_point.size else float32(0)
            x[i] = narrow(cuda.libdevice.fmul_rn(cuda.libdevice.fsub_rn(value(q[i]), zero), wide(scale[at])))

    return dequantize_linear


@host
@cache
def absmax_kernel(dtype: str) -> Kernel:
    """Return the kernel that writes max |x| / largest of each block of a matrix; infinite where one is not finite."""
    import math

    from numba import cuda, float32, uint64

    from gpu.warp import block, block_max, thread, threads

    wide = read(dtype)

    @numba_kernel(
        "float32[::1]", f"{storage(dtype)}[:, ::1]", "int64", "int64", "float32", name=f"absmax[{dtype}]"
    )
    def absmax(scale, x, rows, columns, largest):
        height, width = uint64(x.shape[0]), uint64(x.shape[1])
        across = (width + uint64(columns) - uint64(1)) // uint64(columns)
        row, column = block() // across * uint64(rows), block() % across * uint64(columns)
        end_row, end_column = min(row + uint64(rows), height), min(column + uint64(columns), width)
        most, i, span = float32(0), thread(), end_column - column
        while i < (end_row - row) * span:
            size = abs(wide(x[row + i // span, column + i % span]))
            most = cuda.libdevice.fmaxf(most, size if size < float32(math.inf) else float32(math.inf))
            i += threads()
        most = block_max(most)
        if thread() == uint64(0):
            scale[block()] = cuda.libdevice.fdiv_rn(most, largest)

    return absmax
