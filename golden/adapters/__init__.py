"""Whom the cases judge, by name: refimpl, gpu, torch, onnxruntime, or MODULE:ATTRIBUTE of anyone."""

import importlib
from collections.abc import Mapping
from types import ModuleType

from golden.verify import Candidate, Implementation

__all__ = ["NAMES", "implementation"]

NAMES = ("refimpl", "gpu", "torch", "onnxruntime")


def implementation(against: str, device: str | None = None) -> Implementation:
    """Find whom to judge; a stranger holds the operations as attributes or items, under their names.

    >>> implementation("math:nothing")
    Traceback (most recent call last):
    ...
    ValueError: module 'math' has no attribute 'nothing'
    """
    if device is not None and against != "gpu":
        raise ValueError(f"--device chooses where the kernels of gpu run; {against} has no devices")
    if against not in NAMES:
        return Implementation(against, tuple(_candidates_of_stranger(against)))
    try:
        adapter: ModuleType = importlib.import_module(f"golden.adapters.{against}")
        found = adapter.candidates(device) if against == "gpu" else adapter.candidates()
    except ModuleNotFoundError as error:
        raise ValueError(f"{error.name} is not installed: pip install {error.name}") from error
    is_ours = against in ("refimpl", "gpu")
    return Implementation(against, tuple(found), getattr(adapter, "DEVIATIONS", ()), partial=not is_ours)


def _candidates_of_stranger(against: str) -> list[Candidate]:
    name, _, attribute = against.partition(":")
    try:
        module = importlib.import_module(name)
        space = getattr(module, attribute, None) if attribute else module
        held = space if isinstance(space, Mapping) else {name: getattr(space, name, None) for name in dir(space)}
    except (Exception, SystemExit) as error:  # whatever a stranger's module raises, leaving included
        raise ValueError(f"module {name!r} cannot be imported: {type(error).__name__}: {error}") from error
    if space is None:
        raise ValueError(f"module {name!r} has no attribute {attribute!r}")
    return [Candidate(name, value) for name, value in held.items() if callable(value)]
