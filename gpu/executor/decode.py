"""Weights out of their tiles: what each format stores, said once for every kernel.

All block formats hold small codes q, unsigned here, in groups of columns that share a scale, so a weight is

    w = d q + m        m = -zero d  in the formats that centre their codes.

A format is two functions of a packed block (see pack.py: a field at stored byte ``f`` begins at ``block + 32 f``):
``codes(block, i)`` returns the codes of columns 4 i .. 4 i + 3 as the bytes of a word, ``scales(block, g)`` the d and
m of group g. ``d q`` is exact in float32 wherever an m other than ``-zero d`` follows, and ``d (q - zero)`` is rounded
once, so ``fma(d, q, m)`` has the bits of refimpl's dequantize (the sign of a zero and infinite scales aside).
"""

from typing import Any

import numpy as np

from gpu.executor.lanes import (
    fma, inlined, load_bfloats, load_float, load_floats, load_halves, load_words, splat, store, to_float,
)  # fmt: skip
from gpu.executor.pack import FORMATS

__all__ = ["dot_tile", "unpack_tile"]

_ZERO = np.float32(0)
_BYTE = tuple(np.float32(256.0**-j) for j in range(3))


@inlined
def _fields(at, i, bits, run):
    """Return word i of fields of ``bits``: ``run`` words hold neighbours in their lowest fields, then above, and so on."""
    level = i // run
    word = load_words(at + 128 * (level * bits // 8 * run + i % run))
    return (word >> (bits * level % 8)) & (((1 << bits) - 1) * 0x01010101)


@inlined
def _byte(at, g):
    """Return byte g of each row."""
    return (load_words(at + 128 * (g // 4)) >> (8 * (g % 4))) & 255


@inlined
def _centred(d, zero):
    return d, d * splat(np.float32(-zero))


@inlined
def _scales_q8_0(block, g):
    return _centred(load_halves(block), 128)


@inlined
def _codes_q8_0(block, i):
    return load_words(block + 64 + 128 * i) ^ 0x80808080


@inlined
def _scales_q4_0(block, g):
    return _centred(load_halves(block), 8)


@inlined
def _codes_q4_0(block, i):
    return _fields(block + 64, i, 4, 4)


@inlined
def _scales_q4_1(block, g):
    return load_halves(block), load_halves(block + 64)


@inlined
def _codes_q4_1(block, i):
    return _fields(block + 128, i, 4, 4)


@inlined
def _fifth_bits(at, i):
    """Return bits 4 i .. 4 i + 3 of a word as bit 4 of four bytes: the product moves bit j by 7 j + 4."""
    return (((load_words(at) >> (4 * i)) & 15) * 0x02040810) & 0x10101010


@inlined
def _scales_q5_0(block, g):
    return _centred(load_halves(block), 16)


@inlined
def _codes_q5_0(block, i):
    return _fields(block + 192, i, 4, 4) | _fifth_bits(block + 64, i)


@inlined
def _codes_q5_1(block, i):
    return _fields(block + 256, i, 4, 4) | _fifth_bits(block + 128, i)


@inlined
def _scales_q2_k(block, g):
    scale = _byte(block, g)
    d, m = load_halves(block + 32 * 80), load_halves(block + 32 * 82)
    return d * to_float(scale & 15), m * to_float(scale >> 4) * splat(np.float32(-1))


@inlined
def _codes_q2_k(block, i):
    return _fields(block + 32 * 16, i, 2, 8)


@inlined
def _scales_q3_k(block, g):
    low, high = _byte(block + 32 * 96, g % 8) >> (g // 8 * 4), _byte(block + 32 * 104, g % 4) >> (g // 4 * 2)
    scale = ((low & 15) | ((high & 3) << 4)) - 32
    return _centred(load_halves(block + 32 * 108) * to_float(scale), 4)


@inlined
def _codes_q3_k(block, i):
    return _fields(block + 32 * 32, i, 2, 8) | (_fields(block, i, 1, 8) << 2)


@inlined
def _scales_q4_k(block, g):
    """Groups 0-3 keep six bits in a byte of their own; groups 4-7 keep four in a third byte, two above those six."""
    j = g % 4
    d, m, rest = _byte(block + 32 * 4, j), _byte(block + 32 * 8, j), _byte(block + 32 * 12, j)
    if g >= 4:
        d, m = (rest & 15) | ((d >> 6) << 4), (rest >> 4) | ((m >> 6) << 4)
    d, m = to_float(d & 63), to_float(m & 63)
    return load_halves(block) * d, load_halves(block + 64) * m * splat(np.float32(-1))


@inlined
def _codes_q4_k(block, i):
    return _fields(block + 32 * 16, i, 4, 8)


@inlined
def _codes_q5_k(block, i):
    return _fields(block + 32 * 48, i, 4, 8) | (_fields(block + 32 * 16, i, 1, 8) << 4)


@inlined
def _scales_q6_k(block, g):
    scale = (_byte(block + 32 * 192, g) ^ 128) - 128
    return _centred(load_halves(block + 32 * 208) * to_float(scale), 32)


@inlined
def _codes_q6_k(block, i):
    return _fields(block, i, 4, 16) | (_fields(block + 32 * 128, i, 2, 8) << 4)


@inlined
def _numbers(word):
    """Return the four bytes of a word as floats; the first three times 256^j, which needs no shift."""
    return to_float(word & 0xFF), to_float(word & 0xFF00), to_float(word & 0xFF0000), to_float(word >> 24)


@inlined
def _spread(d):
    """Return d for each of the four of ``_numbers``."""
    return d, d * splat(_BYTE[1]), d * splat(_BYTE[2]), d


def _block_kernels(name: str, groups: int, scales: Any, codes: Any, others: tuple[Any, Any]) -> tuple[Any, Any]:
    """Return (dot, unpack) for a block format: both walk the columns in order, groups outside, words inside."""
    code, columns, size = list(FORMATS).index(name), FORMATS[name].elements, 32 * FORMATS[name].bytes
    words, (other_dot, other_unpack) = columns // 4 // groups, others

    @inlined
    def dot(form, tile, width, x):
        if form != code:
            return other_dot(form, tile, width, x)
        total = splat(_ZERO)
        for block in range(tile, tile + width // columns * size, size):
            for g in range(groups):
                d, m = scales(block, g)
                d0, d1, d2, d3 = _spread(d)
                for i in range(g * words, (g + 1) * words):
                    q0, q1, q2, q3 = _numbers(codes(block, i))
                    total = fma(fma(d0, q0, m), load_float(x), total)
                    total = fma(fma(d1, q1, m), load_float(x + 4), total)
                    total = fma(fma(d2, q2, m), load_float(x + 8), total)
                    total = fma(fma(d3, q3, m), load_float(x + 12), total)
                    x += 16
        return total

    @inlined
    def unpack(form, tile, width, panel):
        if form != code:
            return other_unpack(form, tile, width, panel)
        for block in range(tile, tile + width // columns * size, size):
            for g in range(groups):
                d, m = scales(block, g)
                d0, d1, d2, d3 = _spread(d)
                for i in range(g * words, (g + 1) * words):
                    q0, q1, q2, q3 = _numbers(codes(block, i))
                    store(panel, fma(d0, q0, m))
                    store(panel + 128, fma(d1, q1, m))
                    store(panel + 256, fma(d2, q2, m))
                    store(panel + 384, fma(d3, q3, m))
                    panel += 512

    return dot, unpack


def _plain_kernels(name: str, read: Any, others: tuple[Any, Any]) -> tuple[Any, Any]:
    """Return (dot, unpack) for a format of plain numbers."""
    code, size = list(FORMATS).index(name), 32 * FORMATS[name].bytes
    other_dot, other_unpack = others

    @inlined
    def dot(form, tile, width, x):
        if form != code:
            return other_dot(form, tile, width, x)
        total = splat(_ZERO)
        for k in range(width):
            total = fma(read(tile + k * size), load_float(x + 4 * k), total)
        return total

    @inlined
    def unpack(form, tile, width, panel):
        if form != code:
            return other_unpack(form, tile, width, panel)
        for k in range(width):
            store(panel + 128 * k, read(tile + k * size))

    return dot, unpack


def _kernels() -> tuple[Any, Any]:
    """Return (dot, unpack) that choose by the code of a format."""

    @inlined
    def no_dot(form, tile, width, x):
        return splat(_ZERO)

    @inlined
    def no_unpack(form, tile, width, panel):
        pass

    chosen = no_dot, no_unpack
    for name, groups, scales, codes in _BLOCKS:
        chosen = _block_kernels(name, groups, scales, codes, chosen)
    for name, read in (("float32", load_floats), ("float16", load_halves), ("bfloat16", load_bfloats)):
        chosen = _plain_kernels(name, read, chosen)
    return chosen


_BLOCKS = (
    ("q8_0", 1, _scales_q8_0, _codes_q8_0),
    ("q4_0", 1, _scales_q4_0, _codes_q4_0),
    ("q4_1", 1, _scales_q4_1, _codes_q4_1),
    ("q5_0", 1, _scales_q5_0, _codes_q5_0),
    ("q5_1", 1, _scales_q4_1, _codes_q5_1),
    ("q2_k", 16, _scales_q2_k, _codes_q2_k),
    ("q3_k", 16, _scales_q3_k, _codes_q3_k),
    ("q4_k", 8, _scales_q4_k, _codes_q4_k),
    ("q5_k", 8, _scales_q4_k, _codes_q5_k),
    ("q6_k", 16, _scales_q6_k, _codes_q6_k),
)

dot_tile, unpack_tile = _kernels()
