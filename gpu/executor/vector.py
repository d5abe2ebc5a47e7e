"""Sixteen float32 lanes as one Numba value: what a SIMD register holds, written as ordinary Python.

The code behind each name is generic LLVM vector IR: a value is one AVX-512 register, two of AVX2 or four of NEON,
and every lane is computed alike on all of them. Each call is one IEEE operation per lane in the order written,
nothing is reassociated, so equal inputs give equal bits. Addresses are bytes in an int64.

>>> from numba import njit
>>> import numpy as np
>>> x = np.arange(16, dtype=np.float32)
>>> njit(lambda address: fold_sum(load(address) * load(address)))(x.ctypes.data)
1240.0
"""

import operator
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.core.datamodel import models, register_default
from numba.extending import intrinsic, overload

__all__ = [
    "LANES", "float_at", "fma", "fold_max", "fold_sum", "int_at", "is_nan", "keep", "lanes", "less", "load",
    "load_part", "power_of_two", "put_float", "round_even", "select", "splat", "splat_at", "store", "store_part",
    "vmax", "vsqrt",
]

LANES = 16
_F32, _I32, _I1 = ir.FloatType(), ir.IntType(32), ir.IntType(1)
_VECTOR, _INTS, _MASK = (ir.VectorType(kind, LANES) for kind in (_F32, _I32, _I1))
_INDEX = ir.Constant(_INTS, list(range(LANES)))


class _Value(types.Type):
    """A type that Numba hands through untouched."""


@register_default(_Value)
class _Model(models.PrimitiveModel):
    """Hold a value as the LLVM vector of its type."""

    def __init__(self, manager: Any, kind: _Value) -> None:
        super().__init__(manager, kind, _VECTOR if kind is lanes else _MASK)


lanes, _truths = _Value("float32x16"), _Value("bool16")


def _code(signature: Any, emit: Callable[..., Any]) -> Any:
    """Pair a signature with code generation, as ``intrinsic`` wants it."""

    def generate(context: Any, builder: Any, _: Any, values: Any) -> Any:
        result = emit(builder, *values)
        return context.get_dummy_value() if result is None else result

    return signature, generate


def _call(builder: Any, name: str, returns: Any, *values: Any) -> Any:
    """Call the LLVM function ``name``."""
    kind = ir.FunctionType(returns, [value.type for value in values])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), values)


def _broadcast(builder: Any, scalar: Any) -> Any:
    vector = ir.VectorType(scalar.type, LANES)
    first = builder.insert_element(ir.Constant(vector, ir.Undefined), scalar, _I32(0))
    return builder.shuffle_vector(first, ir.Constant(vector, ir.Undefined), ir.Constant(_INTS, [0] * LANES))


def _pointer(builder: Any, address: Any, kind: Any = _VECTOR) -> Any:
    return builder.inttoptr(address, kind.as_pointer())


def _below(builder: Any, count: Any) -> Any:
    """Return the mask of the lanes with an index less than ``count``."""
    return builder.icmp_signed("<", _INDEX, _broadcast(builder, builder.trunc(count, _I32)))


@intrinsic
def int_at(context, address):
    """Return the int64 at ``address``."""
    return _code(types.int64(types.int64), lambda b, a: b.load(_pointer(b, a, ir.IntType(64))))


@intrinsic
def float_at(context, address):
    """Return the float32 at ``address``."""
    return _code(types.float32(types.int64), lambda b, a: b.load(_pointer(b, a, _F32), align=4))


@intrinsic
def put_float(context, address, scalar):
    """Write a float32 to ``address``."""
    kind = types.void(types.int64, types.float32)
    return _code(kind, lambda b, a, x: b.store(x, _pointer(b, a, _F32), align=4) and None)


@intrinsic
def load(context, address):
    """Return the 16 floats at ``address``."""
    return _code(lanes(types.int64), lambda b, a: b.load(_pointer(b, a), align=4))


@intrinsic
def store(context, address, value):
    """Write 16 floats to ``address``."""
    return _code(types.void(types.int64, lanes), lambda b, a, x: b.store(x, _pointer(b, a), align=4) and None)


@intrinsic
def load_part(context, address, count):
    """Return the first ``count`` floats at ``address`` and zeros after them; nothing behind them is touched."""

    def emit(b, a, n):
        name = "llvm.masked.load.v16f32.p0"
        return _call(b, name, _VECTOR, _pointer(b, a), _I32(4), _below(b, n), ir.Constant(_VECTOR, [0.0] * LANES))

    return _code(lanes(types.int64, types.int64), emit)


