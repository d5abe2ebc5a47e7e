"""Linear maps with int8 activations: bit for bit refimpl's linear_int8, for any batch.

A block of 32 columns of x is q int8 [32], a scale dx and the sum of q. Per block of weights and row,

    s = s + dx (d dot + m sum)      or, where codes are centred,      s = s + dx (d (dot - zero sum))

dot is the exact integer product of the unsigned codes and q, made of words of four columns (one instruction,
vpdpbusd, where there is one); each product and sum around it is rounded once, blocks follow in order.
"""

from collections.abc import Sequence

from llvmlite import ir
from numba.extending import intrinsic

from refimpl.contract import host

from .decode import BLOCKS
from .jit import jit
from .lanes import (
    ROWS,
    Value,
    Variable,
    call,
    emit,
    has,
    load_floats,
    load_words,
    loop,
    splat,
    store,
    to_float,
    when,
    zeros,
)
from .linear import finish_tile
from .pack import FORMATS

__all__ = ["has_int8", "linear_rows_int8", "quantize_rows_int8"]

_F32, _I8, _I16, _I32 = ir.FloatType(), ir.IntType(8), ir.IntType(16), ir.IntType(32)
_FLOATS, _WORDS = ir.VectorType(_F32, ROWS), ir.VectorType(_I32, ROWS)
_NARROW = {code: name for code, name in enumerate(FORMATS) if name in BLOCKS and FORMATS[name].elements == 32}
_TILE_BLOCK = tuple(32 * layout.bytes for layout in FORMATS.values())
_TOGETHER = 4  # tokens that share the unpacking of a word


@host
def has_int8(code: int) -> bool:
    """Say whether a format takes int8 activations: its blocks have 32 elements."""
    return code in _NARROW


def _pick(x: Value, lanes: Sequence[int]) -> Value:
    order = ir.Constant(ir.VectorType(_I32, len(lanes)), list(lanes))
    return Value(x.builder, x.builder.shuffle_vector(x.value, x.value, order))


def _dot_instruction(total: Value, unsigned: Value, signed: Value) -> Value:
    """vpdpbusd, 16 lanes at a time."""
    parts = []
    for first in range(0, ROWS, 16):
        x, *words = (_pick(value, range(first, first + 16)) for value in (total, unsigned, signed))
        y, z = (Value(word.builder, word.builder.bitcast(word.value, ir.VectorType(_I8, 64))) for word in words)
        parts.append(call("llvm.x86.avx512.vpdpbusd.512", ir.VectorType(_I32, 16), x, y, z).value)
    return Value(total.builder, total.builder.shuffle_vector(*parts, ir.Constant(_WORDS, list(range(ROWS)))))


def _dot_plain(total: Value, unsigned: Value, signed: Value) -> Value:
    """Even and odd bytes as pairs of int16, whose products LLVM sums with one instruction where it knows one."""
    pairs = ir.VectorType(_I16, 2 * ROWS)
    for odd in (0, 1):
        words = (unsigned >> 8 * odd) & 0x00FF00FF, signed
        x, y = (Value(word.builder, word.builder.bitcast(word.value, pairs)) for word in words)
        y = (y << 8 * (1 - odd)).make("ashr", 8)
        product = x.cast("sext", _I32) * y.cast("sext", _I32)
        total = total + (_pick(product, range(0, 2 * ROWS, 2)) + _pick(product, range(1, 2 * ROWS, 2)))
    return total


_dot4 = _dot_instruction if has("avx512vnni") else _dot_plain
"""total + the sum over a word's four bytes of unsigned bytes of each lane times signed bytes."""


