"""Faults of biases by distance: which slope, which bucket, from where a distance counts."""

from typing import Any

import numpy as np

from golden.derive import position_bias as derive
from golden.values import Array

__all__ = [
    "base_64", "bias_rises", "by_first_query", "direction_ignored", "distance_ignored", "heads_in_columns",
    "query_minus_key", "second_half_backwards", "slopes_geometric",
]  # fmt: skip


def slopes_geometric(num_heads: int) -> Array:
    """One geometric series whatever the number of heads, which only a power of two has."""
    return 2.0 ** (-8 * np.arange(1, num_heads + 1) / num_heads)


def base_64(num_heads: int) -> Array:
    """The first slope is 2^(-6 / N): a largest exponent of 6, not of 8."""
    return derive.alibi_slopes(num_heads) ** 0.75


def bias_rises(slopes: Array, T: int, S: int) -> Array:
    """The bias favours what is far."""
    return -derive.alibi_bias(slopes.astype(np.float64), T, S)


def by_first_query(**arguments: Any) -> Array:
    """Query t stands at position t, although keys were there before it."""
    T, S = arguments["T"], arguments["S"]
    name = "t5_bias" if "table" in arguments else "alibi_bias"
    wide = {key: x.astype(np.float64) if isinstance(x, np.ndarray) else x for key, x in arguments.items()}
    return getattr(derive, name)(**wide | {"T": S, "S": S})[:, :T] if T <= S else np.zeros(0)


def distance_ignored(slopes: Array, T: int, S: int) -> Array:
    """The position of the key alone, as Bloom adds it: right only up to a number for each query."""
    bias: Array = slopes.astype(np.float64)[:, None, None] * np.arange(S) + np.zeros((T, 1))
    return bias


def query_minus_key(ahead: Array, num_buckets: int, **rest: Any) -> Array:
    """Distances count from the key to the query."""
    return derive.t5_buckets(-ahead, num_buckets, **rest)


def direction_ignored(ahead: Array, num_buckets: int, **rest: Any) -> Array:
    """All buckets are those of one direction, or of both, the other way about."""
    return derive.t5_buckets(ahead, num_buckets, **rest | {"bidirectional": not rest.get("bidirectional", True)})


def second_half_backwards(table: Array, T: int, S: int, **rest: Any) -> Array:
    """Keys ahead have the first half of the table."""
    return derive.t5_bias(np.roll(table.astype(np.float64), len(table) // 2, axis=0), T, S, **rest)


def heads_in_columns(table: Array, T: int, S: int, **rest: Any) -> Array:
    """The table is read as [N buckets]."""
    return derive.t5_bias(table.astype(np.float64).reshape(table.shape[::-1]).T, T, S, **rest)
