"""The kernels that compute each operation: what golden judges, what the tests compare, what docs/kernels.md counts."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from refimpl import CONTENTS
from refimpl.contract import host

__all__ = ["TWIN_ROOMS", "Variant", "variants"]

TWIN_ROOMS = ("basics", "llm", "efficient")


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
    return tuple(variant for variant in _all() if op in (None, variant.op))


@cache
def _all() -> tuple[Variant, ...]:
    """Collect ``VARIANTS`` of every twin module, in the order of refimpl.CONTENTS."""
    names = [name for name, _ in CONTENTS if name.partition(".")[0] in TWIN_ROOMS]
    there = [name for name in names if Path(__file__).parent.joinpath(name.replace(".", "/") + ".py").exists()]
    return tuple(variant for name in there for variant in importlib.import_module(f"gpu.{name}").VARIANTS)
