"""Numbers as kernels hold them: float32 in registers; in memory float32, or the bits of 16-bit floats as uint16."""

from functools import cache
from typing import Any

from gpu.compile import device_function
from refimpl.contract import host

__all__ = ["DTYPES", "read", "storage", "write"]

DTYPES = ("float32", "bfloat16", "float16")


@host
def storage(dtype: str) -> str:
    """Return the type of an array's elements in a kernel's signature."""
    return "float32" if dtype == "float32" else "uint16"


@host
@cache
def read(dtype: str) -> Any:
    """Return the function for kernels that turns a stored number into float32."""
    from numba import cuda, int32

    def as_stored(number):
        return number

    def widened(bits):
        return cuda.libdevice.int_as_float(int32(int32(bits) << int32(16)))

    if dtype == "float16":
        return _instruction("cvt.f32.f16 $0, $1;", "=f,h", "float32", "uint16")
    return device_function({"float32": as_stored, "bfloat16": widened}[dtype])


@host
@cache
def write(dtype: str) -> Any:
    """Return the function for kernels that turns float32 into a stored number: the nearest, ties to even, NaN kept."""
    if dtype == "float32":
        return read(dtype)
    short = {"bfloat16": "bf16", "float16": "f16"}[dtype]
    return _instruction(f"cvt.rn.{short}.f32 $0, $1;", "=h,f", "uint16", "float32")


def _instruction(text: str, constraints: str, result: str, argument: str) -> Any:
    """Return the function for kernels that is one instruction of PTX."""
    from llvmlite import ir
    from numba import types
    from numba.extending import intrinsic

    kinds = {"uint16": ir.IntType(16), "float32": ir.FloatType()}

    def instruction(typing_context, value):
        def emit(context, builder, signature, values):
            function = ir.FunctionType(kinds[result], [kinds[argument]])
            return builder.call(ir.InlineAsm(function, text, constraints), values)

        return getattr(types, result)(getattr(types, argument)), emit

    return intrinsic(instruction)
