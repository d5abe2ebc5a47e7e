"""Where the bits of a block go that is written: float16 numbers, codes, the whole numbers of groups."""

from functools import cache
from typing import Any

from gpu.compile import device_function
from gpu.llm.block_scales import start
from gpu.llm.blocks import CODES
from gpu.number import write
from refimpl.blocks import LAYOUTS
from refimpl.contract import host

__all__ = ["half", "pack"]


@host
@cache
def half(at: int) -> Any:
    """Return the function that writes a float16 into the bytes of a block."""
    from numba import int32, uint8, uint64

    narrow = write("float16")

    @device_function
    def half(blocks, first, number):
        bits = int32(narrow(number))
        blocks[first + uint64(at)] = uint8(bits & int32(255))
        blocks[first + uint64(at + 1)] = uint8(bits >> int32(8))

    return half


@cache
def _bits(bits: int, run: int, shift: int) -> Any:
    """Return the function that collects a byte of a field from codes that are ``run`` apart, the lowest first."""
    from numba import int32, uint64

    fields = 8 // bits

    @device_function
    def collect(codes, at, byte):
        first, found, k = byte // uint64(run) * uint64(run * fields) + byte % uint64(run), int32(0), uint64(0)
        while k < uint64(fields):
            code = int32(codes[at + first + k * uint64(run)]) >> int32(shift) & int32((1 << bits) - 1)
            found |= code << int32(k * uint64(bits))
            k += uint64(1)
        return found

    return collect


@cache
def _put_scales(format: str) -> Any:
    """Return the function that gives byte j of a block's scales: d's and m's whole numbers, and where they begin."""
    from numba import int32, uint64

    @device_function
    def bytes_of_q2_k(s, m, at, j):
        return s[at + j] | m[at + j] << int32(4)

    @device_function
    def bytes_of_q3_k(s, m, at, j):
        if j < uint64(8):
            return s[at + j] + int32(32) & int32(15) | (s[at + j + uint64(8)] + int32(32) & int32(15)) << int32(4)
        found, k = int32(0), uint64(0)
        while k < uint64(4):
            found |= (s[at + j - uint64(8) + k * uint64(4)] + int32(32) >> int32(4)) << int32(k * uint64(2))
            k += uint64(1)
        return found

    @device_function
    def bytes_of_six_bits(s, m, at, j):
        if j < uint64(4):
            return s[at + j] | s[at + j + uint64(4)] >> int32(4) << int32(6)
        if j < uint64(8):
            return m[at + j - uint64(4)] | m[at + j] >> int32(4) << int32(6)
        return s[at + j - uint64(4)] & int32(15) | (m[at + j - uint64(4)] & int32(15)) << int32(4)

    @device_function
    def bytes_of_q6_k(s, m, at, j):
        return s[at + j] & int32(255)

    return {"q2_k": bytes_of_q2_k, "q3_k": bytes_of_q3_k, "q6_k": bytes_of_q6_k}.get(format, bytes_of_six_bits)


@host
@cache
def pack(format: str) -> Any:
    """Return the function that has a warp write the codes and whole numbers of one of its blocks."""
    from numba import uint8, uint64

    from gpu.warp import lane

    (_, bits, run), *more = CODES[format][1]
    low, high = _bits(bits, run, 0), _bits(*more[0][1:], bits) if more else None
    low_at, high_at, scales_at = start(format, "low"), start(format, "high") if more else 0, start(format, "scales")
    low_bytes, high_bytes = 32 * bits, 32 * more[0][1] if more else 0
    scale_bytes, put_scales = (LAYOUTS[format].fields or {})["scales"][0].itemsize, _put_scales(format)

    @device_function
    def write_bytes(blocks, first, codes, codes_at, scales, minima, group):
        j = lane()
        while j < uint64(low_bytes):
            blocks[first + uint64(low_at) + j] = uint8(low(codes, codes_at, j))
            if high is not None and j < uint64(high_bytes):
                blocks[first + uint64(high_at) + j] = uint8(high(codes, codes_at, j))
            if j < uint64(scale_bytes):
                blocks[first + uint64(scales_at) + j] = uint8(put_scales(scales, minima, group, j))
            j += uint64(32)

    return write_bytes
