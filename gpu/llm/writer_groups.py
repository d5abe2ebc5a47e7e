"""Kernels that write blocks of 256 elements: a lane a group of 16 or 32, so that a warp has two or four blocks."""

import math
from functools import cache
from typing import Any

from gpu.compile import Kernel, device_function, numba_kernel
from gpu.llm.block_scales import start
from gpu.llm.blocks import FORMATS
from gpu.llm.writer_bytes import half, pack
from gpu.llm.writer_lines import lines
from gpu.llm.writer_search import add, by_descent, by_trial, divide, multiply, peak, rounded
from gpu.number import read, storage, write
from refimpl.contract import host

__all__ = ["GROUPS", "WARPS", "quantize_groups_kernel"]

WARPS = 4
"""Warps of a block."""

GROUPS = {
    "q2_k": (16, 3, 15), "q3_k": (16, 4, 32), "q4_k": (32, 15, 63), "q5_k": (32, 31, 63), "q6_k": (16, 32, 128),
}  # fmt: skip
"""Elements of a group, its largest code, the largest whole number of its scale; with a sign, one more."""

_LINES = {"q2_k": (-0.5, 15), "q4_k": (-1.0, 20), "q5_k": (-0.5, 15)}


@cache
def _search(format: str) -> Any:
    """Return the function that gives a group's scale and minimum and, as its codes, those of the search."""
    from numba import float32, int8, uint64

    size, largest, _ = GROUPS[format]
    mul, plus, signed, plain = multiply(), add(), rounded(-largest, largest - 1), rounded(0, largest)
    trial, descent = by_trial(size, largest), by_descent(size, largest)
    line = lines(size, largest, *_LINES.get(format, (0.0, 0)), format == "q2_k")

    @device_function
    def by_lines(values, codes, at, codes_at):
        d, m, inverse, base = line(values, at)
        i = uint64(0)
        while i < uint64(size):
            codes[codes_at + i] = int8(plain(mul(inverse, plus(values[at + i], -base))))
            i += uint64(1)
        return d, m

    @device_function
    def by_trials(values, codes, at, codes_at):
        d, inverse = trial(values, at)
        i = uint64(0)
        while i < uint64(size):
            code = signed(mul(inverse, values[at + i])) if inverse != float32(0) else float32(-largest)
            codes[codes_at + i] = int8(code)
            i += uint64(1)
        return d, float32(0)

    @device_function
    def by_moves(values, codes, at, codes_at):
        return descent(values, codes, at, codes_at), float32(0)

    return by_lines if format in _LINES else by_moves if format == "q3_k" else by_trials


@cache
def _whole(format: str) -> Any:
    """Return the function that turns a group's scale, beside those of its block, into a whole number and its unit."""
    from numba import cuda, float32, int32, uint64

    size, _, top = GROUPS[format]
    groups, mul, plus, over, find = 256 // size, multiply(), add(), divide(), peak()
    signed, plain, nothing = rounded(-top, top - 1), rounded(0, top), -top if format == "q3_k" else 0

    @device_function
    def with_sign(scales, at, mine):
        most = find(scales, at, groups)
        inverse = cuda.libdevice.fdiv_rn(float32(-top), most)
        unit = plus(over(float32(1), inverse), float32(0))
        return int32(nothing) if abs(most) < float32(1e-15) else int32(signed(mul(inverse, mine))), unit

    @device_function
    def without_sign(scales, at, mine):
        most, i = float32(0), uint64(0)
        while i < uint64(groups):
            if scales[at + i] > most or scales[at + i] != scales[at + i]:
                most = scales[at + i]
            i += uint64(1)
        return int32(plain(mul(over(float32(top), most), mine))), cuda.libdevice.fdiv_rn(most, float32(top))

    return without_sign if format in _LINES else with_sign


