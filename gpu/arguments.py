"""The arguments of a launch as the flat list of parameters that the compiled kernel has."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np

from refimpl.contract import Array, UsageError, host

__all__ = ["flatten"]

_HELD_AS = {"uint16": ("float16", ml_dtypes.bfloat16), "uint8": ("bool",)}
"""What kernels take as plain bits."""


@dataclass(frozen=True)
class _Parameter:
    """A parameter's type, taken apart."""

    name: str
    text: str
    dtypes: frozenset[np.dtype[Any]]
    axes: int | None
    """None: a scalar; -1: a pointer."""
    contiguous: bool
    scalar: Callable[[Any], Any]


@cache
def _parameter(name: str, text: str) -> _Parameter:
    element, bracket, axes = text.rstrip("*]").partition("[")
    dtypes = frozenset(map(np.dtype, (element, *_HELD_AS.get(element, ()))))
    count = -1 if "*" in text else 1 + axes.count(",") if bracket else None
    return _Parameter(name, text, dtypes, count, "*" in text or "::1" in text, np.dtype(element).type)


@host
def flatten(
    kernel: str, names: Sequence[str], types: Sequence[str], args: Sequence[Array], address_of: Callable[[Array], int],
) -> list[Any]:
    """Return a number for each parameter of the PTX: integers of 64 bits as they are, others as NumPy scalars.

    Numba flattens an array to two null pointers, its size, its item size, its address, its shape and its strides.
    """
    if len(args) != len(types):
        raise UsageError(f"{kernel} takes {len(types)} arguments ({', '.join(names)}), got {len(args)}")
    flat: list[Any] = []
    for parameter, value in zip(map(_parameter, names, types), args, strict=True):
        if parameter.axes is None:
            flat.append(parameter.scalar(value))
        elif value is None and parameter.axes < 0:
            flat.append(0)
        else:
            _check(kernel, parameter, value)
            if parameter.axes < 0:
                flat.append(address_of(value))
            else:
                flat += (0, 0, value.size, value.dtype.itemsize, address_of(value), *value.shape, *value.strides)
    return flat


def _check(kernel: str, parameter: _Parameter, value: Array) -> None:
    if getattr(value, "dtype", None) not in parameter.dtypes:
        seen = getattr(value, "dtype", type(value).__name__)
    elif parameter.axes not in (-1, value.ndim):
        seen = f"{value.ndim} axes"
    elif parameter.contiguous and not value.flags.c_contiguous:
        seen = "an array that is not C-contiguous"
    else:
        return
    raise UsageError(f"{kernel}: {parameter.name} is {parameter.text}, got {seen}")