@intrinsic
def store_part(context, address, value, count):
    """Write the first ``count`` lanes to ``address``."""

    def emit(b, a, x, n):
        name = "llvm.masked.store.v16f32.p0"
        return _call(b, name, ir.VoidType(), x, _pointer(b, a), _I32(4), _below(b, n)) and None

    return _code(types.void(types.int64, lanes, types.int64), emit)


@intrinsic
def splat(context, scalar):
    """Return ``scalar`` in every lane."""
    return _code(lanes(types.float32), _broadcast)


@intrinsic
def splat_at(context, address):
    """Return the one float at ``address`` in every lane."""
    return _code(lanes(types.int64), lambda b, a: _broadcast(b, b.load(_pointer(b, a, _F32), align=4)))


@intrinsic
def fma(context, x, y, z):
    """Return x y + z with one rounding."""
    return _code(lanes(lanes, lanes, lanes), lambda b, x, y, z: _call(b, "llvm.fma.v16f32", _VECTOR, x, y, z))


@intrinsic
def vsqrt(context, x):
    """Return the square root, correctly rounded."""
    return _code(lanes(lanes), lambda b, x: _call(b, "llvm.sqrt.v16f32", _VECTOR, x))


@intrinsic
def round_even(context, x):
    """Return the nearest whole number, ties to even."""
    return _code(lanes(lanes), lambda b, x: _call(b, "llvm.rint.v16f32", _VECTOR, x))


@intrinsic
def power_of_two(context, x):
    """Return 2 to the power of a whole number in -126..127, by writing the exponent's bits."""

    def emit(b, x):
        biased = b.add(b.fptosi(x, _INTS), ir.Constant(_INTS, [127] * LANES))
        return b.bitcast(b.shl(biased, ir.Constant(_INTS, [23] * LANES)), _VECTOR)

    return _code(lanes(lanes), emit)


@intrinsic
def less(context, x, y):
    """Say per lane whether x < y."""
    return _code(_truths(lanes, lanes), lambda b, x, y: b.fcmp_ordered("<", x, y))


@intrinsic
def is_nan(context, x):
    """Say per lane whether x is no number."""
    return _code(_truths(lanes), lambda b, x: b.fcmp_unordered("uno", x, x))


@intrinsic
def select(context, condition, x, y):
    """Return x where the condition holds, y elsewhere."""
    return _code(lanes(_truths, lanes, lanes), lambda b, condition, x, y: b.select(condition, x, y))


@intrinsic
def vmax(context, x, y):
    """Return the larger of two lanes; y where one is no number."""
    return _code(lanes(lanes, lanes), lambda b, x, y: b.select(b.fcmp_ordered(">", x, y), x, y))


@intrinsic
def keep(context, x, first, last, other):
    """Return x in the lanes first <= i < last, ``other`` in the rest."""

    def emit(b, x, first, last, other):
        inside = b.and_(b.not_(_below(b, first)), _below(b, last))
        return b.select(inside, x, other)

    return _code(lanes(lanes, types.int64, types.int64, lanes), emit)


def _fold(builder: Any, x: Any, combine: Callable[[Any, Any], Any]) -> Any:
    """Combine lane i with lane i + 8, then i + 4, i + 2, i + 1."""
    for distance in (8, 4, 2, 1):
        upper = [(i + distance) % LANES for i in range(LANES)]
        x = combine(x, builder.shuffle_vector(x, x, ir.Constant(_INTS, upper)))
    return builder.extract_element(x, _I32(0))


@intrinsic
def fold_sum(context, x):
    """Return the sum of the lanes, by halves."""
    return _code(types.float32(lanes), lambda b, x: _fold(b, x, b.fadd))


@intrinsic
def fold_max(context, x):
    """Return the largest lane."""
    return _code(types.float32(lanes), lambda b, x: _fold(b, x, lambda u, v: b.select(b.fcmp_ordered(">", u, v), u, v)))


def _operator(symbol: Callable[..., Any], method: str) -> None:
    """Let a Python operator act on two vectors."""

    @intrinsic
    def apply(context, x, y):
        return _code(lanes(lanes, lanes), lambda b, x, y: getattr(b, method)(x, y))

    @overload(symbol)
    def typed(x, y):
        if x is lanes and y is lanes:
            return lambda x, y: apply(x, y)
        return None


_operator(operator.add, "fadd")
_operator(operator.sub, "fsub")
_operator(operator.mul, "fmul")
_operator(operator.truediv, "fdiv")
