"""Faults of the paged cache: which slot, whose block, how many keys."""

import math
from typing import Any

import numpy as np

from golden.derive import paged as derive
from golden.values import Array

__all__ = [
    "base_2", "blind_row_nan", "blocks_in_order", "blocks_sorted", "first_queries", "first_sequence", "heads_tiled",
    "keywords_ignored", "last_block_lost", "length_before_append", "minus_one_written", "offset_dropped",
    "scores_unshifted", "slots_in_order", "split_lost", "table_transposed", "whole_blocks", "window_plus_one",
]  # fmt: skip


def blocks_in_order(block_table: Array, positions: Array, block_size: int) -> Array:
    """The table is not read: block i of a sequence is block i of the cache."""
    return derive.slot_mapping(np.arange(len(block_table)), positions, block_size)


def offset_dropped(block_table: Array, positions: Array, block_size: int) -> Array:
    """The first slot of the block, for every token in it."""
    return derive.slot_mapping(block_table, positions // block_size * block_size, block_size)


def slots_in_order(k_cache: Array, v_cache: Array, k: Array, v: Array, slots: Array) -> Any:
    """Tokens are written one after the other from the first slot on."""
    return derive.paged_append(k_cache, v_cache, k, v, slots[0] + np.arange(len(slots)))


def minus_one_written(k_cache: Array, v_cache: Array, k: Array, v: Array, slots: Array) -> Any:
    """Slot -1 is the last one, as Python and CuPy count."""
    last = k_cache.shape[0] * k_cache.shape[1] - 1
    return derive.paged_append(k_cache, v_cache, k, v, np.where(slots < 0, last, slots))


def table_transposed(*, k_cache: Array, block_tables: Array, **rest: Any) -> Any:
    """The strides of the table are swapped."""
    swapped = block_tables.T.reshape(block_tables.shape)
    return derive.paged_attention(k_cache=np.nan_to_num(k_cache), block_tables=swapped, **rest)


def first_sequence(*, k_cache: Array, block_tables: Array, **rest: Any) -> Any:
    """Every sequence reads the first one's blocks."""
    table = np.repeat(block_tables[:1], len(block_tables), axis=0)
    return derive.paged_attention(k_cache=np.nan_to_num(k_cache), block_tables=table, **rest)


def whole_blocks(*, k_cache: Array, context_lens: Array, **rest: Any) -> Any:
    """Lengths are rounded up to whole blocks: the unused slots of the last one are seen."""
    size = k_cache.shape[1]
    longer = -(-context_lens // size) * size
    return derive.paged_attention(k_cache=np.nan_to_num(k_cache), context_lens=longer, **rest)


def last_block_lost(*, k_cache: Array, context_lens: Array, **rest: Any) -> Any:
    """Tokens in whole blocks are counted from 0: a block that the last token fills is not read."""
    size = k_cache.shape[1]
    shorter = np.where(context_lens % size == 0, np.maximum(context_lens - size, 0), context_lens)
    return derive.paged_attention(k_cache=k_cache, context_lens=shorter, **rest)


def blocks_sorted(*, block_tables: Array, **rest: Any) -> Any:
    """The blocks of a sequence are read in the order in which they lie in the cache."""
    return derive.paged_attention(block_tables=np.sort(block_tables), **rest)


def blind_row_nan(**rest: Any) -> Any:
    """The plain softmax of -inf alone."""
    o, lse = derive.paged_attention(**rest | {"return_lse": True})
    o[lse == -np.inf] = np.nan
    return (o, lse) if rest.get("return_lse") else o


def base_2(**rest: Any) -> Any:
    """The log-sum-exp to base 2 (FlashInfer)."""
    o, lse = derive.paged_attention(**rest)
    return o, lse / math.log(2)


def scores_unshifted(**rest: Any) -> Any:
    """exp of the scores as they are: what they sum to overflows float32."""
    o, lse = derive.paged_attention(**rest | {"return_lse": True})
    total = np.exp(lse.astype(np.float32))[..., None]
    return o * total / total


def length_before_append(*, context_lens: Array, **rest: Any) -> Any:
    """Lengths are those before the newest token."""
    return derive.paged_attention(context_lens=context_lens - 1, **rest)


def first_queries(*, context_lens: Array, cu_seqlens: Array, **rest: Any) -> Any:
    """The queries of a chunk stand at the first positions, not at the last."""
    return derive.paged_attention(context_lens=np.diff(cu_seqlens), cu_seqlens=cu_seqlens, **rest)


def split_lost(**rest: Any) -> Any:
    """Only the last 256 keys come into the result: the parts of the others are not combined."""
    return derive.paged_attention(window=256, **rest)


def window_plus_one(*, window: int, **rest: Any) -> Any:
    """The window counts the keys to the left of the query."""
    return derive.paged_attention(window=window + 1, **rest)


def keywords_ignored(*, scale: float, softcap: float, **rest: Any) -> Any:
    """Scores are scaled by the head width and never capped, whatever is asked for."""
    return derive.paged_attention(**rest)


def heads_tiled(*, q: Array, k_cache: Array, v_cache: Array, **rest: Any) -> Any:
    """Query head n reads key head n modulo K."""
    tiled = np.arange(q.shape[1]) % k_cache.shape[2]
    return derive.paged_attention(q=q, k_cache=k_cache[:, :, tiled], v_cache=v_cache[:, :, tiled], **rest)
