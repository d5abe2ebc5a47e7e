"""Weights in blocks as kernels read them, by the layouts of ``refimpl.llm.blocks``.

Kernels see the bytes as 16-bit words: a block of every format is whole words, and its float16 numbers are words.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any

from gpu.compile import device_function
from gpu.number import read
from gpu.registry import Variant
from refimpl.contract import host
from refimpl.llm.blocks import FORMATS, LAYOUTS

__all__ = ["CHUNK", "FORMATS", "VARIANTS", "block_words", "code", "scales", "weight"]

CHUNK = 512
"""Columns that a warp reads at a time: whole blocks of every format, nearly whole sectors of memory."""

_CODES: Mapping[str, tuple[int, tuple[tuple[str, int, int], ...]]] = {
    "q8_0": (0, (("q", 8, 32),)),
    "q4_0": (8, (("low", 4, 16),)),
    "q4_1": (0, (("low", 4, 16),)),
    "q5_0": (16, (("low", 4, 16), ("high", 1, 1))),
    "q5_1": (0, (("low", 4, 16), ("high", 1, 1))),
    "q2_k": (0, (("low", 2, 32),)),
    "q3_k": (4, (("low", 2, 32), ("high", 1, 32))),
    "q4_k": (0, (("low", 4, 32),)),
    "q5_k": (0, (("low", 4, 32), ("high", 1, 32))),
    "q6_k": (32, (("low", 4, 64), ("high", 2, 32))),
}
"""What is taken off a code, and the fields of its bits, the lowest first: name, bits, and bytes side by side."""


@host
def block_words(format: str) -> int:
    """Return the 16-bit words of a block.

    >>> block_words("q8_0")
    17
    """
    return FORMATS[format].bytes // 2


@host
@cache
def weight(format: str) -> Any:
    """Return the function for kernels that reads a weight: words, the index of a row's first one, column -> float32.

    w = d q + m, product and sum rounded one by one: an addition that the compiler fuses would not give the same bits.
    """
    from numba import cuda, float32, uint64

    elements, words_of_block = FORMATS[format].elements, block_words(format)
    read_code, read_scales, has_m = code(format), scales(format), "m" in (LAYOUTS[format].names or ())

    @device_function
    def weight(words, at, column):
        block, i = at + column // uint64(elements) * uint64(words_of_block), column % uint64(elements)
        d, m = read_scales(words, block, i)
        product = cuda.libdevice.fmul_rn(d, float32(read_code(words, block, i)))
        return cuda.libdevice.fadd_rn(product, m) if has_m else product

    return weight


@host
@cache
def code(format: str) -> Any:
    """Return the function for kernels that reads q: words, the index of the block's first one, element -> int32."""
    from numba import int8, int32

    offset, ((name, bits, run), *more) = _CODES[format]
    low = _field(_start(format, name), bits, run)
    high = _field(_start(format, more[0][0]), *more[0][1:]) if more else None

    @device_function
    def signed(words, block, i):
        return int32(int8(low(words, block, i)))

    @device_function
    def one(words, block, i):
        return low(words, block, i) - int32(offset)

    if high is None:
        return signed if bits == 8 else one

    @device_function
    def two(words, block, i):
        return (low(words, block, i) | high(words, block, i) << int32(bits)) - int32(offset)

    return two


@host
@cache
def scales(format: str) -> Any:
    """Return the function for kernels that reads d and m, 0 where there is none: words, block, element -> d, m."""
    own = {
        "q2_k": _scales_q2_k, "q3_k": _scales_q3_k, "q4_k": _scales_six_bits, "q5_k": _scales_six_bits,
        "q6_k": _scales_q6_k,
    }
    return own.get(format, _scales_plain)(format)


def _start(format: str, name: str) -> int:
    return (LAYOUTS[format].fields or {})[name][1]


@cache
def _field(start: int, bits: int, run: int) -> Any:
    """Return the function that reads element i of fields packed into bytes: ``run`` neighbours in the lowest bits of as
    many bytes, the next ``run`` in the bits above them."""
    from numba import int32, uint64

    fields = 8 // bits

    @device_function
    def field(words, block, i):
        byte = uint64(start) + i // uint64(run * fields) * uint64(run) + i % uint64(run)
        shift = (byte & uint64(1)) * uint64(8) + i // uint64(run) % uint64(fields) * uint64(bits)
        return int32(uint64(words[block + byte // uint64(2)]) >> shift & uint64((1 << bits) - 1))

    return field


@cache
def _half(format: str, name: str) -> Any:
    """Return the function that reads a float16 of a block."""
    from numba import uint64

    place, wide = _start(format, name) // 2, read("float16")

    @device_function
    def half(words, block):
        return wide(words[block + uint64(place)])

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

    half_d, half_m, byte = _half(format, "d"), _half(format, "m"), _field(_start(format, "scales"), 8, 16)

    @device_function
    def scales(words, block, i):
        both = byte(words, block, i // uint64(16))
        d = cuda.libdevice.fmul_rn(half_d(words, block), float32(both & 15))
        return d, cuda.libdevice.fmul_rn(-half_m(words, block), float32(both >> 4))

    return scales


def _scales_q3_k(format: str) -> Any:
    from numba import cuda, float32, int32, uint64

    half_d, start = _half(format, "d"), _start(format, "scales")
    low, high = _field(start, 4, 8), _field(start + 8, 2, 4)

    @device_function
    def scales(words, block, i):
        group = i // uint64(16)
        scale = (low(words, block, group) | high(words, block, group) << int32(4)) - int32(32)
        return cuda.libdevice.fmul_rn(half_d(words, block), float32(scale)), float32(0)

    return scales


def _scales_six_bits(format: str) -> Any:
    """Groups 0-3 keep six bits in a byte of their own, d's before m's; groups 4-7 keep four in the last four bytes and
    two above those six."""
    from numba import cuda, float32, int32, uint64

    half_d, half_m, byte = _half(format, "d"), _half(format, "m"), _field(_start(format, "scales"), 8, 16)

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

    half_d, byte = _half(format, "d"), _field(_start(format, "scales"), 8, 16)

    @device_function
    def scales(words, block, i):
        scale = int8(byte(words, block, i // uint64(16)))
        return cuda.libdevice.fmul_rn(half_d(words, block), float32(scale)), float32(0)

    return scales


VARIANTS: tuple[Variant, ...] = ()
"""None: these are parts of the kernels of ``gpu.llm.quantize``."""
