"""Numbers as kernels hold them: float32 in registers; in memory float32, or the bits of 16-bit floats as uint16."""

from functools import cache
from typing import Any

from gpu.compile import device_function
from refimpl.contract import Array, ContractError, host

__all__ = ["DTYPES", "named", "need_floats", "read", "storage", "write", "write_double"]

DTYPES = ("float32", "bfloat16", "float16")


@host
def named(x: Array) -> str:
    """Return the name of an array's dtype, which must be one that kernels compute with.

    >>> import numpy as np
    >>> named(np.zeros(1))
    Traceback (most recent call last):
    ...
    refimpl.contract.ContractError: kernels take float32, bfloat16 and float16, not float64
    """
    name = str(x.dtype)
    if name not in DTYPES:
        raise ContractError(f"kernels take {', '.join(DTYPES[:-1])} and {DTYPES[-1]}, not {name}")
    return name


@host
def need_floats(*arrays: Array) -> None:
    """Refuse arrays that are no floats, where a launcher casts what it gets.

    >>> import numpy as np
    >>> need_floats(np.zeros(1, int))
    Traceback (most recent call last):
    ...
    refimpl.contract.ContractError: operations take floats, not int64
    """
    for x in arrays:
        if str(x.dtype) not in (*DTYPES, "float64"):
            raise ContractError(f"operations take floats, not {x.dtype}")


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


@host
@cache
def write_double(dtype: str) -> Any:
    """Return the function for kernels that turns float64 into a stored number, rounded as NumPy and ml_dtypes round it.

    To float16 in one rounding, by way of a float32 rounded to odd: what is cut off leaves a last bit that no later
    rounding takes for a tie. To bfloat16 by way of the nearest float32.
    """
    from numba import cuda, float32, float64, int32

    narrow = write(dtype)

    def nearest(number):
        return narrow(float32(number))

    def odd(number):
        cut = cuda.libdevice.double2float_rz(number)
        if float64(cut) != number:
            cut = cuda.libdevice.int_as_float(cuda.libdevice.float_as_int(cut) | int32(1))
        return narrow(cut)

    return device_function(odd if dtype == "float16" else nearest)


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
