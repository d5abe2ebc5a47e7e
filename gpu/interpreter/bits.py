"""A register holds bits: the casts that read them as a float and back, and the fused multiply-add.

Each is one LLVM instruction on scalars; in a loop over lanes it becomes one on vectors.

>>> from numba import njit
>>> import numpy as np
>>> njit(lambda bits: bits_to_float32(bits))(np.uint32(0x3FC00000))
1.5
"""

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

__all__ = [
    "bit_length", "bits_to_float32", "bits_to_float64", "float32_to_bits", "float64_to_bits", "fma32", "fma64",
    "round_even64",
]  # fmt: skip


def _cast(returns: Any, takes: Any) -> Any:
    """Pair a signature with the code of a cast that keeps every bit."""

    def generate(context: Any, builder: Any, _: Any, values: Any) -> Any:
        return builder.bitcast(values[0], context.get_value_type(returns))

    return returns(takes), generate


def _call(name: str, kind: Any, count: int) -> Any:
    """Pair a signature with a call of the LLVM intrinsic ``name`` on ``count`` floats."""

    def generate(context: Any, builder: Any, _: Any, values: Any) -> Any:
        real = context.get_value_type(kind)
        function = ir.FunctionType(real, [real] * count)
        return builder.call(cgutils.get_or_insert_function(builder.module, function, name), values)

    return kind(*[kind] * count), generate


@intrinsic
def bits_to_float32(context, bits):
    """Return the float32 of these 32 bits (a wider integer gives its low ones)."""
    return _cast(types.float32, types.uint32)


@intrinsic
def float32_to_bits(context, x):
    """Return the bits of a float32 as uint32."""
    return _cast(types.uint32, types.float32)


@intrinsic
def bits_to_float64(context, bits):
    """Return the float64 of these 64 bits."""
    return _cast(types.float64, types.uint64)


@intrinsic
def float64_to_bits(context, x):
    """Return the bits of a float64 as uint64."""
    return _cast(types.uint64, types.float64)


@intrinsic
def fma32(context, x, y, z):
    """Return x y + z in float32 with one rounding."""
    return _call("llvm.fma.f32", types.float32, 3)


@intrinsic
def fma64(context, x, y, z):
    """Return x y + z in float64 with one rounding."""
    return _call("llvm.fma.f64", types.float64, 3)


@intrinsic
def round_even64(context, x):
    """Return the nearest whole number, ties to even, as a float64."""
    return _call("llvm.rint.f64", types.float64, 1)


@intrinsic
def bit_length(context, bits):
    """Return how many bits a uint64 needs: 0 for 0, 1 for 1, 64 for the largest."""

    def generate(context: Any, builder: Any, _: Any, values: Any) -> Any:
        word = values[0].type
        function = ir.FunctionType(word, [word, ir.IntType(1)])
        count = cgutils.get_or_insert_function(builder.module, function, "llvm.ctlz.i64")
        return builder.sub(word(64), builder.call(count, [values[0], ir.IntType(1)(0)]))

    return types.int64(types.uint64), generate
