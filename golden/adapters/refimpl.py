"""The reference: its operations, and the host functions that cases name. A data class is judged by its fields."""

import importlib
from typing import Any

from golden.verify import Candidate
from refimpl import CONTENTS
from refimpl.llm import kv_cache

__all__ = ["ROOMS", "candidates"]

ROOMS = ("basics", "llm", "media", "efficient")


def candidates() -> list[Candidate]:
    """Return every public function of refimpl's rooms of operations."""
    found: dict[str, Any] = {}
    for name, _ in CONTENTS:
        if name.split(".")[0] in ROOMS:
            module = importlib.import_module(f"refimpl.{name}")
            found |= {key: value for key, value in vars(module).items() if _is_its_own(value, module.__name__)}
    return [Candidate(name, call) for name, call in (found | {"cache_append": _cache_append}).items()]


def _cache_append(k_cache: Any, v_cache: Any, length: int, k: Any, v: Any) -> tuple[Any, Any, int]:
    cache = kv_cache.cache_append(kv_cache.KVCache(k_cache, v_cache, length), k, v)
    return cache.k, cache.v, cache.length


def _is_its_own(value: Any, module: str) -> bool:
    return hasattr(value, "role") and value.__module__ == module
