"""The key/value cache, slot by slot. A cache is given by its fields, and so is the one that comes back."""

from golden.values import Array

__all__ = ["cache_append"]


def cache_append(k_cache: Array, v_cache: Array, length: int, k: Array, v: Array) -> tuple[Array, Array, int]:
    new_k, new_v = k_cache.copy(), v_cache.copy()
    for t in range(len(k)):
        new_k[length + t] = k[t]
        new_v[length + t] = v[t]
    return new_k, new_v, length + len(k)
