"""Weights in blocks as kernels read them, by the layouts of ``refimpl.blocks``.

Kernels see the bytes as 16-bit words: a block of every format is whole words, and its float16 numbers are words.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any

from gpu.compile import device_function
from gpu.llm.block_scales import field, scales, start
from gpu.registry import Variant
from refimpl.blocks import FORMATS, LAYOUTS
from refimpl.contract import host

__all__ = ["CODES", "FORMATS", "VARIANTS", "block_words", "code", "decode", "place"]

CODES: Mapping[str, tuple[int, tuple[tuple[str, int, int], ...]]] = {
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
def decode(format: str) -> Any:
    """Return the function for kernels that reads 16 weights, which share their scales, into float32.

    It takes words, the index of a row's first one, and the first column of the 16; ``place`` says where column c goes.
    w = d q + m, product and sum rounded one by one: an addition that the compiler fuses would not give the same bits.
    """
    from numba import cuda, float32, uint64

    elements, words_of_block = FORMATS[format].elements, block_words(format)
    read_code, read_scales, has_m = code(format), scales(format), "m" in (LAYOUTS[format].names or ())
    put = place()

    @device_function
    def one(e, weights, words, block, i, column, d, m):
        w = cuda.libdevice.fmul_rn(d, float32(read_code(words, block, i | e)))
        weights[put(column | e)] = cuda.libdevice.fadd_rn(w, m) if has_m else w

    sixteen = _unrolled(one, 16)

    @device_function
    def decode(weights, words, at, column):
        block, i = at + column // uint64(elements) * uint64(words_of_block), column % uint64(elements)
        d, m = read_scales(words, block, i)
        sixteen(weights, words, block, i, column, d, m)

    return decode


def _unrolled(step: Any, count: int) -> Any:
    """Return the function that calls ``step(e, ...)`` for e = 0, 1, ..., count - 1, each a constant to the compiler."""
    from numba import uint64

    before, last = _unrolled(step, count - 1) if count > 1 else None, count - 1

    @device_function
    def steps(*context):
        if before is not None:
            before(*context)
        step(uint64(last), *context)

    return steps


@host
@cache
def place() -> Any:
    """Return the function for kernels that says where a column of a chunk lies in shared memory.

    No two lanes meet in a bank, neither where each writes 16 neighbours nor where they read 32.
    """
    from numba import uint64

    @device_function
    def place(column):
        return column ^ column >> uint64(5)

    return place


@host
@cache
def code(format: str) -> Any:
    """Return the function for kernels that reads q: words, the index of the block's first one, element -> int32."""
    from numba import int8, int32

    offset, ((name, bits, run), *more) = CODES[format]
    low = field(start(format, name), bits, run)
    high = field(start(format, more[0][0]), *more[0][1:]) if more else None

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


VARIANTS: tuple[Variant, ...] = ()
"""None: these are parts of the kernels of ``gpu.llm.quantize``."""
