"""The reference: its operations, and the host functions that cases name."""

import importlib
from collections.abc import Callable
from typing import Any

from refimpl import CONTENTS

__all__ = ["operations"]


def operations() -> dict[str, Callable[..., Any]]:
    """Return every public function of refimpl's basics and llm rooms by name."""
    found: dict[str, Callable[..., Any]] = {}
    for name, _ in CONTENTS:
        if name.split(".")[0] in ("basics", "llm"):
            module = importlib.import_module(f"refimpl.{name}")
            found |= {key: value for key, value in vars(module).items() if _is_its_own(value, module.__name__)}
    return found


def _is_its_own(value: Any, module: str) -> bool:
    return hasattr(value, "role") and value.__module__ == module
