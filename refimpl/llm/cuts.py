"""Steps that sharpen a distribution or cut off its tail. A token that is cut off has the logit -inf."""

import math

import numpy as np

from refimpl.contract import Array, Float, op, require, whole, widen

__all__ = ["greedy", "min_p", "temperature", "top_k", "top_p"]


def _widened(logits: Array) -> Array:
    wide = widen(logits)
    require(wide.ndim == 1, "C2", f"logits are one row, got shape {wide.shape}")
    best = wide.max(initial=-np.inf)
    require(not np.isnan(best), "C1", "a logit is NaN")
    require(bool(np.isfinite(best)), "C2", f"a token is left to choose, and the largest logit is finite, got {best}")
    return wide


def _keep(logits: Array, kept: Array) -> Array:
    cut = np.full_like(logits, -np.inf)
    cut[kept] = logits[kept]
    return cut


def _keep_best(logits: Array, k: int, kth: Array) -> Array:
    """Keep k tokens, given the k-th largest value; of those that equal it, keep the first ones."""
    above = np.flatnonzero(logits > kth)
    equal = np.flatnonzero(logits == kth)[: k - len(above)]
    return _keep(logits, np.concatenate([above, equal]))


@op
def greedy(logits: Float[Array, " V"]) -> Float[Array, " V"]:
    """Keep only the most likely token; of equals, the one with the lowest index.

    Math: l_i <- l_i if i = argmax l, else -inf.
    Cost: V comparisons; one read, one write.
    Numerics: exact.
    Constraints:
        (C1) no logit is NaN.
        (C2) logits are one row, whose largest is finite.
    Source: the definition.

    >>> greedy(np.array([1.0, 3.0, 3.0]))
    array([-inf,   3., -inf])
    """
    return _keep(logits, _widened(logits).argmax(keepdims=True))


@op
def temperature(logits: Float[Array, " V"], t: float) -> Float[Array, " V"]:
    """Sharpen (t < 1) or flatten (t > 1) the distribution; t = 0 is the limit, greedy.

    Math: l_i <- l_i / t; where 2 max l / t overflows, (l_i - max l) / t, which has the same softmax.
    Cost: V flop; one read, one write.
    Numerics: divided in float64 and rounded to the dtype of the logits. What still overflows lies so far below the best
        that its probability is 0.
    Constraints:
        (C1) no logit is NaN.
        (C2) logits are one row, whose largest is finite.
        (C3) t is not negative, and finite.
    Source: Ackley, Hinton, Sejnowski, A learning algorithm for Boltzmann machines, 1985.

    >>> temperature(np.array([1.0, 3.0, 2.0]), 0.5)
    array([2., 6., 4.])
    """
    require(0 <= t < np.inf, "C3", f"the temperature is not negative, and finite, got {t}")
    wide = _widened(logits).astype(np.float64)
    if t == 0:
        return greedy(logits)
    best = wide.max()
    with np.errstate(over="ignore"):
        shift = best if np.isinf((2 * best / t).astype(logits.dtype)) else 0.0
        return ((wide - shift) / t).astype(logits.dtype)


@op
def top_k(logits: Float[Array, " V"], k: int, ties: str = "first") -> Float[Array, " V"]:
    """Keep the k most likely tokens; k = 0 keeps all.

    Math: l_i <- l_i if fewer than k tokens come before i, by value and then by index; else -inf. With ties="all", by
        value alone.
    Cost: O(V) comparisons by selection; a few reads of V.
    Numerics: exact. Exactly k are kept: of equals at the boundary, those of lower index; with ties="all" these all.
    Constraints:
        (C1) no logit is NaN.
        (C2) logits are one row, whose largest is finite.
        (C3) k is not negative.
        (C4) ties is "first" or "all".
    Source: Fan, Lewis, Dauphin, Hierarchical neural story generation, 2018.

    >>> top_k(np.array([1.0, 2.0, 2.0, 2.0, 3.0]), 3)
    array([-inf,   2.,   2., -inf,   3.])
    >>> top_k(np.array([1.0, 2.0, 2.0, 2.0, 3.0]), 3, ties="all")
    array([-inf,   2.,   2.,   2.,   3.])
    """
    require(whole("k", k) >= 0, "C3", f"top-k keeps k tokens, 0 for all, got {k}")
    require(ties in ("first", "all"), "C4", f"ties at the boundary keep first or all, got {ties!r}")
    wide = _widened(logits)
    if k == 0 or k >= len(wide):
        return logits
    kth = np.partition(wide, -int(k))[-int(k)]
    return _keep(logits, wide >= kth) if ties == "all" else _keep_best(logits, k, kth)


@op
def top_p(logits: Float[Array, " V"], p: float) -> Float[Array, " V"]:
    """Keep the smallest set of the most likely tokens whose probabilities sum to p or more.

    Math: top_k(l, n), n = min {n >= 1 : w_1 + ... + w_n >= p (w_1 + ... + w_V)}, from the largest down, where
        w_i = exp(l_i - max l).
    Cost: V exp and a sort.
    Numerics: w in float64, rounded to a multiple of 2^-40, and p down to one of 2^-53: sums of integers, exact in any
        order (up to 2^22 tokens). p = 0 keeps the best, p = 1 all.
    Constraints:
        (C1) no logit is NaN.
        (C2) logits are one row, whose largest is finite.
        (C3) p is in [0, 1].
    Source: Holtzman et al., The curious case of neural text degeneration, 2020; the crossing token stays.

    >>> top_p(np.log([0.5, 0.125, 0.25, 0.125]), 0.75).round(1)
    array([-0.7, -inf, -1.4, -inf])
    """
    require(0 <= p <= 1, "C3", f"top-p keeps a mass in [0, 1], got {p}")
    wide = _widened(logits)
    if p == 1:
        return logits
    descending = np.sort(wide[wide > -np.inf])[::-1]
    weights = np.exp(descending.astype(np.float64) - descending[0])
    mass = np.cumsum(np.rint(weights * 2**40).astype(np.int64))
    needed = -(-int(float(p) * 2**53) * int(mass[-1]) >> 53)  # rounded up
    k = int(np.searchsorted(mass, needed)) + 1
    return _keep_best(logits, k, descending[k - 1])


@op
def min_p(logits: Float[Array, " V"], p: float) -> Float[Array, " V"]:
    """Keep the tokens that are at least p times as likely as the best one.

    Math: l_i <- l_i if l_i - max l >= log p, else -inf.
    Cost: V subtractions; one read, one write.
    Numerics: difference and logarithm in float64. p = 1 keeps all that equal the best, p = 0 all.
    Constraints:
        (C1) no logit is NaN.
        (C2) logits are one row, whose largest is finite.
        (C3) p is in [0, 1].
    Source: Nguyen et al., Turning up the heat: min-p sampling, 2024.

    >>> min_p(np.array([0.0, -1.0, -3.0]), 0.1)
    array([  0.,  -1., -inf])
    """
    require(0 <= p <= 1, "C3", f"min-p is a ratio in [0, 1], got {p}")
    wide = _widened(logits).astype(np.float64)
    return _keep(logits, wide - wide.max() >= (math.log(p) if p else -math.inf))
