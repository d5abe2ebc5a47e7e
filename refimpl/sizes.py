"""The sizes of a call, by the letters that a signature gives to the axes of its arrays."""

import inspect
from collections.abc import Callable, Mapping
from math import prod
from typing import Any, get_args

from refimpl.contract import host

__all__ = ["sizes"]


@host
def sizes(op: Callable[..., Any], arguments: Mapping[str, Any]) -> dict[str, int]:
    """Read the sizes of a call off its arrays, by the letters of the signature; ``b`` is that of the first floats.

    >>> import numpy as np
    >>> from refimpl.basics.linear import linear
    >>> x, w = np.ones((3, 8), np.float32), np.ones((5, 8), np.float32)
    >>> sizes(linear, {"x": x, "w": w})
    {'b': 4, 'T': 3, 'D': 8, 'O': 5}
    """
    found = dict[str, int]()
    for name, parameter in inspect.signature(op).parameters.items():
        annotation, value = parameter.annotation, arguments.get(name, parameter.default)
        kind = next((kind for kind in (annotation, *get_args(annotation)) if hasattr(kind, "dim_str")), None)
        if type(value) is int and value >= 0:  # k, groups ...; a negative one is an axis, or a mark
            found[name] = value
        elif kind is not None and hasattr(value, "shape"):
            if kind.__name__.startswith("Float"):
                found.setdefault("b", value.dtype.itemsize)
            for axis, size in _bind(kind.dim_str.split(), value.shape).items():
                found.setdefault(axis, size)
    return found


def _bind(axes: list[str], shape: tuple[int, ...]) -> dict[str, int]:
    """Give every axis its size; ``...`` or ``*name`` takes the elements of all axes that the others leave."""
    many = next((place for place, axis in enumerate(axes) if axis.startswith(("...", "*"))), None)
    if many is None:
        return dict(zip(axes, shape, strict=True))
    end = len(shape) - len(axes) + many + 1
    taken = {axes[many].lstrip("*#").replace("...", "rest"): prod(shape[many:end])}
    return dict(zip(axes[:many] + axes[many + 1 :], shape[:many] + shape[end:], strict=True)) | taken
