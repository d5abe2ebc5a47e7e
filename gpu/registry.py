"""The kernels that compute each operation: what golden judges, what the tests compare, what docs/kernels.md counts."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from refimpl import CONTENTS
from refimpl.contract import host

__all__ = ["TWIN_ROOMS", "Variant", "fused", "variants"]

TWIN_ROOMS = ("basics", "llm", "media", "efficient")


@dataclass(frozen=True)
class Variant:
    """One way in which ``gpu`` computes an operation; its twin chooses among them."""

    name: str
    op: str
    call: Callable[..., Any]
    """With the signature of the operation."""
    takes: Callable[..., bool]
    """Whether it can serve these arguments, the operation's."""
    workload: Callable[[], dict[str, Any]]
    """Arguments of a size that users have and the interpreter runs in seconds."""


@host
def variants(op: str | None = None) -> tuple[Variant, ...]:
    """Return the variants of an operation, or all."""
    return tuple(variant for variant in _all("VARIANTS") if op in (None, variant.op))


@host
def fused() -> tuple[Variant, ...]:
    """Return the kernels that compute several operations at once; ``op`` names what they compute together."""
    return _all("FUSED")


@cache
def _all(name: str) -> tuple[Variant, ...]:
    """Collect a tuple of that name from every twin module, in the order of refimpl.CONTENTS."""
    rooms = [room for room, _ in CONTENTS if room.partition(".")[0] in TWIN_ROOMS]
    there = [room for room in rooms if Path(__file__).parent.joinpath(room.replace(".", "/") + ".py").exists()]
    modules = [importlib.import_module(f"gpu.{room}") for room in there]
    return tuple(variant for module in modules for variant in getattr(module, name, ()))
