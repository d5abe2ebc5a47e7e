"""Positions as a bias of attention scores: ALiBi's slopes and T5's learned table, both by distance alone.

A bias [N T S] is the ``mask`` that attention adds to its scores; the query t stands at position S - T + t.
"""

import math

import numpy as np

from refimpl.contract import Array, Float, Int, host, op, require, whole, widen

__all__ = ["alibi_slopes", "alibi_bias", "t5_buckets", "t5_bias"]


@host
def alibi_slopes(num_heads: int) -> Float[Array, " N"]:
    """Return how steeply each head's bias falls with distance.

    Math: with P the largest power of two up to N, 2^(-8 (n + 1) / P) for the first P heads; the others take every
        second slope of 2P heads: 2^(-8 (2m + 1) / 2P), m = 0, 1, ...
    Constraints:
        (C1) there is at least 1 head.
    Source: Press et al., ALiBi, 2022; between powers of two as in its code.

    >>> alibi_slopes(4), alibi_slopes(3)
    (array([0.25      , 0.0625    , 0.015625  , 0.00390625]), array([0.0625    , 0.00390625, 0.25      ]))
    """
    require(whole("num_heads", num_heads) >= 1, "C1", f"{num_heads} heads")
    power = 1 << int(num_heads).bit_length() - 1
    exponents = [(n + 1) / power for n in range(power)] + [(2 * m + 1) / 2 / power for m in range(num_heads - power)]
    return 2.0 ** (-8 * np.array(exponents))


@op
def alibi_bias(slopes: Float[Array, " N"], T: int, S: int) -> Float[Array, "N T S"]:
    """Lower every score by the distance between query and key, times the slope of the head.

    Math: bias[n, t, s] = -slopes[n] |s - (S - T + t)|. A causal mask hides the keys that lie ahead.
    Cost: N T S flop, N T S elements written: bound by memory; fused into attention, it costs no bytes.
    Numerics: float32 or wider, one cast.
    Constraints:
        (C1) slopes are those of N heads; T and S are not negative.
    Source: Press et al., ALiBi, 2022.

    >>> alibi_bias(np.array([0.5]), 2, 3)
    array([[[-0.5,  0. , -0.5],
            [-1. , -0.5,  0. ]]])
    """
    require(slopes.ndim == 1 and T >= 0 and S >= 0, "C1", f"slopes {slopes.shape} for {T} queries and {S} keys")
    wide, rises = widen(slopes), -np.abs(_ahead(T, S))
    return (wide[:, None, None] * rises.astype(wide.dtype)).astype(slopes.dtype, copy=False)


@host
def t5_buckets(
    ahead: Int[Array, "..."], num_buckets: int, *, max_distance: int = 128, bidirectional: bool = True
) -> Int[Array, "..."]:
    """Return the bucket of each distance, in positions from the query to the key: one a distance at first, then wider.

    Math: bidirectional, keys ahead have the second half of the buckets, by their distance d; else they count as d = 0.
        Of b buckets for one direction, the first half is d itself; the others grow by logarithm up to max_distance:
        b / 2 + floor(ln(2d / b) / ln(2 max_distance / b) b / 2), and at most b - 1.
    Constraints:
        (C1) there are at least 2 buckets for each direction, and as many in both.
        (C2) max_distance exceeds half the buckets of a direction.
    Source: Raffel et al., T5, 2020; rounded as in transformers.

    >>> t5_buckets(np.array([-200, -9, -8, -1, 0, 1, 9]), 32)
    array([15,  8,  8,  1,  0, 17, 24])
    """
    ahead, each = np.asarray(ahead, np.int64), _of_a_direction(num_buckets, max_distance, bidirectional)
    distance, exact = np.abs(ahead) if bidirectional else np.maximum(-ahead, 0), each // 2
    growth = np.log(np.maximum(distance, exact) / exact) / math.log(max_distance / exact)
    far = np.minimum(exact + (growth * (each - exact)).astype(np.int64), each - 1)
    return np.where(distance < exact, distance, far) + np.where(bidirectional & (ahead > 0), each, 0)


@op
def t5_bias(
    table: Float[Array, "buckets N"], T: int, S: int, *, max_distance: int = 128, bidirectional: bool = True
) -> Float[Array, "N T S"]:
    """Look up the learned bias of each head for the distance between query and key. T5 does not scale its scores.

    Math: bias[n, t, s] = table[bucket(s - (S - T + t)), n], with the buckets of ``t5_buckets``.
    Cost: no flop, N T S elements written: bound by memory; fused into attention, it costs the bytes of the table.
    Numerics: exact.
    Constraints:
        (C1) the table has at least 2 buckets for each direction, and as many in both.
        (C2) max_distance exceeds half the buckets of a direction.
        (C3) the table is that of N heads; T and S are not negative.
    Source: Raffel et al., T5, 2020.

    >>> t5_bias(np.array([[0.0], [1.0], [2.0], [3.0]]), 2, 3, max_distance=4)
    array([[[1., 0., 3.],
            [1., 1., 0.]]])
    """
    require(widen(table).ndim == 2 and T >= 0 and S >= 0, "C3", f"a table {table.shape} for {T} queries and {S} keys")
    _of_a_direction(len(table), max_distance, bidirectional)
    buckets = t5_buckets(_ahead(T, S), len(table), max_distance=max_distance, bidirectional=bidirectional)
    return np.ascontiguousarray(table[buckets].transpose(2, 0, 1))


def _ahead(T: int, S: int) -> Int[Array, "T S"]:
    """Return how far key s lies ahead of query t."""
    T, S = whole("T", T), whole("S", S)
    return np.arange(S) - np.arange(S - T, S)[:, None]


def _of_a_direction(num_buckets: int, max_distance: int, bidirectional: bool) -> int:
    each, left = divmod(num_buckets, 1 + bidirectional)
    require(each >= 2 and left == 0, "C1", f"{num_buckets} buckets for {1 + bidirectional} directions")
    require(max_distance > each // 2, "C2", f"max_distance {max_distance} within the {each // 2} exact distances")
    return each
