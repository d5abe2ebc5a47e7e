"""Numba for the interpreter: a function's machine code is kept under a hash of its module and those it imports.

A kernel that changes, or an executor, leaves the machine that runs it as it is. The machine calls the families of
instructions through their addresses: linked in, they would be optimised again with it.
"""

from typing import Any

from numba.core import types
from numba.extending import intrinsic

from gpu.executor.jit import inlined, jit_beside
from refimpl.contract import host

__all__ = ["FAMILY_TYPES", "address_of", "call", "inlined", "jit"]

jit = jit_beside(__file__)

FAMILY_TYPES = (types.uint64[:, ::1], types.int32[::1], types.uint32, types.int64)  # regs, rows, mask, code


@host
def address_of(function: Any, arguments: tuple[Any, ...] = FAMILY_TYPES) -> int:
    """Return where the machine code of a ``jit`` function begins."""
    function.compile(arguments)
    compiled = function.overloads[arguments]
    return int(compiled.library.get_pointer_to_function(compiled.fndesc.llvm_func_name))


@intrinsic
def call(context, address, regs, rows, mask, code):
    """Call the family of instructions whose machine code begins at an address."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        kind = context.call_conv.get_function_type(types.none, FAMILY_TYPES)
        function = builder.inttoptr(values[0], kind.as_pointer())
        context.call_conv.call_function(builder, function, types.none, FAMILY_TYPES, values[1:])
        return context.get_dummy_value()

    return types.none(types.int64, *FAMILY_TYPES), generate
