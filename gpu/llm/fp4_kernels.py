"""Kernels of MXFP4 and NVFP4: a lane an element where blocks are written, a thread an element where they are read."""

import math
from functools import cache
from typing import Any

from gpu.compile import Kernel, device_function, numba_kernel
from gpu.narrow import decode, encode
from gpu.number import read, storage, write
from refimpl.contract import host

__all__ = [
    "WARPS", "dequantize_mxfp4_kernel", "dequantize_nvfp4_kernel", "quantize_mxfp4_kernel", "quantize_nvfp4_kernel",
]  # fmt: skip

WARPS = 8
"""Warps of a block."""


@cache
def _largest(size: int) -> Any:
    """Return the function that gives each lane the largest magnitude of its ``size`` lanes, infinite for NaN."""
    from numba import cuda, float32

    from gpu.warp import ALL

    @device_function
    def largest(x):
        most, offset = abs(x) if abs(x) < float32(math.inf) else float32(math.inf), size >> 1
        while offset:
            most = cuda.libdevice.fmaxf(most, cuda.shfl_xor_sync(ALL, most, offset))
            offset >>= 1
        return most

    return largest


@cache
def _pack(size: int) -> Any:
    """Return the function that has the first half of ``size`` lanes write the codes of all, two a byte."""
    from numba import cuda, uint8, uint64

    from gpu.warp import ALL, lane

    four = encode("e2m1")

    @device_function
    def pack(packed, group, groups, ratio, run):
        code, i = four(ratio), lane() % uint64(size)
        source = lane() - i + i % uint64(size // 2) // uint64(run) * uint64(2 * run) + i % uint64(run)
        low = cuda.shfl_sync(ALL, code, source)
        high = cuda.shfl_sync(ALL, code, source + uint64(run))
        if i < uint64(size // 2) and group < groups:
            packed[group * uint64(size // 2) + i] = uint8(low | high << 4)

    return pack


@cache
def _unpack(size: int) -> Any:
    """Return the function that reads element i of packed rows: float32."""
    from numba import uint64

    value = decode("e2m1")

    @device_function
    def unpack(packed, i, run):
        byte = i // uint64(2 * run) * uint64(run) + i % uint64(run)
        return value(packed[byte] >> 4 if i // uint64(run) & uint64(1) else packed[byte] & 15)

    return unpack


@host
@cache
def quantize_mxfp4_kernel(dtype: str) -> Kernel:
    """Return the kernel of ``quantize_mxfp4_into``: a warp a block of 32."""
    from numba import cuda, float32, int32, uint8, uint64

    from gpu.warp import block, lane, warp

    wide, power, most, pack = read(dtype), decode("e8m0"), _largest(32), _pack(32)

    @numba_kernel("uint8[::1]", "uint8[::1]", f"{storage(dtype)}[::1]", "int64", name=f"quantize_mxfp4[{dtype}]")
    def quantize_mxfp4(packed, scale, x, run):
        group, groups = block() * uint64(WARPS) + warp(), uint64(scale.size)
        value = wide(x[group * uint64(32) + lane()]) if group < groups else float32(0)
        exponent = cuda.libdevice.float_as_int(most(value)) >> int32(23)
        code = max(exponent - int32(2), int32(0))
        pack(packed, group, groups, cuda.libdevice.fdiv_rn(value, power(code)), run)
        if lane() == uint64(0) and group < groups:
            scale[group] = uint8(code)

    return quantize_mxfp4


@host
@cache
def quantize_nvfp4_kernel(dtype: str) -> Kernel:
    """Return the kernel of ``quantize_nvfp4_into``: half a warp a block of 16."""
    from numba import cuda, float32, int32, uint8, uint64

    from gpu.warp import block, lane, warp

    wide, eight, value_of, most, pack = read(dtype), encode("e4m3"), decode("e4m3"), _largest(16), _pack(16)

    @numba_kernel(
        "uint8[::1]", "uint8[::1]", "float32[::1]", f"{storage(dtype)}[::1]", "int64", name=f"quantize_nvfp4[{dtype}]"
    )
    def quantize_nvfp4(packed, scale, tensor, x, run):
        group = (block() * uint64(WARPS) + warp()) * uint64(2) + lane() // uint64(16)
        groups, whole = uint64(scale.size), tensor[0]
        value = wide(x[group * uint64(16) + lane() % uint64(16)]) if group < groups else float32(0)
        largest, code = most(value), int32(0)
        if whole > float32(0):
            code = eight(cuda.libdevice.fdiv_rn(largest, cuda.libdevice.fmul_rn(float32(6), whole)))
        step = cuda.libdevice.fmul_rn(value_of(code), whole)
        ratio = cuda.libdevice.fdiv_rn(value, step) if step > float32(0) else float32(0)
        pack(packed, group, groups, ratio, run)
        if lane() % uint64(16) == uint64(0) and group < groups:
            scale[group] = uint8(code)

    return quantize_nvfp4


@host
@cache
def dequantize_mxfp4_kernel() -> Kernel:
    """Return the kernel of ``dequantize_mxfp4_into``."""
    from numba import cuda, uint64

    from gpu.warp import block, thread, threads

    power, unpack = decode("e8m0"), _unpack(32)

    @numba_kernel("float32[::1]", "uint8[::1]", "uint8[::1]", "int64")
    def dequantize_mxfp4(x, packed, scale, run):
        i = block() * threads() + thread()
        if i < uint64(x.size):
            x[i] = cuda.libdevice.fmul_rn(unpack(packed, i, run), power(scale[i // uint64(32)]))

    return dequantize_mxfp4


@host
@cache
def dequantize_nvfp4_kernel(dtype: str) -> Kernel:
    """Return the kernel of ``dequantize_nvfp4_into``."""
    from numba import cuda, uint64

    from gpu.warp import block, thread, threads

    wide, narrow, value_of, unpack = read(dtype), write(dtype), decode("e4m3"), _unpack(16)

    @numba_kernel(
        f"{storage(dtype)}[::1]", "uint8[::1]", "uint8[::1]", f"{storage(dtype)}[::1]", "int64",
        name=f"dequantize_nvfp4[{dtype}]",
    )
    def dequantize_nvfp4(x, packed, scale, tensor, run):
        i = block() * threads() + thread()
        if i < uint64(x.size):
            step = cuda.libdevice.fmul_rn(value_of(scale[i // uint64(16)]), wide(tensor[0]))
            x[i] = narrow(cuda.libdevice.fmul_rn(unpack(packed, i, run), step))

    return dequantize_nvfp4
