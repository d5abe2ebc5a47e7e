"""Whom the cases judge: an implementation as a mapping from operation names to functions."""

import importlib
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

__all__ = ["operations_of"]


def operations_of(against: str) -> Mapping[str, Callable[..., Any]]:
    """Find an implementation by name: refimpl, gpu, or MODULE:ATTRIBUTE with the operations as attributes or items.

    >>> operations_of("math:nothing")
    Traceback (most recent call last):
    ...
    ValueError: module 'math' has no attribute 'nothing'
    """
    if against in ("refimpl", "gpu"):
        adapter: ModuleType = importlib.import_module(f"golden.adapters.{against}")
        return dict(adapter.operations())
    name, _, attribute = against.partition(":")
    try:
        module = importlib.import_module(name)
        space = getattr(module, attribute, None) if attribute else module
        held = space if isinstance(space, Mapping) else {name: getattr(space, name, None) for name in dir(space)}
    except (Exception, SystemExit) as error:  # whatever a stranger's module raises, leaving included
        raise ValueError(f"module {name!r} cannot be imported: {type(error).__name__}: {error}") from error
    if space is None:
        raise ValueError(f"module {name!r} has no attribute {attribute!r}")
    return {name: value for name, value in held.items() if callable(value)}
