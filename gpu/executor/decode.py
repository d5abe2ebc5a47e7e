"""Weights out of their tiles: what each format stores, said once for every kernel.

All block formats hold small codes q, unsigned here, in groups of columns that share a scale, so a weight is

    w = d q + m        m = -zero d  in the formats that centre their codes.

A format is two functions of a packed block (see pack.py: a field at stored byte ``f`` begins at ``block + 32 f``):
``codes(block, i)`` gives the codes of columns 4 i .. 4 i + 3 as the bytes of a word, ``scales(block, g)`` the d of
group g and its m, as a number the zero. ``d q`` is exact in float32 wherever an m is stored, and ``d (q - zero)`` is
rounded once, so ``fma(d, q, m)`` has the bits of refimpl's dequantize (the sign of a zero and infinite scales aside,
and in mxfp4 scales above 2^124, with which 12 d is infinite).
"""

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from llvmlite import ir

from refimpl.contract import host

from .lanes import (
    Value,
    call,
    fma,
    has,
    load_bfloats,
    load_floats,
    load_halves,
    load_words,
    loop,
    to_float,
)
from .pack import FORMATS

__all__ = ["BLOCKS", "PLAIN", "BlockFormat", "columns_of"]

Scales = tuple[Value, Value | int]


def _fields(at: Value, i: Value, bits: int, run: int) -> Value:
    """Read word i of fields of ``bits``: ``run`` words hold neighbours in their lowest fields, then in the next."""
    level = i // run
    word = load_words(at + (level * bits // 8 * run + i % run) * 128)
    return (word >> (level * bits % 8)) & ((1 << bits) - 1) * 0x01010101


def _byte(at: Value, g: Value) -> Value:
    """Read byte g of each row."""
    return (load_words(at + g // 4 * 128) >> (g % 4 * 8)) & 255


def _fifth_bits(at: Value, i: Value) -> Value:
    """Read bits 4 i .. 4 i + 3 of a word as bit 4 of four bytes: the product moves bit j by 7 j + 4."""
    return (((load_words(at) >> (i * 4)) & 15) * 0x02040810) & 0x10101010


def _codes_q8_0(block: Value, i: Value) -> Value:
    return load_words(block + 64 + i * 128) ^ 0x80808080


def _codes_q4_0(block: Value, i: Value) -> Value:
    return _fields(block + 64, i, 4, 4)


def _codes_q4_1(block: Value, i: Value) -> Value:
    return _fields(block + 128, i, 4, 4)


def _codes_q5_0(block: Value, i: Value) -> Value:
    return _fields(block + 192, i, 4, 4) | _fifth_bits(block + 64, i)


def _codes_q5_1(block: Value, i: Value) -> Value:
    return _fields(block + 256, i, 4, 4) | _fifth_bits(block + 128, i)


def _codes_q2_k(block: Value, i: Value) -> Value:
    return _fields(block + 32 * 16, i, 2, 8)


def _codes_q3_k(block: Value, i: Value) -> Value:
    return _fields(block + 32 * 32, i, 2, 8) | _fields(block, i, 1, 8) << 2


def _codes_q4_k(block: Value, i: Value) -> Value:
    return _fields(block + 32 * 16, i, 4, 8)


def _codes_q5_k(block: Value, i: Value) -> Value:
    return _fields(block + 32 * 48, i, 4, 8) | _fields(block + 32 * 16, i, 1, 8) << 4


def _codes_q6_k(block: Value, i: Value) -> Value:
    return _fields(block, i, 4, 16) | _fields(block + 32 * 128, i, 2, 8) << 4


_DOUBLES = (0, 1, 2, 3, 4, 6, 8, 12)  # twice the floats of four bits, whose fourth is the sign
_LOOK_UP = {64: "llvm.x86.avx512.pshuf.b.512", 32: "llvm.x86.avx2.pshuf.b"}  # bytes at once: the instruction


def _codes_mxfp4(block: Value, i: Value) -> Value:
    """Codes 0..24 of which 12 is zero: looked up where the processor can, else computed."""
    bits = _fields(block + 64, i, 4, 4)
    for size, feature in ((64, "avx512bw"), (32, "avx2")):
        if has(feature):
            return _look_up([*(12 + x for x in _DOUBLES), *(12 - x for x in _DOUBLES)], bits, size)
    first, second, third, sign = ((bits >> j) & 0x01010101 for j in range(4))
    double = (bits & 0x07070707) + (third & first) + ((third & second) + (third & second & first)) * 2
    return double + 0x0C0C0C0C - ((double & sign * 255) << 1)


def _look_up(table: list[int], places: Value, size: int) -> Value:
    """Return the entry of ``table`` [16] at every byte of a vector of words, ``size`` bytes at once."""
    builder, kind = places.builder, ir.VectorType(ir.IntType(8), size)
    entries, parts, order = Value(builder, ir.Constant(kind, table * (size // 16))), [], ir.IntType(32)
    for first in range(0, places.lanes, size // 4):
        lanes = ir.Constant(ir.VectorType(order, size // 4), list(range(first, first + size // 4)))
        part = builder.bitcast(builder.shuffle_vector(places.value, places.value, lanes), kind)
        parts.append(call(_LOOK_UP[size], kind, entries, Value(builder, part)).value)
    while len(parts) > 1:
        both = ir.Constant(ir.VectorType(order, 2 * parts[0].type.count), list(range(2 * parts[0].type.count)))
        parts = [builder.shuffle_vector(parts[n], parts[n + 1], both) for n in range(0, len(parts), 2)]
    return Value(builder, builder.bitcast(parts[0], places.value.type))


def _scales_centred(zero: int) -> Callable[[Value, Value], Scales]:
    return lambda block, g: (load_halves(block), zero)


def _scales_mxfp4(block: Value, g: Value) -> Scales:
    return load_bfloats(block), 12


def _scales_offset(block: Value, g: Value) -> Scales:
    return load_halves(block), load_halves(block + 64)


def _scales_q2_k(block: Value, g: Value) -> Scales:
    scale = _byte(block, g)
    d, m = load_halves(block + 32 * 80), load_halves(block + 32 * 82)
    return d * to_float(scale & 15), m * to_float(scale >> 4) * -1.0


def _scales_q3_k(block: Value, g: Value) -> Scales:
    low, high = _byte(block + 32 * 96, g % 8) >> (g // 8 * 4), _byte(block + 32 * 104, g % 4) >> (g // 4 * 2)
    return load_halves(block + 32 * 108) * to_float(((low & 15) | (high & 3) << 4) - 32), 4


def _scales_q4_k(block: Value, g: Value) -> Scales:
    """Groups 0-3 keep six bits in a byte of their own; groups 4-7 keep four in ``rest`` and two above those six."""
    d, m, rest = (_byte(block + 32 * place, g % 4) for place in (4, 8, 12))
    upper = g // 4 * -1  # all bits in groups 4-7
    d, m = (
        ((six & 63) & (upper ^ -1)) | (((four & 15) | (six >> 6) << 4) & upper)
        for six, four in ((d, rest), (m, rest >> 4))
    )
    return load_halves(block) * to_float(d), load_halves(block + 64) * to_float(m) * -1.0


def _scales_q6_k(block: Value, g: Value) -> Scales:
    signed = (_byte(block + 32 * 192, g) ^ 128) - 128
    return load_halves(block + 32 * 208) * to_float(signed), 32


class BlockFormat(NamedTuple):
    """How to read a block: its groups, and the two functions of the head of this file."""

    groups: int
    scales: Callable[[Value, Value], Scales]
    codes: Callable[[Value, Value], Value]


BLOCKS: Mapping[str, BlockFormat] = {
    "q8_0": BlockFormat(1, _scales_centred(128), _codes_q8_0),
    "q4_0": BlockFormat(1, _scales_centred(8), _codes_q4_0),
    "q4_1": BlockFormat(1, _scales_offset, _codes_q4_1),
    "q5_0": BlockFormat(1, _scales_centred(16), _codes_q5_0),
    "q5_1": BlockFormat(1, _scales_offset, _codes_q5_1),
    "q2_k": BlockFormat(16, _scales_q2_k, _codes_q2_k),
    "q3_k": BlockFormat(16, _scales_q3_k, _codes_q3_k),
    "q4_k": BlockFormat(8, _scales_q4_k, _codes_q4_k),
    "q5_k": BlockFormat(8, _scales_q4_k, _codes_q5_k),
    "q6_k": BlockFormat(16, _scales_q6_k, _codes_q6_k),
    "mxfp4": BlockFormat(1, _scales_mxfp4, _codes_mxfp4),
}
PLAIN: Mapping[str, Callable[[Value], Value]] = {
    "float32": load_floats,
    "float16": load_halves,
    "bfloat16": load_bfloats,
}


def _columns_of_blocks(name: str, tile: Value, width: Value) -> Iterator[tuple[Value, list[Value]]]:
    form, layout = BLOCKS[name], FORMATS[name]
    words = layout.elements // 4 // form.groups
    for b in loop(width // layout.elements):
        block = tile + b * (32 * layout.bytes)
        for g in loop(b.of(form.groups)):
            d, m = form.scales(block, g)
            m = d * float(-m) if isinstance(m, int) else m
            spread = [d, d * 2.0**-8, d * 2.0**-16, d]  # the second and third byte stay where they are, times 256^j
            for w in loop(b.of(words)):
                i = g * words + w
                word = form.codes(block, i)
                bytes_of_word = word & 0xFF, word & 0xFF00, word & 0xFF0000, word >> 24
                weights = [fma(scale, to_float(q), m) for scale, q in zip(spread, bytes_of_word, strict=True)]
                yield b * layout.elements + i * 4, weights


@host
def columns_of(name: str, tile: Value, width: Value) -> Iterator[tuple[Value, list[Value]]]:
    """Append the loops over the columns of a tile, in order: (first column, weights of the columns from it on)."""
    if name in BLOCKS:
        yield from _columns_of_blocks(name, tile, width)
        return
    for k in loop(width):
        yield k, [PLAIN[name](tile + k * (32 * FORMATS[name].bytes))]
