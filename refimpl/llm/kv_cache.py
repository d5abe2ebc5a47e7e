"""The contiguous key/value cache: what one layer remembers of a sequence while it is decoded."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from refimpl.contract import Array, Float, host, op, require, rows

__all__ = ["KVCache", "new_cache", "cache_append"]


@dataclass(frozen=True)
class KVCache:
    """The keys and values of the first ``length`` tokens; the slots after them may hold anything, NaN included."""

    k: Float[Array, "capacity K H"]
    v: Float[Array, "capacity K H"]
    length: int


@host
def new_cache(capacity: int, num_kv_heads: int, head_dim: int, dtype: Any = np.float32) -> KVCache:
    """Return an empty cache for ``capacity`` tokens.

    >>> new_cache(8, 2, 4).k.shape
    (8, 2, 4)
    """
    shape = (capacity, num_kv_heads, head_dim)
    return KVCache(np.zeros(shape, dtype), np.zeros(shape, dtype), 0)


@op
def cache_append(cache: KVCache, k: Float[Array, "T K H"], v: Float[Array, "T K H"]) -> KVCache:
    """Write the keys and values of T new tokens after those that the cache holds.

    The arrays are shared, not copied: an older cache still reads its own tokens, but two appends to one cache write
    the same slots, so copy the arrays to branch a sequence.

    Math: k_cache[length + t] = k[t], v_cache[length + t] = v[t].
    Cost: no flop, 2 T K H elements read and written: bound by memory.
    Numerics: one cast to the dtype of the cache.
    Constraints:
        (C1) length + T <= capacity.
        (C2) k and v hold T tokens in the heads of the cache.
        (C3) length is not negative, and k and v of the cache have one capacity.
    Source: Shazeer, Fast transformer decoding, 2019; the layout is the plain one of gpt-fast.

    >>> cache = cache_append(new_cache(8, 1, 2), np.ones((3, 1, 2)), np.ones((3, 1, 2)))
    >>> cache.length, float(cache.k.sum())
    (3, 6.0)
    """
    T, capacity = rows(k), rows(cache.k)
    there = cache.length >= 0 and rows(cache.v) == capacity
    require(there, "C3", f"a cache of {capacity} and {rows(cache.v)} slots that holds {cache.length} tokens")
    require(cache.length + T <= capacity, "C1", f"{cache.length} + {T} tokens exceed the capacity of {capacity}")
    fits = k.shape[1:] == cache.k.shape[1:] and v.shape == (T, *cache.v.shape[1:])
    require(fits, "C2", f"k {k.shape} and v {v.shape} for a cache of {cache.k.shape[1:]}")
    new = slice(cache.length, cache.length + T)
    cache.k[new], cache.v[new] = k, v
    return replace(cache, length=new.stop)