@cache
def _recode(format: str) -> Any:
    """Return the function that takes a group's codes anew, with its scale as it is stored, and makes them unsigned."""
    from numba import cuda, float32, int8, uint64

    size, largest, _ = GROUPS[format]
    plus, is_signed = add(), format not in _LINES
    code = rounded(-largest, largest - 1) if is_signed else rounded(0, largest)

    @device_function
    def recode(values, codes, at, codes_at, step, offset):
        i = uint64(0)
        while i < uint64(size):
            found = float32(codes[codes_at + i])
            if step != float32(0):
                found = code(cuda.libdevice.fdiv_rn(plus(values[at + i], offset), step))
            codes[codes_at + i] = int8(found + float32(largest) if is_signed else found)
            i += uint64(1)

    return recode


@cache
def _stage(format: str, dtype: str) -> Any:
    """Return the function that has a warp read its weights into shared memory, a word apart from group to group.

    What is not finite is NaN there, so that it shows in every scale, and no 0 has a sign.
    """
    from numba import float32, uint64

    from gpu.warp import lane

    size, wide, plus = GROUPS[format][0], read(dtype), add()

    @device_function
    def stage(values, x, first):
        i = lane()
        while i < uint64(32 * size):
            value = wide(x[first + i]) if first + i < uint64(x.size) else float32(0)
            value = plus(value, float32(0)) if abs(value) < float32(math.inf) else float32(math.nan)
            values[i // uint64(size) * uint64(size + 1) + i % uint64(size)] = value
            i += uint64(32)

    return stage


@host
@cache
def quantize_groups_kernel(format: str, dtype: str) -> Kernel:
    """Return the kernel of ``quantize_into`` for a format whose groups have scales of their own."""
    from numba import cuda, float32, int8, int32, uint64

    from gpu.warp import block, lane, warp

    (size, _, _), bytes, mul, stage = GROUPS[format], FORMATS[format].bytes, multiply(), _stage(format, dtype)
    groups, each, has_m, stored, loaded = 256 // size, size // 8, format in _LINES, write("float16"), read("float16")
    search, whole, recode, put = _search(format), _whole(format), _recode(format), pack(format)
    put_d, put_m, apart = half(start(format, "d")), half(start(format, "m" if has_m else "d")), size + 1
    all_values, all_codes, twice = 32 * apart, 32 * size, 2 * WARPS

    @numba_kernel("uint8[::1]", f"{storage(dtype)}[::1]", name=f"quantize[{format}, {dtype}]")
    def quantize_256(blocks, x):
        held, found = cuda.shared.array((WARPS, all_values), float32), cuda.shared.array((WARPS, all_codes), int8)
        parts, numbers = cuda.shared.array((twice, 32), float32), cuda.shared.array((twice, 32), int32)
        values, codes, ds, ms = held[warp()], found[warp()], parts[warp()], parts[warp() + uint64(WARPS)]
        scales, minima = numbers[warp()], numbers[warp() + uint64(WARPS)]
        index = (block() * uint64(WARPS) + warp()) * uint64(each)
        stage(values, x, index * uint64(256))
        cuda.syncwarp()
        at, codes_at, group = lane() * uint64(apart), lane() * uint64(size), lane() // uint64(groups) * uint64(groups)
        d, m = search(values, codes, at, codes_at)
        ds[lane()], ms[lane()] = d, -m
        cuda.syncwarp()
        scale, unit_d = whole(ds, group, d)
        least, unit_m = whole(ms, group, -m) if has_m else (int32(0), float32(0))
        scales[lane()], minima[lane()] = scale, least
        step, offset = mul(loaded(stored(unit_d)), float32(scale)), mul(loaded(stored(unit_m)), float32(least))
        recode(values, codes, at, codes_at, step, offset)
        first = (index + lane() // uint64(groups)) * uint64(bytes)
        if lane() == group and first < uint64(blocks.size):
            put_d(blocks, first, unit_d)
            if has_m:
                put_m(blocks, first, unit_m)
        cuda.syncwarp()
        i = uint64(0)
        while i < uint64(each) and (index + i) * uint64(bytes) < uint64(blocks.size):
            put(blocks, (index + i) * uint64(bytes), codes, i * uint64(256), scales, minima, i * uint64(groups))
            i += uint64(1)

    return quantize_256
