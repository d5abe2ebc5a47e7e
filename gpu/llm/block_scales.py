"""The scales of quantised weights as kernels read them, and the fields of bits that a block is made of."""

from functools import cache
from typing import Any

from gpu.compile import device_function
from gpu.number import read
from refimpl.blocks import LAYOUTS
from refimpl.contract import host

__all__ = ["field", "scales", "start", "unit"]


@host
@cache
def scales(format: str) -> Any:
    """Return the function for kernels that reads d and m, 0 where there is none: words, block, element -> d, m."""
    own = {
        "q2_k": _scales_q2_k, "q3_k": _scales_q3_k, "q4_k": _scales_six_bits, "q5_k": _scales_six_bits,
        "q6_k": _scales_q6_k, "mxfp4": _scales_mxfp4,
    }
    return own.get(format, _scales_plain)(format)


@host
def start(format: str, name: str) -> int:
    """Return the byte of a block at which a field begins."""
    return (LAYOUTS[format].fields or {})[name][1]


@host
def unit(format: str) -> int:
    """Return the bytes in which places of a format are counted: those of a word, or 1 where blocks end within one.

    >>> unit("q8_0"), unit("mxfp4")
    (2, 1)
    """
    return 1 if LAYOUTS[format].itemsize % 2 else 2


@host
@cache
def field(start: int, bits: int, run: int, unit: int = 2) -> Any:
    """Return the function for kernels that reads element i of bit fields, packed into bytes from one on.

    ``run`` neighbours stand in the lowest bits of as many bytes, the next ``run`` in the bits above them.
    """
    from numba import int32, uint64

    fields = 8 // bits

    @device_function
    def field(words, block, i):
        byte = uint64(start) + i // uint64(run * fields) * uint64(run) + i % uint64(run)
        shift = i // uint64(run) % uint64(fields) * uint64(bits)
        if unit == 2:
            word, shift = words[block + byte // uint64(2)], shift + (byte & uint64(1)) * uint64(8)
        else:
            byte += block
            word, shift = words[byte // uint64(2)], shift + (byte & uint64(1)) * uint64(8)
        return int32(uint64(word) >> shift & uint64((1 << bits) - 1))

    return field


@cache
def _half(format: str, name: str) -> Any:
    """Return the function that reads a float16 of a block."""
    from numba import uint64

    word, wide = start(format, name) // 2, read("float16")

    @device_function
    def half(words, block):
        return wide(words[block + uint64(word)])

    return half


def _scales_plain(format: str) -> Any:
    from numba import float32

    has_m = "m" in (LAYOUTS[format].names or ())
    half_d, half_m = _half(format, "d"), _half(format, "m" if has_m else "d")

    @device_function
    def scales(words, block, i):
        return half_d(words, block), half_m(words, block) if has_m else float32(0)

    return scales


def _scales_q2_k(format: str) -> Any:
    from numba import cuda, float32, uint64

    half_d, half_m, byte = _half(format, "d"), _half(format, "m"), field(start(format, "scales"), 8, 16)

    @device_function
    def scales(words, block, i):
        both = byte(words, block, i // uint64(16))
        d = cuda.libdevice.fmul_rn(half_d(words, block), float32(both & 15))
        return d, cuda.libdevice.fmul_rn(-half_m(words, block), float32(both >> 4))

    return scales


def _scales_q3_k(format: str) -> Any:
    from numba import cuda, float32, int32, uint64

    half_d, first = _half(format, "d"), start(format, "scales")
    low, high = field(first, 4, 8), field(first + 8, 2, 4)

    @device_function
    def scales(words, block, i):
        group = i // uint64(16)
        scale = (low(words, block, group) | high(words, block, group) << int32(4)) - int32(32)
        return cuda.libdevice.fmul_rn(half_d(words, block), float32(scale)), float32(0)

    return scales


def _scales_six_bits(format: str) -> Any:
    """Groups 0-3 keep six bits in a byte of their own, d's before m's.

    Groups 4-7 keep four in the last four bytes, and two above those six.
    """
    from numba import cuda, float32, int32, uint64

    half_d, half_m, byte = _half(format, "d"), _half(format, "m"), field(start(format, "scales"), 8, 16)

    @device_function
    def scales(words, block, i):
        group = i // uint64(32)
        own_d, own_m = byte(words, block, group % uint64(4)), byte(words, block, group % uint64(4) + uint64(4))
        rest = byte(words, block, group % uint64(4) + uint64(8))
        upper = group >= uint64(4)
        scale_d = rest & int32(15) | own_d >> int32(6) << int32(4) if upper else own_d & int32(63)
        scale_m = rest >> int32(4) | own_m >> int32(6) << int32(4) if upper else own_m & int32(63)
        d = cuda.libdevice.fmul_rn(half_d(words, block), float32(scale_d))
        return d, cuda.libdevice.fmul_rn(-half_m(words, block), float32(scale_m))

    return scales


def _scales_q6_k(format: str) -> Any:
    from numba import cuda, float32, int8, uint64

    half_d, byte = _half(format, "d"), field(start(format, "scales"), 8, 16)

    @device_function
    def scales(words, block, i):
        scale = int8(byte(words, block, i // uint64(16)))
        return cuda.libdevice.fmul_rn(half_d(words, block), float32(scale)), float32(0)

    return scales


def _scales_mxfp4(format: str) -> Any:
    from numba import cuda, float32, int32, uint64

    byte = field(start(format, "exponent"), 8, 1, unit(format))

    @device_function
    def scales(words, block, i):
        e = byte(words, block, uint64(0))
        bits = (e - int32(1)) << int32(23) if e > int32(1) else int32(0x200000) << e  # 2^(e - 128)
        return cuda.libdevice.int_as_float(bits if e < int32(255) else int32(0x7FC00000)), float32(0)

    return scales
