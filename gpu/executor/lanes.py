"""Thirty-two lanes as one Numba value: a column of a tile of weights, one lane for each output row.

A tile is 32 output rows of a weight matrix. ``floats`` and ``ints`` hold one number for each of them and are written
about like NumPy arrays: ``to_float((words >> 4) & 15)``. The code is generic LLVM vector IR, of which LLVM makes two
registers of AVX-512, four of AVX2 or eight of NEON. Every operation is one IEEE operation a lane, in the order
written; nothing here may be reassociated, so equal inputs give equal bits on all of them.

Addresses are byte addresses: slices of arrays cost Numba bounds and strides that a pointer does not have.
"""

import operator
from collections.abc import Callable
from typing import Any

import numba
from llvmlite import ir
from numba.core import cgutils, types
from numba.core.datamodel import models, register_default
from numba.core.registry import cpu_target
from numba.core.typing import signature
from numba.core.typing.templates import ConcreteTemplate, infer_global
from numba.extending import intrinsic, lower_builtin

__all__ = [
    "ROWS", "inlined", "has", "floats", "ints", "load_float", "load_word", "load_floats", "load_bfloats",
    "load_halves", "load_words", "store", "store_word", "splat", "to_float", "fma", "dot4",
]

ROWS = 32
_F16, _F32, _I8, _I16, _I32 = ir.HalfType(), ir.FloatType(), ir.IntType(8), ir.IntType(16), ir.IntType(32)
_FLOATS, _INTS = ir.VectorType(_F32, ROWS), ir.VectorType(_I32, ROWS)

inlined = numba.njit(nogil=True, error_model="numpy", fastmath=False, forceinline=True)
"""Decorator of the pieces kernels are made of: code of the kernel that calls them, kept in that kernel's cache."""


def has(feature: str) -> bool:
    """Say whether the processor that Numba compiles for has a feature, by LLVM's name for it."""
    return f"+{feature}" in cpu_target.target_context.codegen().magic_tuple()[2].split(",")


class _Lanes(types.Type):  # the value, as Numba's typing sees it
    def __init__(self, name: str, held: ir.VectorType) -> None:
        super().__init__(name=name)
        self.held = held


@register_default(_Lanes)
class _LanesModel(models.PrimitiveModel):  # and as LLVM holds it
    def __init__(self, manager: Any, kind: _Lanes) -> None:
        super().__init__(manager, kind, kind.held)


floats, ints = _Lanes("float32x32", _FLOATS), _Lanes("int32x32", _INTS)


def _code(signature: Any, emit: Callable[..., Any]) -> Any:
    """Pair a signature with code generation, as ``intrinsic`` wants it."""

    def generate(context: Any, builder: Any, _: Any, values: Any) -> Any:
        result = emit(builder, *values)
        return context.get_dummy_value() if signature.return_type is types.void else result

    return signature, generate


def _call(builder: Any, name: str, returns: Any, *values: Any) -> Any:
    kind = ir.FunctionType(returns, [value.type for value in values])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), values)


def _all(value: float, kind: ir.VectorType) -> ir.Constant:
    return ir.Constant(kind, [value] * kind.count)


def _broadcast(builder: Any, scalar: Any, count: int = ROWS) -> Any:
    vector = ir.VectorType(scalar.type, count)
    first = builder.insert_element(ir.Constant(vector, ir.Undefined), scalar, _I32(0))
    return builder.shuffle_vector(first, ir.Constant(vector, ir.Undefined), _all(0, ir.VectorType(_I32, count)))


def _read(builder: Any, address: Any, kind: Any, align: int) -> Any:
    return builder.load(builder.inttoptr(address, kind.as_pointer()), align=align)


def _write(builder: Any, address: Any, value: Any) -> None:
    builder.store(value, builder.inttoptr(address, value.type.as_pointer()), align=4)


def _widen_halves(builder: Any, bits: Any) -> Any:
    """Turn float16 bits into float32: by the processor where it can, else by integers.

    Exponent and fraction, moved to their float32 places, read as the number times 2^-112 (subnormals too).
    """
    if has("f16c") or has("neon"):
        return builder.fpext(builder.bitcast(bits, ir.VectorType(_F16, ROWS)), _FLOATS)
    wide = builder.zext(bits, _INTS)
    moved = builder.shl(builder.and_(wide, _all(0x7FFF, _INTS)), _all(13, _INTS))
    number = builder.bitcast(builder.fmul(builder.bitcast(moved, _FLOATS), _all(2.0**112, _FLOATS)), _INTS)
    infinite = builder.or_(moved, _all(0x7F800000, _INTS))
    is_finite = builder.icmp_unsigned("<", moved, _all(0x7C00 << 13, _INTS))
    sign = builder.shl(builder.and_(wide, _all(0x8000, _INTS)), _all(16, _INTS))
    return builder.bitcast(builder.or_(builder.select(is_finite, number, infinite), sign), _FLOATS)


