"""Faults of sinks, prefixes and chunks: whose sink, how often it counts, from where a chunk is counted."""

import math
from typing import Any

import numpy as np

from golden.derive import DERIVATIONS
from golden.derive.attention import attention
from golden.derive.paged import paged_attention
from golden.values import Array

__all__ = [
    "chunk_as_window", "chunk_of_the_queries", "none_is_zero", "prefix_ignored", "prefix_in_the_window",
    "prefix_not_causal", "sink_ignored", "sink_in_lse", "sink_in_parts", "sink_in_tiles", "sink_of_key_head",
    "sink_scaled", "sink_unshifted",
]  # fmt: skip


def _any(arguments: dict[str, Any]) -> Any:
    """Return the derivation that takes these arguments: attention, tile by tile, or through block tables."""
    names = {"block_tables": "paged_attention", "tile": "flash_attention"}
    return DERIVATIONS[next((op for name, op in names.items() if name in arguments), "attention")](**arguments)


def sink_ignored(**arguments: Any) -> Any:
    """The softmax is that of the keys alone."""
    return _any(arguments | {"sinks": None})


def sink_of_key_head(*, sinks: Array, k: Array, **rest: Any) -> Any:
    """Query head n has the sink of its key head."""
    return _any(rest | {"k": k, "sinks": np.repeat(sinks[: k.shape[1]], len(sinks) // k.shape[1])})


def sink_scaled(*, sinks: Array, q: Array, **rest: Any) -> Any:
    """The sink is scaled with the scores."""
    return _any(rest | {"q": q, "sinks": sinks * q.shape[-1] ** -0.5})


def none_is_zero(*, sinks: Array, **rest: Any) -> Any:
    """A head without a sink has one of 0, which takes its share."""
    return _any(rest | {"sinks": np.where(sinks == -np.inf, 0, sinks)})


def sink_unshifted(q: Array, k: Array, v: Array, *, sinks: Array) -> Any:
    """exp of the sink as it is, beside scores that are shifted by their maximum."""
    o, lse = attention(q, k, v, return_lse=True)
    scores = np.einsum("tnh,snh->tns", q, np.repeat(k, q.shape[1] // k.shape[1], axis=1)) / math.sqrt(q.shape[-1])
    seen = np.tri(len(q), len(k), len(k) - len(q), dtype=bool)[:, None]
    total = np.exp(lse - np.where(seen, scores, -np.inf).max(-1))
    return o * (total / (total + np.exp(sinks)))[..., None]


def sink_in_lse(*, sinks: Array, **rest: Any) -> Any:
    """The log-sum-exp counts the sink."""
    o, lse = _any(rest | {"sinks": sinks})
    return o, np.logaddexp(lse, sinks)


def sink_in_tiles(*, sinks: Array, tile: int, k: Array, **rest: Any) -> Any:
    """Every tile counts the sink."""
    return _any(rest | {"k": k, "tile": tile, "sinks": sinks + np.log(-(-len(k) // tile))})


def sink_in_parts(*, sinks: Array, context_lens: Array, **rest: Any) -> Any:
    """Every split of the keys counts the sink."""
    return paged_attention(context_lens=context_lens, sinks=sinks + np.log(-(-context_lens.max() // 256)), **rest)


def prefix_ignored(*, prefix: int, **rest: Any) -> Any:
    """The first keys leave with the window."""
    return _any(rest)


def prefix_in_the_window(*, prefix: int, window: int, **rest: Any) -> Any:
    """The prefix takes its places out of the window."""
    return _any(rest | {"prefix": prefix, "window": max(1, window - prefix)})


def prefix_not_causal(q: Array, k: Array, v: Array, *, prefix: int, window: int, **rest: Any) -> Any:
    """Early queries see the whole prefix, their own future in it."""
    (T, _, _), s = q.shape, np.arange(len(k))
    own = np.arange(len(k) - T, len(k))[:, None]
    mask = ((s <= own) & (s > own - window)) | (s < prefix)
    return attention(q, k, v, causal=False, mask=mask, **rest)


def chunk_as_window(*, chunk: int, **rest: Any) -> Any:
    """A chunk is taken for a window, which moves with the query."""
    return _any(rest | {"window": chunk})


def chunk_of_the_queries(q: Array, k: Array, v: Array, *, chunk: int, **rest: Any) -> Any:
    """Chunks are counted from the first query of the call, not from the first token."""
    own, s = np.arange(len(q))[:, None], np.arange(len(k)) - len(k) + len(q)
    return attention(q, k, v, **rest | {"mask": (s <= own) & (s // chunk == own // chunk)})
