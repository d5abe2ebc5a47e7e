"""Sequences of random keys and values, laid into the blocks of a paged cache."""

from typing import Any

import numpy as np

from golden.values import dtype_named
from refimpl.efficient.allocator import blocks_for

__all__ = ["Batch"]


class Batch:
    """Sequences as (tokens, how many of them are new and have a query)."""

    def __init__(self, seed, lengths, block_size, N, K, H=4, H2=3, dtype="float64", held=None):
        draw, held = np.random.default_rng(seed).standard_normal, dtype_named(held or dtype)
        self.lengths, self.block_size = [tokens for tokens, _ in lengths], block_size
        counts = [min(new, tokens) for tokens, new in lengths]
        self.bounds = np.cumsum([0, *counts]).astype(np.int32)
        self.q = draw((sum(counts), N, H)).astype(dtype_named(dtype))
        self.kv = [(draw((S, K, H)).astype(held), draw((S, K, H2)).astype(held)) for S in self.lengths]
        self.blocks = sum(blocks_for(S, block_size) for S in self.lengths) + 2  # two that nobody has

    def queries(self, r: int) -> np.ndarray:
        """Return the queries of one sequence."""
        return self.q[self.bounds[r] : self.bounds[r + 1]]

    def arguments(self, order, poison: float = np.nan) -> dict[str, Any]:
        """Return the arguments of paged_attention, the blocks dealt out in an order; other slots hold poison."""
        rows = max(blocks_for(S, self.block_size) for S in self.lengths) + 1
        tables, used = np.full((len(self.lengths), rows), -1, np.int32), 0
        caches = [np.full((self.blocks, self.block_size, *x.shape[1:]), poison).astype(x.dtype) for x in self.kv[0]]
        for table, kv in zip(tables, self.kv, strict=True):
            count, s = blocks_for(len(kv[0]), self.block_size), np.arange(len(kv[0]))
            table[:count] = order[used : used + count]
            used += count
            for cache, new in zip(caches, kv, strict=True):
                cache[table[s // self.block_size], s % self.block_size] = new
        return {
            "q": self.q, "k_cache": caches[0], "v_cache": caches[1], "block_tables": tables,
            "context_lens": np.array(self.lengths, np.int32), "cu_seqlens": self.bounds,
        }  # fmt: skip
