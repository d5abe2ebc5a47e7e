"""The paged cache, token by token through the block table."""

from typing import Any

import numpy as np

from golden.derive.attention import attention
from golden.values import Array

__all__ = ["paged_append", "paged_attention", "slot_mapping"]


def slot_mapping(block_table: Array, positions: Array, block_size: int) -> Array:
    slots = [int(block_table[p // block_size]) * block_size + p % block_size for p in positions.tolist()]
    return np.array(slots, np.int32)


def paged_append(k_cache: Array, v_cache: Array, k: Array, v: Array, slots: Array) -> tuple[Array, Array]:
    new_k, new_v = k_cache.copy(), v_cache.copy()
    for t, slot in enumerate(slots.tolist()):
        if slot >= 0:
            place = divmod(slot, k_cache.shape[1])
            new_k[place], new_v[place] = k[t], v[t]
    return new_k, new_v


def paged_attention(
    q: Array, k_cache: Array, v_cache: Array, block_tables: Array, context_lens: Array, cu_seqlens: Array, **rest: Any,
) -> Any:  # fmt: skip
    size, N, H2 = k_cache.shape[1], q.shape[1], v_cache.shape[-1]
    o, lse = np.zeros((len(q), N, H2)), np.zeros((len(q), N))
    for r, length in enumerate(context_lens.tolist()):
        own = slice(cu_seqlens[r], cu_seqlens[r + 1])
        k, v = np.zeros((length, *k_cache.shape[2:])), np.zeros((length, *v_cache.shape[2:]))
        for s in range(length):
            k[s] = k_cache[block_tables[r, s // size], s % size]
            v[s] = v_cache[block_tables[r, s // size], s % size]
        o[own], lse[own] = attention(q[own], k, v, **rest | {"return_lse": True})
    return (o, lse) if rest.get("return_lse") else o
