"""The paged key/value cache: one pool of blocks for all sequences, and attention through their block tables."""

from typing import Any

import numpy as np

from refimpl.contract import Array, Float, Int, op, require, whole, widen
from refimpl.efficient.allocator import blocks_for
from refimpl.llm.attention import attention

__all__ = ["slot_mapping", "paged_append", "paged_attention"]


@op
def slot_mapping(block_table: Int[Array, " M"], positions: Int[Array, " T"], block_size: int) -> Int[Array, " T"]:
    """Find the slot of the cache in which each token of one sequence stands.

    Math: slot[t] = block_table[positions[t] // block_size] block_size + positions[t] mod block_size.
    Cost: no flop; a table lookup for each token.
    Numerics: exact; int32.
    Constraints:
        (C1) a block has at least 1 slot, and less than 2^31.
        (C2) table and positions are rows of integers, and 0 <= position < M block_size.
        (C3) the entries that they lie in are blocks; those after the last token may be -1; slots fit int32.
    Source: Kwon et al., Efficient memory management for large language model serving with PagedAttention, 2023.

    >>> slot_mapping(np.array([7, 2, -1]), np.arange(2, 6), block_size=4)
    array([30, 31,  8,  9], dtype=int32)
    """
    block_size = whole("block_size", block_size)
    require(1 <= block_size < 2**31, "C1", f"blocks of {block_size} slots")
    ranks = block_table.ndim, positions.ndim
    kinds = {block_table.dtype.kind, positions.dtype.kind}
    require(ranks == (1, 1) and kinds <= {*"iu"}, "C2", f"table and positions are rows of integers, got {ranks} axes")
    block_table, positions, M = block_table.astype(np.int64), positions.astype(np.int64), len(block_table)
    inside = (positions >= 0) & (positions < M * block_size)
    require(bool(inside.all()), "C2", f"positions {positions[~inside]} in {M} blocks of {block_size}")
    blocks = block_table[positions // block_size]
    there = (blocks >= 0) & (blocks < 2**31 // block_size)
    require(bool(there.all()), "C3", f"positions {positions[~there]} lie in no block, or in slots beyond int32")
    return (blocks * block_size + positions % block_size).astype(np.int32)


@op
def paged_append(
    k_cache: Float[Array, "num_blocks block_size K H"], v_cache: Float[Array, "num_blocks block_size K H2"],
    k: Float[Array, "T K H"], v: Float[Array, "T K H2"], slots: Int[Array, " T"],
) -> tuple[Float[Array, "num_blocks block_size K H"], Float[Array, "num_blocks block_size K H2"]]:
    """Write the keys and values of T tokens into their slots of the cache, in place; slot -1 means nowhere.

    Math: k_cache[slots[t] // block_size, slots[t] mod block_size] = k[t], and so v_cache, where slots[t] >= 0.
    Cost: no flop, T K (H + H2) elements read and written: bound by memory.
    Numerics: one cast to the dtype of the cache.
    Constraints:
        (C1) k, v and slots hold T tokens in the heads of the cache.
        (C2) slots are integers: -1, or slots of the cache.
        (C3) no two tokens have the same slot.
    Source: Kwon et al., PagedAttention, 2023; slots as in vLLM's reshape_and_cache.

    >>> k_cache, v_cache = np.zeros((2, 2, 1, 1)), np.zeros((2, 2, 1, 1))
    >>> k_cache, _ = paged_append(k_cache, v_cache, np.full((2, 1, 1), 5.0), np.ones((2, 1, 1)), np.array([2, -1]))
    >>> k_cache.ravel()
    array([0., 0., 5., 0.])
    """
    ranks = k_cache.ndim, v_cache.ndim, slots.ndim
    require(ranks == (4, 4, 1), "C1", f"caches have 4 axes, slots 1, got {ranks}")
    T, pools, capacity = len(slots), (k_cache.shape[2:], v_cache.shape[2:]), k_cache.shape[0] * k_cache.shape[1]
    fits = (k.shape, v.shape) == ((T, *pools[0]), (T, *pools[1])) and k_cache.shape[:2] == v_cache.shape[:2]
    require(fits, "C1", f"k {k.shape}, v {v.shape} and {T} slots for caches {k_cache.shape} and {v_cache.shape}")
    require(slots.dtype.kind in "iu", "C2", f"slots are integers, got {slots.dtype}")
    inside = (slots >= -1) & (slots < capacity)
    require(bool(inside.all()), "C2", f"slots {slots[~inside]} in a cache of {capacity}")
    written = slots >= 0
    used = slots[written]
    require(len(np.unique(used)) == len(used), "C3", f"slots {slots} hold one twice")
    for cache, new in ((k_cache, k), (v_cache, v)):
        cache[np.divmod(used, cache.shape[1])] = widen(new[written])
    return k_cache, v_cache


@op
def paged_attention(
    q: Float[Array, "T N H"],
    k_cache: Float[Array, "num_blocks block_size K H"], v_cache: Float[Array, "num_blocks block_size K H2"],
    block_tables: Int[Array, "R M"], context_lens: Int[Array, " R"], cu_seqlens: Int[Array, " bounds"], *,
    scale: float | None = None, window: int | None = None, softcap: float | None = None, return_lse: bool = False,
    sinks: Float[Array, " N"] | None = None, prefix: int = 0, chunk: int | None = None,
) -> Float[Array, "T N H2"] | tuple[Float[Array, "T N H2"], Float[Array, "T N"]]:
    """Attend for R sequences at once, each to its own tokens in the cache: prefill, decode, or some of each.

    The T queries are those of all sequences, packed: sequence r has q[cu_seqlens[r] : cu_seqlens[r + 1]], the last of
    its context_lens[r] tokens, whose keys and values stand in the blocks of block_tables[r], in order. Attention is
    causal.

    Math: for every r, o[r] = attention(q[r], k[r], v[r]) with S = context_lens[r],
        k[r, s] = k_cache[block_tables[r, s // block_size], s mod block_size], and so v.
    Cost: attention's, summed over the sequences. Decoding (T = R) is bound by the bytes of keys and values, each read
        once for its G queries.
    Numerics: as attention. A sequence's result does not depend on the other sequences, nor on which blocks it has; the
        slots after its last token, and the table's entries after its last block, are not read: they may hold anything.
    Constraints:
        (C1) K divides N.
        (C2) q and the caches agree on H; the caches agree on blocks, block_size and K.
        (C3) R + 1 bounds rise from 0 to T; tables and lengths are those of R sequences; all are integers.
        (C4) a sequence has 0 to M block_size tokens.
        (C5) the entries of a table that hold tokens are blocks of the cache.
        (C6) a window is at least 1.
        (C7) a softcap is positive.
        (C8) sinks are one for each query head.
        (C9) a prefix is at least 0, and 0 where there is no window.
        (C10) a chunk is at least 1.
    Source: Kwon et al., PagedAttention, 2023; packed queries as flash-attention's varlen functions have them.

    >>> cache = np.arange(4.0).reshape(4, 1, 1, 1)
    >>> tables, lengths, bounds = np.array([[3, -1], [0, 2]]), np.array([1, 2]), np.array([0, 1, 2])
    >>> paged_attention(np.zeros((2, 1, 1)), cache, cache, tables, lengths, bounds)[:, 0, 0]
    array([3., 1.])
    """
    _check_heads(q, k_cache, v_cache, window, softcap)
    _check_sinks(q.shape[1], sinks, prefix, window, chunk)
    _check_tables(len(q), k_cache.shape, block_tables, context_lens, cu_seqlens)
    rules: dict[str, Any] = {"scale": scale, "window": window, "softcap": softcap, "sinks": sinks, "prefix": prefix}
    o, lse = np.zeros((*q.shape[:2], v_cache.shape[-1]), q.dtype), np.zeros(q.shape[:2], widen(q).dtype)
    rows = []
    for r, (table, length) in enumerate(zip(block_tables, context_lens, strict=True)):
        blocks = table[: blocks_for(int(length), k_cache.shape[1])]
        size = len(blocks) * k_cache.shape[1]
        k, v = (cache[blocks].reshape(size, *cache.shape[2:])[:length] for cache in (k_cache, v_cache))
        own = q[cu_seqlens[r] : cu_seqlens[r + 1]]
        rows.append(attention(own, k, v, **rules, chunk=chunk, return_lse=True))
    if rows:
        o, lse = (np.concatenate(parts) for parts in zip(*rows, strict=True))
    return (o, lse) if return_lse else o


def _check_heads(q: Array, k_cache: Array, v_cache: Array, window: int | None, softcap: float | None) -> None:
    ranks = q.ndim, k_cache.ndim, v_cache.ndim
    require(ranks == (3, 4, 4), "C2", f"q and the caches have 3, 4 and 4 axes, got {ranks}")
    (N, H), K = q.shape[1:], k_cache.shape[2]
    require(K > 0 and N % K == 0, "C1", f"{K} key/value heads do not divide {N} query heads")
    fits = k_cache.shape[-1] == H and k_cache.shape[:-1] == v_cache.shape[:-1]
    require(fits, "C2", f"q {q.shape}, caches {k_cache.shape} and {v_cache.shape} do not fit")
    require(window is None or whole("window", window) >= 1, "C6", f"window {window}")
    require(softcap is None or softcap > 0, "C7", f"softcap {softcap} is not positive")


def _check_sinks(N: int, sinks: Array | None, prefix: int, window: int | None, chunk: int | None) -> None:
    require(sinks is None or sinks.shape == (N,), "C8", f"sinks {getattr(sinks, 'shape', None)} for {N} query heads")
    require(whole("prefix", prefix) == 0 or (prefix > 0 and bool(window)), "C9", f"prefix {prefix}, window {window}")
    require(chunk is None or whole("chunk", chunk) >= 1, "C10", f"chunk {chunk}")


def _check_tables(
    T: int, shape: tuple[int, ...], block_tables: Array, context_lens: Array, cu_seqlens: Array
) -> None:
    ranks = block_tables.ndim, context_lens.ndim, cu_seqlens.ndim
    require(ranks == (2, 1, 1), "C3", f"tables, lengths and bounds have 2, 1 and 1 axes, got {ranks}")
    kinds = "".join(x.dtype.kind for x in (block_tables, context_lens, cu_seqlens))
    require(set(kinds) <= {*"iu"}, "C3", f"tables, lengths and bounds are integers, got kinds {kinds}")
    (R, M), (num_blocks, block_size) = block_tables.shape, shape[:2]
    bounds = len(context_lens) == R and len(cu_seqlens) == R + 1 and cu_seqlens[0] == 0 and cu_seqlens[-1] == T
    rising = bounds and bool((cu_seqlens[1:] >= cu_seqlens[:-1]).all())
    require(rising, "C3", f"bounds {cu_seqlens} of {T} queries, {len(context_lens)} lengths, {R} tables")
    fits = (context_lens >= 0) & (context_lens <= M * block_size)
    require(bool(fits.all()), "C4", f"lengths {context_lens[~fits]} in {M} blocks of {block_size}")
    holding = np.arange(M) * block_size < context_lens[:, None]
    known = (block_tables >= 0) & (block_tables < num_blocks)
    require(bool((known | ~holding).all()), "C5", f"blocks {block_tables[holding & ~known]} of {num_blocks}")