def _write_tile(
    tokens: int, form: Value, tile: Value, width: Value, q: Value, scales: Value, sums: Value, out: Value
) -> None:
    blocks = width // 32
    for code, name in _NARROW.items():
        with when(form, code):
            totals = [Variable(zeros(tile)) for _ in range(tokens)]
            for b in loop(blocks):
                block = tile + b * _TILE_BLOCK[code]
                dots = [Variable(zeros(tile, integer=True)) for _ in range(tokens)]
                for i in loop(b.of(8)):
                    word = BLOCKS[name].codes(block, i)
                    for t, dot in enumerate(dots):
                        four = load_words(q + width * t + b * 32 + i * 4, 0)
                        dot.set(_dot4(dot.get(), word, splat(four)))
                d, m = BLOCKS[name].scales(block, b.of(0))
                for t, (dot, total) in enumerate(zip(dots, totals, strict=True)):
                    place = (blocks * t + b) * 4
                    column_sum = load_words(sums + place, 0)
                    if isinstance(m, int):
                        term = d * to_float(dot.get() - column_sum * m)
                    else:
                        term = d * to_float(dot.get()) + m * to_float(column_sum)
                    total.set(total.get() + term * load_floats(scales + place, 0))
            for t, total in enumerate(totals):
                store(out + 4 * ROWS * t, total.get())


@intrinsic(prefer_literal=True)
def _sum_tile(context, tokens, form, tile, width, q, scales, sums, out):
    """Write the sums of a few tokens for a tile to float32 [tokens, 32] ``out``."""
    return emit(_write_tile, (tokens, form, tile, width, q, scales, sums, out))


@jit
def linear_rows_int8(form, packed, width, rows, begin, end, q, scales, sums, tokens, y, y_stride, bias, scratch):
    """Write y[:, 32 begin : 32 end] = x w^T + b for x as ``quantize_rows_int8`` left it.

    The other arguments are those of ``linear_rows``; form is one that ``has_int8`` knows.
    """
    blocks = width // 32
    for tile in range(begin, end):
        place = packed + tile * blocks * _TILE_BLOCK[form]
        t = 0
        while t < tokens:
            q_t, scales_t, sums_t = q + t * width, scales + 4 * t * blocks, sums + 4 * t * blocks
            if t + _TOGETHER <= tokens:
                count = _TOGETHER
                _sum_tile(_TOGETHER, form, place, width, q_t, scales_t, sums_t, scratch)
            else:
                count = 1
                _sum_tile(1, form, place, width, q_t, scales_t, sums_t, scratch)
            finish_tile(scratch, ROWS * tile, rows, count, y + t * y_stride, y_stride, bias)
            t += count


def _write_quantized(x: Value, q: Value, scale: Value, total: Value) -> None:
    builder, block = x.builder, load_floats(x)
    size = call("llvm.vector.reduce.umax.v32i32", _I32, block.cast("bitcast", _I32) & 0x7FFFFFFF)
    largest = Value(builder, builder.fdiv(size.cast("bitcast", _F32).value, ir.Constant(_F32, 127.0)))
    store(scale, largest)
    positive = builder.fcmp_ordered(">", largest.value, ir.Constant(_F32, 0.0))
    divisor = Value(builder, builder.select(positive, largest.value, ir.Constant(_F32, float("inf"))))
    ratio = Value(builder, builder.fdiv(block.value, splat(divisor).value))
    codes = call("llvm.rint.v32f32", _FLOATS, ratio).cast("fptosi", _I32)
    codes = call("llvm.smin.v32i32", _WORDS, call("llvm.smax.v32i32", _WORDS, codes, codes * 0 + -127), codes * 0 + 127)
    store(q, codes.cast("trunc", _I8))
    store(total, call("llvm.vector.reduce.add.v32i32", _I32, codes))


@intrinsic
def _quantize_block(context, x, q, scale, total):
    """Quantise 32 float32 as refimpl's quantize_int8 does, and add the codes up."""
    return emit(_write_quantized, (x, q, scale, total))


@jit
def quantize_rows_int8(x, x_stride, tokens, width, q, scales, sums):
    """Write int8 activations: q int8 [tokens, width], scales float32 and sums int32 [tokens, width / 32].

    x float32 [tokens, width], ``x_stride`` bytes between rows; width is a multiple of 32; x is finite.
    """
    for t in range(tokens):
        for b in range(width // 32):
            _quantize_block(x + t * x_stride + 128 * b, q, scales, sums)
            q += 32
            scales += 4
            sums += 4
