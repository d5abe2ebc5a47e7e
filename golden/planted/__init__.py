"""Wrong implementations that were seen in the field: a case that rejects none of them judges nothing.

A planted fault takes the arguments of its operation, as the case stores them, and returns any dtype; it is cast to the
one that the case expects, so that only its values can give it away. A fault that remembers is a class.
"""

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from golden.case import Case
from golden.planted.corners import OPS, without_last
from golden.values import dtype_named

__all__ = ["PLANTED", "as_operation"]

_ROOMS = sorted({found.name for found in pkgutil.iter_modules(__path__)} - {"corners"})
_MODULES = {room: importlib.import_module(f"golden.planted.{room}") for room in _ROOMS}

PLANTED: Mapping[str, Callable[..., Any]] = {
    f"{room}.{name}": getattr(module, name) for room, module in _MODULES.items() for name in module.__all__
} | {f"corners.last_of_{op}_unwritten": without_last(op) for op in OPS}
"""Every planted fault by its name, ``room.fault``."""


def as_operation(function: Callable[..., Any], case: Case) -> Callable[..., Any]:
    """Return a derivation or a planted fault as an operation: its results in the dtypes that a case expects."""
    dtypes = iter(case.dtype)
    function = function() if isinstance(function, type) else function

    def operation(**arguments: Any) -> Any:
        with np.errstate(all="ignore"):
            results = function(**arguments)
            several = results if isinstance(results, tuple) else (results,)
            cast = tuple(np.asarray(each).astype(dtype_named(next(dtypes))) for each in several)
        return cast if isinstance(results, tuple) else cast[0]

    return operation
