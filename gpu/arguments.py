"""The arguments of a launch as the flat list of parameters that the compiled kernel has."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from refimpl.contract import Array, UsageError, host

__all__ = ["flatten"]

_STORED_AS = {"bfloat16": "uint16", "float16": "uint16", "bool": "uint8"}
"""Kernels hold these as plain bits."""


@host
def flatten(
    kernel: str, names: Sequence[str], types: Sequence[str], args: Sequence[Array], address_of: Callable[[Array], int],
) -> list[Any]:
    """Return NumPy scalars, one per parameter of the PTX.

    Numba flattens an array to two null pointers, its size, its item size, its address, its shape and its strides.
    """
    if len(args) != len(types):
        raise UsageError(f"{kernel} takes {len(types)} arguments ({', '.join(names)}), got {len(args)}")
    flat: list[Any] = []
    for name, kind, value in zip(names, types, args, strict=True):
        element, bracket, axes = kind.rstrip("*]").partition("[")
        if not bracket and "*" not in kind:
            flat.append(np.dtype(element).type(value))
            continue
        if value is None and "*" in kind:
            flat.append(np.uint64(0))
            continue
        _check_array(kernel, name, kind, element, value)
        address = np.uint64(address_of(value))
        if "*" in kind:
            flat.append(address)
            continue
        if value.ndim != axes.count(":") - axes.count("::"):
            raise UsageError(f"{kernel}: {name} is {kind}, got {value.ndim} axes")
        whole = (0, 0, value.size, value.dtype.itemsize)
        flat += [np.int64(number) for number in whole] + [address]
        flat += [np.int64(number) for number in (*value.shape, *value.strides)]
    return flat


def _check_array(kernel: str, name: str, kind: str, element: str, value: Array) -> None:
    dtype = str(getattr(value, "dtype", type(value).__name__))
    if dtype != element and _STORED_AS.get(dtype) != element:
        raise UsageError(f"{kernel}: {name} is {kind}, got {dtype}")
    if ("*" in kind or "::1" in kind) and not value.flags.c_contiguous:
        raise UsageError(f"{kernel}: {name} is {kind}, got an array that is not C-contiguous")
