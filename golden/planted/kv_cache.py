"""Faults of the key/value cache: in which slot a token lands, and how it is rounded on its way there."""

import numpy as np

from golden.derive import kv_cache
from golden.values import Array

__all__ = ["appended_at_zero", "one_slot_late", "truncated"]


def appended_at_zero(k_cache: Array, v_cache: Array, length: int, k: Array, v: Array) -> tuple[Array, Array, int]:
    """Every chunk starts at slot 0."""
    new_k, new_v, _ = kv_cache.cache_append(k_cache, v_cache, 0, k, v)
    return new_k, new_v, length + len(k)


def one_slot_late(k_cache: Array, v_cache: Array, length: int, k: Array, v: Array) -> tuple[Array, Array, int]:
    """The first new token leaves a slot free, and the last of a full cache is lost."""
    kept = min(len(k), len(k_cache) - length - 1)
    new_k, new_v, _ = kv_cache.cache_append(k_cache, v_cache, length + 1, k[:kept], v[:kept])
    return new_k, new_v, length + len(k)


def truncated(k_cache: Array, v_cache: Array, length: int, k: Array, v: Array) -> tuple[Array, Array, int]:
    """float32 cut off to float16, not rounded: the 13 bits that do not fit are dropped."""
    cut_k, cut_v = ((x.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32) for x in (k, v))
    return kv_cache.cache_append(k_cache, v_cache, length, cut_k, cut_v)
