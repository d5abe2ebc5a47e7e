"""Kernels that write blocks of 32 elements: a warp a block, a lane an element."""

import math
from functools import cache
from typing import Any

from gpu.compile import Kernel, device_function, numba_kernel
from gpu.llm.block_scales import start
from gpu.llm.blocks import FORMATS
from gpu.llm.writer_bytes import half
from gpu.llm.writer_groups import GROUPS, WARPS, quantize_groups_kernel
from gpu.llm.writer_search import add, divide, multiply
from gpu.number import read, storage
from refimpl.blocks import LAYOUTS
from refimpl.contract import host

__all__ = ["blocks_of_warp", "quantize_kernel"]

_LARGEST = {"q8_0": 127, "q4_0": 8, "q4_1": 15, "q5_0": 16, "q5_1": 31}


@host
@cache
def quantize_kernel(format: str, dtype: str) -> Kernel:
    """Return the kernel of ``quantize_into``."""
    return quantize_groups_kernel(format, dtype) if format in GROUPS else _of_32(format, dtype)


@host
def blocks_of_warp(format: str) -> int:
    """Return how many blocks of weights a warp writes."""
    return 32 * GROUPS[format][0] // 256 if format in GROUPS else 1


@cache
def _ends(format: str) -> Any:
    """Return the function that gives a lane d, m and its code, unsigned where halves of bytes hold it."""
    from numba import cuda, float32, int32, uint64

    from gpu.warp import ALL, lane, warp_max

    if format == "mxfp4":
        return _ends_of_mxfp4()
    largest, mul, plus, over = float32(_LARGEST[format]), multiply(), add(), divide()

    @device_function
    def with_minimum(x):
        most, m = warp_max(x), -warp_max(-x)
        d = cuda.libdevice.fdiv_rn(plus(most, -m), largest)
        code = plus(mul(plus(x, -m), over(float32(1), d)), float32(0.5))
        return d, m, int32(min(code, largest))

    @device_function
    def with_sign(x):
        size = abs(x)
        mine = lane() if size == warp_max(size) else uint64(31)
        first = int32(31) - int32(warp_max(float32(uint64(31) - mine)))
        top = cuda.shfl_sync(ALL, x, first)
        d = cuda.libdevice.fdiv_rn(top, -largest)
        code = plus(mul(x, over(float32(1), d)), plus(largest, float32(0.5)))
        return d, float32(0), int32(min(code, float32(2) * largest - float32(1)))

    @device_function
    def by_size(x):
        d = cuda.libdevice.fdiv_rn(warp_max(abs(x)), largest)
        ratio = mul(x, over(float32(1), d))
        whole = cuda.libdevice.truncf(ratio)
        rest = cuda.libdevice.truncf(mul(float32(2), plus(ratio, -whole)))  # ties away from 0
        return d, float32(0), int32(plus(whole, rest))

    return by_size if format == "q8_0" else with_minimum if format.endswith("_1") else with_sign


@cache
def _ends_of_mxfp4() -> Any:
    """Return the function that gives a lane the exponent of d as its file has it, 0, and its code."""
    from numba import cuda, float32, int32

    from gpu.warp import warp_max

    @device_function
    def by_power(x):
        e = max((cuda.libdevice.float_as_int(warp_max(abs(x))) >> int32(23)) - int32(2), int32(0))
        d = cuda.libdevice.int_as_float((e - int32(1)) << int32(23) if e > int32(1) else int32(0x200000) << e)
        ratio, code = cuda.libdevice.fdiv_rn(abs(x), d), int32(0)
        for step in (0.5, 1.5, 2.5, 3.5, 5.0, 7.0, 10.0):  # between two sizes, of which a tie takes the smaller
            code += int32(ratio > float32(step))
        return float32(e), float32(0), code | int32(8) if x < float32(0) and code else code

    return by_power


@cache
def _put_exponent(at: int) -> Any:
    """Return the function that writes the exponent of mxfp4, 255 where it is not a number."""
    from numba import int32, uint8, uint64

    @device_function
    def put(blocks, first, number):
        blocks[first + uint64(at)] = uint8(int32(number)) if number == number else uint8(255)

    return put


@cache
def _of_32(format: str, dtype: str) -> Kernel:
    from numba import cuda, float32, int32, uint8, uint64

    from gpu.warp import ALL, block, lane, warp

    names, size, wide, ends = LAYOUTS[format].names or (), FORMATS[format].bytes, read(dtype), _ends(format)
    has_m, has_high, is_whole = "m" in names, "high" in names, format == "q8_0"
    put_d = _put_exponent(start(format, "exponent")) if format == "mxfp4" else half(start(format, "d"))
    put_m = half(start(format, "m")) if has_m else put_d
    low_at, high_at = start(format, "q" if is_whole else "low"), start(format, "high") if has_high else 0

    @numba_kernel("uint8[::1]", f"{storage(dtype)}[::1]", name=f"quantize[{format}, {dtype}]")
    def quantize_32(blocks, x):
        index = block() * uint64(WARPS) + warp()
        first = index * uint64(size)
        if first < uint64(blocks.size):
            value = wide(x[index * uint64(32) + lane()])
            bad = cuda.ballot_sync(ALL, not abs(value) < float32(math.inf))
            d, m, code = ends(cuda.libdevice.fadd_rn(value, float32(0)))
            low = code & int32(15) | (cuda.shfl_down_sync(ALL, code, 16) & int32(15)) << int32(4)
            high = cuda.ballot_sync(ALL, code & int32(16))
            if is_whole:
                blocks[first + uint64(low_at) + lane()] = uint8(code & int32(255))
            elif lane() < uint64(16):
                blocks[first + uint64(low_at) + lane()] = uint8(low)
            if has_high and lane() < uint64(4):
                blocks[first + uint64(high_at) + lane()] = uint8(int32(high) >> int32(lane() * uint64(8)) & int32(255))
            if lane() == uint64(0):
                put_d(blocks, first, float32(math.nan) if bad else d)
                if has_m:
                    put_m(blocks, first, m)

    return quantize_32
