"""The fast side: the twins of the operations, wherever gpu's rooms hold one."""

import importlib
import pkgutil
from collections.abc import Callable
from typing import Any

import gpu

__all__ = ["operations"]

_ROOMS = ("basics", "llm", "efficient", "media")


def operations() -> dict[str, Callable[..., Any]]:
    """Return every twin by name; an operation without one is reported as missing."""
    found: dict[str, Callable[..., Any]] = {}
    for info in pkgutil.walk_packages(gpu.__path__, "gpu."):
        if info.name.split(".")[1] in _ROOMS:
            module = importlib.import_module(info.name)
            found |= {key: value for key, value in vars(module).items() if getattr(value, "role", None) == "op"}
    return found
