"""What the machine code of a Python function depends on: its bytecode, constants, closure, globals and callees."""

import hashlib
import types
from collections.abc import Iterator
from typing import Any

import numpy as np

from refimpl.contract import host

__all__ = ["fingerprint"]

_LIBRARIES = frozenset({"builtins", "llvmlite", "math", "numba", "numba_cuda", "numpy", "operator"})
_PLAIN = (type(None), bool, int, float, complex, str, bytes, type(...), np.generic, np.dtype)


@host
def fingerprint(*values: Any) -> str:
    """Return a hash of values and functions that changes whenever what they compute may change.

    >>> fingerprint(lambda x: x + 1) == fingerprint(lambda y: y + 1)
    True
    >>> fingerprint(lambda x: x + 1) == fingerprint(lambda x: x + 2)
    False
    """
    return hashlib.sha256(_describe(values, ()).encode()).hexdigest()


def _describe(value: Any, outer: tuple[Any, ...]) -> str:
    """Return a text of all that a value is made of; ``outer`` are the functions that it is described for."""
    if isinstance(value, _PLAIN):
        return f"{type(value).__name__} {value!r}"
    if isinstance(value, np.ndarray):
        return f"array {value.dtype} {value.shape} {value.tobytes().hex()}"
    if isinstance(value, tuple | list):
        return f"({', '.join(_describe(item, outer) for item in value)})"
    if isinstance(value, dict):
        return _describe(list(value.items()), outer)
    if isinstance(value, types.CodeType):
        return _describe((value.co_code.hex(), value.co_consts, value.co_names, value.co_argcount), outer)
    wrapped = getattr(value, "py_func", None) or getattr(value, "_defn", None)  # a Numba function, an intrinsic
    if wrapped is not None:
        return f"{_describe(getattr(value, 'targetoptions', None), outer)} {_describe(wrapped, outer)}"
    if isinstance(value, types.FunctionType) and _package(value) not in _LIBRARIES:
        return _describe_function(value, outer)
    return _describe_library(value)


def _describe_function(function: types.FunctionType, outer: tuple[Any, ...]) -> str:
    if function in outer:
        return f"again {outer.index(function)}"
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    names = [name for name in _names(function.__code__) if name in function.__globals__]
    reached = [(name, function.__globals__[name]) for name in names]
    parts = (function.__code__, function.__defaults__, function.__kwdefaults__, cells, reached)
    return _describe(parts, (*outer, function))


def _names(code: types.CodeType) -> Iterator[str]:
    """Yield the names that a piece of code and those inside it look up."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _package(value: Any) -> str:
    name = value.__name__ if isinstance(value, types.ModuleType) else getattr(value, "__module__", None)
    return (name or "").partition(".")[0]


def _describe_library(value: Any) -> str:
    """Return the name of something whose source the versions of the libraries stand for."""
    if isinstance(value, types.ModuleType):
        text = f"module {_package(value)}"  # numba.types is numba.core.types after some imports
    else:
        text = f"{_package(value)} {getattr(value, '__qualname__', None) or repr(value)}"
    if _package(value) not in _LIBRARIES or " at 0x" in text:
        raise TypeError(f"a kernel can lean on functions, numbers, and NumPy, Numba and math; this is {value!r}")
    return text
