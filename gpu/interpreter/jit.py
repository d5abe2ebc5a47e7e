"""Numba for the interpreter: a function's machine code is kept under a hash of its module and those it imports.

A kernel that changes, or an executor, leaves the machine that runs it as it is.

Numba takes the code of a callee into each of its callers, and LLVM works on it there again. A unit is compiled once,
by itself, and the others call it by its name.
"""

from collections.abc import Callable
from typing import Any

import llvmlite.binding as llvm
import numba
from numba.core import cgutils, types
from numba.extending import intrinsic

from gpu.executor.jit import compile_now, jit_beside
from refimpl.contract import host

__all__ = ["allocating", "inlined", "jit", "load", "spliced", "unit"]

# Nothing counts references to arrays, so that a view of one costs nothing; C does not call, so that less is compiled.
_LEAN: dict[str, Any] = {"error_model": "numpy", "nogil": True, "_nrt": False, "no_cfunc_wrapper": True}

jit = jit_beside(__file__, **_LEAN)
allocating = jit_beside(__file__)  # for functions that make arrays


@host
def inlined(function: Callable[..., Any]) -> Any:
    """Compile ``function`` as a piece of its callers, whose store keeps it."""
    return numba.njit(forceinline=True, **_LEAN)(function)


@host
def spliced(function: Callable[..., Any]) -> Any:
    """Have Numba copy ``function`` into its callers before it compiles them: by itself it is never compiled."""
    return numba.njit(inline="always", **_LEAN)(function)


@host
def unit(function: Any, *arguments: Any) -> Any:
    """Return what compiled code calls in place of a ``jit`` function, given the types of its arguments.

    Before that code runs, ``load`` must have been called with what this returns.
    """
    symbol = f"{function.py_func.__module__}.{function.py_func.__name__}"

    def bring() -> None:
        compile_now(function, arguments)
        compiled = function.overloads[arguments]
        llvm.add_symbol(symbol, compiled.library.get_pointer_to_function(compiled.fndesc.llvm_func_name))

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        convention, returns = context.call_conv, signature.return_type
        kind = convention.get_function_type(returns, arguments)
        callee = cgutils.get_or_insert_function(builder.module, kind, symbol)
        unpacked = cgutils.unpack_tuple(builder, values[0])
        return convention.call_function(builder, callee, returns, arguments, unpacked)[1]

    @intrinsic
    def linked(context, *given):
        return function.overloads[arguments].signature.return_type(types.StarArgTuple(arguments)), generate

    linked.load = bring
    return linked


@host
def load(units: "tuple[Callable[..., Any], ...]") -> None:
    """Compile units, or find them in the store, and tell the linker where they are."""
    for each in units:
        each.load()