def _widen_bfloats(builder: Any, bits: Any) -> Any:
    return builder.bitcast(builder.shl(builder.zext(bits, _INTS), _all(16, _INTS)), _FLOATS)


@intrinsic
def load_float(context, address):
    """Return the float32 at ``address``."""
    return _code(types.float32(types.intp), lambda b, a: _read(b, a, _F32, 4))


@intrinsic
def load_word(context, address):
    """Return the int32 at ``address``, which need not be aligned."""
    return _code(types.int32(types.intp), lambda b, a: _read(b, a, _I32, 1))


@intrinsic
def store_word(context, address, value):
    """Write an int32 to ``address``."""
    return _code(types.void(types.intp, types.int32), _write)


@intrinsic
def store_float(context, address, value):
    """Write a float32 to ``address``."""
    return _code(types.void(types.intp, types.float32), _write)


@intrinsic
def load_floats(context, address):
    """Return 32 float32."""
    return _code(floats(types.intp), lambda b, a: _read(b, a, _FLOATS, 4))


@intrinsic
def load_words(context, address):
    """Return 32 words of four bytes."""
    return _code(ints(types.intp), lambda b, a: _read(b, a, _INTS, 4))


@intrinsic
def load_halves(context, address):
    """Return 32 float16, widened."""
    return _code(floats(types.intp), lambda b, a: _widen_halves(b, _read(b, a, ir.VectorType(_I16, ROWS), 2)))


@intrinsic
def load_bfloats(context, address):
    """Return 32 bfloat16, widened."""
    return _code(floats(types.intp), lambda b, a: _widen_bfloats(b, _read(b, a, ir.VectorType(_I16, ROWS), 2)))


@intrinsic
def store(context, address, value):
    """Write 32 float32."""
    return _code(types.void(types.intp, floats), _write)


@intrinsic
def splat(context, scalar):
    """Return ``scalar`` in every lane."""
    return _code(floats(types.float32), _broadcast)


@intrinsic
def to_float(context, x):
    """Return signed integers as float32."""
    return _code(floats(ints), lambda b, x: b.sitofp(x, _FLOATS))


@intrinsic
def fma(context, x, y, z):
    """Return x y + z with one rounding; y may be one number for all lanes."""

    def emit(b: Any, x: Any, y: Any, z: Any) -> Any:
        y = _broadcast(b, y) if y.type is _F32 else y
        return _call(b, f"llvm.fma.v{ROWS}f32", _FLOATS, x, y, z)

    return _code(floats(floats, y if y == floats else types.float32, floats), emit)


def _pairs(builder: Any, words: Any, odd: bool) -> Any:
    """Return the even or odd signed bytes of words as pairs of int16."""
    halves = ir.VectorType(_I16, 2 * words.type.count)
    x = builder.bitcast(words, halves)
    return builder.ashr(x if odd else builder.shl(x, _all(8, halves)), _all(8, halves))


