"""Wrong implementations that were seen in the field: a case that rejects none of them judges nothing.

A planted fault takes the arguments of its operation, as the case stores them, and returns any dtype; it is cast to the
one that the case expects, so that only its values can give it away. A fault that remembers is a class.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from golden.case import Case
from golden.planted import activation, attention, flash, kv_cache, layers, paged, position, quantize, rng, sampler
from golden.values import dtype_named

__all__ = ["PLANTED", "as_operation"]

PLANTED: Mapping[str, Callable[..., Any]] = {
    f"{module.__name__.rsplit('.', 1)[1]}.{name}": getattr(module, name)
    for module in (activation, attention, flash, kv_cache, layers, paged, position, quantize, rng, sampler)
    for name in module.__all__
}
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
