"""The contiguous key/value cache: one block a token copies its keys and values behind those that are there."""

from dataclasses import replace
from functools import cache as cached
from math import prod
from typing import Any

import numpy as np

from gpu import device
from gpu.compile import Kernel, numba_kernel
from gpu.grid import threads_for
from gpu.number import named, read, storage, write
from gpu.registry import Variant
from refimpl.contract import Array, Float, kernel, op, require, rows
from refimpl.llm.kv_cache import KVCache, new_cache

__all__ = ["VARIANTS", "cache_append", "cache_append_into"]


@op
def cache_append(cache: KVCache, k: Float[Array, "T K H"], v: Float[Array, "T K H"]) -> KVCache:
    """One block a token, its threads along the row. The cache stays on the device; one that is not there is copied."""
    T, capacity = rows(k), rows(cache.k)
    there = cache.length >= 0 and rows(cache.v) == capacity
    require(there, "C3", f"a cache of {capacity} and {rows(cache.v)} slots that holds {cache.length} tokens")
    require(cache.length + T <= capacity, "C1", f"{cache.length} + {T} tokens exceed the capacity of {capacity}")
    fits = k.shape[1:] == cache.k.shape[1:] and v.shape == (T, *cache.v.shape[1:])
    require(fits, "C2", f"k {k.shape} and v {v.shape} for a cache of {cache.k.shape[1:]}")
    held = replace(cache, k=device.array(cache.k), v=device.array(cache.v), length=cache.length + T)
    cache_append_into(held.k, held.v, device.array(k), device.array(v), cache.length)
    return held


@kernel
def cache_append_into(
    k_cache: Float[Array, "capacity K H"], v_cache: Float[Array, "capacity K H"], k: Float[Array, "T K H"],
    v: Float[Array, "T K H"], length: int,
) -> None:
    """Write ``k`` and ``v`` into the slots of the cache from ``length`` on."""
    made = _cache_append(named(k_cache), named(k))
    named(v), named(v_cache)
    if k.size or v.size:
        rows = (x.reshape(len(x), prod(x.shape[1:])) for x in (k_cache, v_cache, k, v))
        device.launch(made, len(k), threads_for(prod(k.shape[1:])), *rows, length)


@cached
def _cache_append(dtype: str, new_dtype: str) -> Kernel:
    from numba import uint64

    from gpu.warp import block, thread, threads

    wide, narrow = read(new_dtype), write(dtype)
    held, new = f"{storage(dtype)}[:, ::1]", f"{storage(new_dtype)}[:, ::1]"

    @numba_kernel(held, held, new, new, "int64", name=f"cache_append[{dtype}, {new_dtype}]")
    def cache_append(k_cache, v_cache, k, v, length):
        t = block()
        slot, i = uint64(length) + t, thread()
        while i < uint64(k.shape[1]):
            k_cache[slot, i] = narrow(wide(k[t, i]))
            i += threads()
        i = thread()
        while i < uint64(v.shape[1]):
            v_cache[slot, i] = narrow(wide(v[t, i]))
            i += threads()

    return cache_append


def _workload() -> dict[str, Any]:
    k, v = np.random.default_rng(0).standard_normal((2, 64, 8, 128), np.float32)
    return {"cache": new_cache(256, 8, 128), "k": k, "v": v}


VARIANTS = (Variant("numba", "cache_append", cache_append, lambda *_, **__: True, _workload),)