def _dot_pairs(builder: Any, x: Any, y: Any) -> Any:
    """Return x0 y0 + x1 y1 of int16 pairs as int32: one instruction (pmaddwd) where LLVM knows one."""
    count = x.type.count
    wide = ir.VectorType(_I32, count)
    product = builder.mul(builder.sext(x, wide), builder.sext(y, wide))
    even, odd = (ir.Constant(ir.VectorType(_I32, count // 2), list(range(i, count, 2))) for i in (0, 1))
    return builder.add(builder.shuffle_vector(product, product, even), builder.shuffle_vector(product, product, odd))


def _dot4_vnni(builder: Any, total: Any, unsigned: Any, signed: Any) -> Any:
    """vpdpbusd on halves of 16 lanes."""
    sixteen, parts = ir.VectorType(_I32, 16), []
    for first in (0, 16):
        lanes = ir.Constant(sixteen, list(range(first, first + 16)))
        x, y, z = (builder.shuffle_vector(v, v, lanes) for v in (total, unsigned, signed))
        byte = ir.VectorType(_I8, 64)
        y, z = builder.bitcast(y, byte), builder.bitcast(z, byte)
        parts.append(_call(builder, "llvm.x86.avx512.vpdpbusd.512", sixteen, x, y, z))
    return builder.shuffle_vector(*parts, ir.Constant(_INTS, list(range(ROWS))))


def _dot4_plain(builder: Any, total: Any, unsigned: Any, signed: Any) -> Any:
    for odd in (False, True):
        x = builder.lshr(unsigned, _all(8, _INTS)) if odd else unsigned
        x = builder.bitcast(builder.and_(x, _all(0x00FF00FF, _INTS)), ir.VectorType(_I16, 2 * ROWS))
        total = builder.add(total, _dot_pairs(builder, x, _pairs(builder, signed, odd)))
    return total


@intrinsic
def dot4(context, total, unsigned, signed):
    """Return total + the sum over the four bytes of a word: unsigned bytes of each lane times signed ones of one word."""
    kernel = _dot4_vnni if has("avx512vnni") else _dot4_plain
    return _code(ints(ints, ints, types.int32), lambda b, t, x, y: kernel(b, t, x, _broadcast(b, y)))


def _operator(symbol: Any, left: types.Type, right: types.Type, emit: Callable[..., Any]) -> None:
    """Let Numba write ``left symbol right``; a scalar on the right is meant for every lane."""

    class Typing(ConcreteTemplate):
        cases = [signature(left, left, right)]  # noqa

    infer_global(symbol)(Typing)

    def generate(context: Any, builder: Any, _: Any, values: Any) -> Any:
        x, y = values
        if right is types.intp:
            y = _broadcast(builder, builder.trunc(y, _I32))
        return emit(builder, x, y)

    lower_builtin(symbol, left, right)(generate)


for _symbol, _emit in (
    (operator.add, ir.IRBuilder.add), (operator.sub, ir.IRBuilder.sub), (operator.mul, ir.IRBuilder.mul),
    (operator.and_, ir.IRBuilder.and_), (operator.or_, ir.IRBuilder.or_), (operator.xor, ir.IRBuilder.xor),
    (operator.lshift, ir.IRBuilder.shl), (operator.rshift, ir.IRBuilder.lshr),
):  # fmt: skip
    _operator(_symbol, ints, ints, _emit)
    _operator(_symbol, ints, types.intp, _emit)
for _symbol, _emit in ((operator.add, ir.IRBuilder.fadd), (operator.sub, ir.IRBuilder.fsub), (operator.mul, ir.IRBuilder.fmul)):
    _operator(_symbol, floats, floats, _emit)


_WIDE = has("avx512f")  # 32 registers of 16 lanes hold 12 tokens x 32 rows of sums; elsewhere 16 rows are taken at a time
_PASS = ROWS if _WIDE else ROWS // 2
GROUPS = (12, 8, 4, 2, 1) if _WIDE else (6, 4, 2, 1)


def _advance(builder: Any, tokens: int, first: int, sums: Any, x: Any, stride: Any, panel: Any, columns: Any) -> None:
    """Emit the loop over columns for rows first .. first + _PASS - 1 of the tile."""
    byte, vector, wide = ir.IntType(8), ir.VectorType(_F32, _PASS), ir.IntType(64)
    pointer = lambda address: builder.inttoptr(address, byte.as_pointer())

    def at(base: Any, offset: Any, kind: Any) -> Any:
        offset = wide(offset) if isinstance(offset, int) else offset
        return builder.bitcast(builder.gep(base, [offset], source_etype=byte), kind.as_pointer())

    sums, strides = pointer(sums), [builder.mul(stride, wide(t)) for t in range(4)]
    starts = [at(sums, 4 * ROWS * t + 4 * first, vector) for t in range(tokens)]
    bases = [pointer(builder.add(x, builder.mul(stride, wide(t)))) for t in range(0, tokens, 4)]
    begun = [builder.load(start, align=4) for start in starts]
    before, loop, after = builder.block, builder.append_basic_block("columns"), builder.append_basic_block("done")
    builder.branch(loop)
    builder.position_at_end(loop)
    k = builder.phi(wide)
    totals = [builder.phi(vector) for _ in begun]
    w = builder.load(at(pointer(panel), builder.add(builder.mul(k, wide(4 * ROWS)), wide(4 * first)), vector), align=4)
    advanced = []
    for t, total in enumerate(totals):
        place = at(builder.gep(bases[t // 4], [builder.mul(k, wide(4))], source_etype=byte), strides[t % 4], _F32)
        value = _broadcast(builder, builder.load(place, align=4), _PASS)
        advanced.append(_call(builder, f"llvm.fma.v{_PASS}f32", vector, w, value, total))
    following = builder.add(k, wide(1))
    builder.cbranch(builder.icmp_signed("<", following, columns), loop, after)
    k.add_incoming(wide(0), before)
    k.add_incoming(following, loop)
    for total, start, end in zip(totals, begun, advanced, strict=True):
        total.add_incoming(start, before)
        total.add_incoming(end, loop)
    builder.position_at_end(after)
    for start, end in zip(starts, advanced, strict=True):
        builder.store(end, start, align=4)


@intrinsic(prefer_literal=True)
def advance(context, tokens, sums, x, x_stride, panel, columns):
    """Carry the chains of ``tokens`` x 32 sums on over the columns of a panel of float32 [columns, 32].

    sums float32 [tokens, 32]; x one row of ``columns`` float32 for each token, ``x_stride`` bytes apart.
    """
    count = tokens.literal_value

    def emit(b: Any, _: Any, *values: Any) -> None:
        for first in range(0, ROWS, _PASS):
            _advance(b, count, first, *values)

    return _code(types.void(tokens, *[types.intp] * 5), emit)
