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
def _of_32(format: str, dtype: str) -> Kernel:
    from numba import cuda, float32, int32, uint8, uint64

    from gpu.warp import ALL, block, lane, warp

    names, size, wide, ends = LAYOUTS[format].names or (), FORMATS[format].bytes, read(dtype), _ends(format)
    has_m, has_high, is_whole = "m" in names, "high" in names, format == "q8_0"
    put_d, put_m = half(start(format, "d")), half(start(format, "m" if has_m else "d"))
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
