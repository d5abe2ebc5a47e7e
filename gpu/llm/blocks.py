"""Weights in blocks as kernels read them, by the layouts of ``refimpl.blocks``.

Kernels see the bytes as 16-bit words: a block of every format but mxfp4 is whole words, and its float16 numbers are
words. In mxfp4 places are counted in bytes (``unit``).
"""

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np

from gpu import device
from gpu.compile import device_function
from gpu.llm.block_scales import field, scales, start, unit
from gpu.registry import Variant
from refimpl.blocks import FORMATS, LAYOUTS
from refimpl.contract import Array, host

__all__ = ["CODES", "FORMATS", "VARIANTS", "block_units", "code", "decode", "place", "words_of"]

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
    "mxfp4": (0, (("low", 4, 16),)),
}
"""What is taken off a code, and the fields of its bits, the lowest first: name, bits, and bytes side by side."""


@host
def block_units(format: str) -> int:
    """Return the units of a block: its 16-bit words, or its bytes.

    >>> block_units("q8_0"), block_units("mxfp4")
    (17, 17)
    """
    return FORMATS[format].bytes // unit(format)


@host
def words_of(blocks: Array) -> Array:
    """Return rows of bytes as one run of 16-bit words; what begins or ends within a word is copied."""
    run = blocks.reshape(-1)
    if run.size % 2:
        whole = device.empty(run.size + 1, np.uint8)
        whole[: run.size] = run
        run = whole
    return (run if device.is_aligned(run, 2) else run.copy()).view(np.uint16)


@host
@cache
def decode(format: str) -> Any:
    """Return the function for kernels that reads 16 weights, which share their scales, into float32.

    It takes words, the place of a row's first block, and the first of the 16 columns; ``place`` says where column c is.
    w = d q + m, product and sum rounded one by one: an addition that the compiler fuses would not give the same bits.
    """
    from numba import cuda, float32, uint64

    elements, units = FORMATS[format].elements, block_units(format)
    read_code, read_scales, has_m = code(format), scales(format), "m" in (LAYOUTS[format].names or ())
    put = place()

    @device_function
    def one(e, weights, words, block, i, column, d, m):
        w = cuda.libdevice.fmul_rn(d, float32(read_code(words, block, i | e)))
        weights[put(column | e)] = cuda.libdevice.fadd_rn(w, m) if has_m else w

    sixteen = _unrolled(one, 16)

    @device_function
    def decode(weights, words, at, column):
        block, i = at + column // uint64(elements) * uint64(units), column % uint64(elements)
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
    """Return the function for kernels that reads q: words, the place of the block, element -> int32."""
    from numba import int8, int32, int64

    offset, ((name, bits, run), *more) = CODES[format]
    low = field(start(format, name), bits, run, unit(format))
    high = field(start(format, more[0][0]), *more[0][1:]) if more else None

    @device_function
    def signed(words, block, i):
        return int32(int8(low(words, block, i)))

    @device_function
    def one(words, block, i):
        return low(words, block, i) - int32(offset)

    @device_function
    def float_of_four_bits(words, block, i):
        bits_ = low(words, block, i)
        size = int32(int64(0xC8643210) >> int64((bits_ & int32(7)) * int32(4)) & int64(15))  # twice the numbers
        return -size if bits_ > int32(7) else size

    if format == "mxfp4":
        return float_of_four_bits
    if high is None:
        return signed if bits == 8 else one

    @device_function
    def two(words, block, i):
        return (low(words, block, i) | high(words, block, i) << int32(bits)) - int32(offset)

    return two


VARIANTS: tuple[Variant, ...] = ()
"""None: these are parts of the kernels of ``gpu.llm.quantize``."""
