"""A second derivation of every operation: slow, scalar, float64, written from the definition.

They make expectations and carry the planted faults; nothing is run by them. Arrays come in as float64, and a function
takes the arguments of the operation under their names.
"""

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["DERIVATIONS"]

_MODULES = [importlib.import_module(f"golden.derive.{found.name}") for found in pkgutil.iter_modules(__path__)]

DERIVATIONS: Mapping[str, Callable[..., Any]] = {
    name: getattr(module, name) for module in _MODULES for name in module.__all__
}
"""Each operation's derivation by the operation's name."""
