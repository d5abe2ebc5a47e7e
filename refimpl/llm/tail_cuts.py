"""Cuts that judge a token by the whole distribution: its entropy, its spread, its mass.

They work on x_i = l_i - max l in float64, and on sums of integers that are exact in any order.
"""

import math

import numpy as np

from refimpl.contract import Array, Float, op, require, widen

__all__ = ["epsilon_cutoff", "eta_cutoff", "top_h", "top_n_sigma", "typical"]


def _below(logits: Array) -> Array:
    """Return by how much each logit lies below the best, as x <= 0."""
    require(logits.ndim == 1, "C2", f"logits are one row, got shape {logits.shape}")
    wide = widen(logits).astype(np.float64)
    best = wide.max(initial=-np.inf)
    require(not np.isnan(best), "C1", "a logit is NaN")
    require(bool(np.isfinite(best)), "C2", f"a token is left to choose, and the largest logit is finite, got {best}")
    return wide - best


def _units(x: Array, power: int = 40) -> Array:
    """Return numbers as multiples of 2^-power."""
    return np.rint(x * 2.0**power).astype(np.int64)


def _share(p: float, weights: Array) -> int:
    """Return p of the sum of weights, p down to a multiple of 2^-53, the share rounded up."""
    return -(-int(float(p) * 2**53) * int(weights.sum()) >> 53)


def _mean(x: Array, weights: Array) -> float:
    """Return the mean of x under the weights; what is cut off has none."""
    left = x[x > -np.inf]
    return float(_units(np.exp(left) * left).sum()) / float(weights.sum())


def _keep(logits: Array, kept: Array) -> Array:
    return np.where(kept, logits, np.array(-np.inf, logits.dtype))


@op
def typical(logits: Float[Array, " V"], p: float) -> Float[Array, " V"]:
    """Keep the smallest set of the most typical tokens, whose information is nearest to the entropy, of mass p or more.

    Math: l_i <- l_i if |-log p_i - H| <= g, else -inf, where H = -sum p log p and g is the least for which the kept
        sum to p or more. With w = exp(x) and m = sum w x / sum w, -log p_i - H = m - x_i.
    Cost: V exp and a sort.
    Numerics: w and w x rounded to multiples of 2^-40, and p down to one of 2^-53: sums of integers, exact in any order
        (up to 2^22 tokens). All that equal the last one stay. The best token may go; p = 1 keeps all.
    Constraints:
        (C1) no logit is NaN.
        (C2) logits are one row, whose largest is finite.
        (C3) p is in [0, 1].
    Source: Meister, Pimentel, Wiher, Cotterell, Locally typical sampling, 2022; Hugging Face TypicalLogitsWarper.

    >>> typical(np.log([0.5, 0.25, 0.125, 0.125]), 0.4).round(1)
    array([-0.7, -1.4, -inf, -inf])
    """
    require(0 <= p <= 1, "C3", f"typical keeps a mass in [0, 1], got {p}")
    x = _below(logits)
    if p == 1:
        return logits
    weights = _units(np.exp(x))
    gap = np.abs(x - _mean(x, weights))
    order = np.argsort(gap, kind="stable")
    last = np.searchsorted(np.cumsum(weights[order]), _share(p, weights))
    return _keep(logits, gap <= gap[order[last]])


@op
def epsilon_cutoff(logits: Float[Array, " V"], epsilon: float) -> Float[Array, " V"]:
    """Keep the tokens whose probability is epsilon or more, and the best.

    Math: l_i <- l_i if w_i >= epsilon sum w or l_i = max l, else -inf, where w = exp(x).
    Cost: V exp; two reads, one write.
    Numerics: w rounded to a multiple of 2^-40, and epsilon down to one of 2^-53: exact in any order (up to 2^22
        tokens). epsilon = 0 keeps all.
    Constraints:
        (C1) no logit is NaN.
        (C2) logits are one row, whose largest is finite.
        (C3) epsilon is in [0, 1].
    Source: Hewitt, Manning, Liang, Truncation sampling as language model desmoothing, 2022, 4; Hugging Face
        EpsilonLogitsWarper.

    >>> epsilon_cutoff(np.log([0.5, 0.25, 0.125, 0.125]), 0.25).round(1)
    array([-0.7, -1.4, -inf, -inf])
    """
    require(0 <= epsilon <= 1, "C3", f"epsilon is a probability in [0, 1], got {epsilon}")
    x = _below(logits)
    weights = _units(np.exp(x))
    return _keep(logits, (weights >= _share(epsilon, weights)) | (x == 0))


@op
def eta_cutoff(logits: Float[Array, " V"], epsilon: float) -> Float[Array, " V"]:
    """Keep the tokens whose probability reaches epsilon, or less where the entropy is high, and the best.

    Math: l_i <- l_i if p_i >= min(epsilon, sqrt(epsilon) exp(-H)) or l_i = max l, else -inf, where H = -sum p log p.
        With w and m of ``typical``, the second is w_i >= sqrt(epsilon) exp(m).
    Cost: 2 V exp; two reads, one write.
    Numerics: as ``typical`` and ``epsilon_cutoff``; the second threshold rounded up to a multiple of 2^-40.
        epsilon = 0 keeps all.
    Constraints:
        (C1) no logit is NaN.
        (C2) logits are one row, whose largest is finite.
        (C3) epsilon is in [0, 1].
    Source: Hewitt, Manning, Liang, Truncation sampling as language model desmoothing, 2022, 4; Hugging Face
        EtaLogitsWarper.

    >>> eta_cutoff(np.log([0.5, 0.25, 0.125, 0.125]), 0.5).round(1)   # sqrt(0.5) exp(-H) = 0.21
    array([-0.7, -1.4, -inf, -inf])
    """
    require(0 <= epsilon <= 1, "C3", f"epsilon is a probability in [0, 1], got {epsilon}")
    x = _below(logits)
    weights = _units(np.exp(x))
    least = math.ceil(math.sqrt(epsilon) * math.exp(_mean(x, weights)) * 2**40)
    return _keep(logits, (weights >= min(_share(epsilon, weights), least)) | (x == 0))


@op
def top_n_sigma(logits: Float[Array, " V"], n: float) -> Float[Array, " V"]:
    """Keep the tokens whose logits lie within n standard deviations of the best; n = 0 keeps all.

    Math: l_i <- l_i if x_i >= -n s, else -inf, where s^2 = mean (x - mean x)^2 over the tokens that are left.
    Cost: 5 V flop; three reads, one write.
    Numerics: x scaled below 1 by a power of two; it and its squares rounded to multiples of 2^-40: sums of integers,
        exact in any order (up to 2^22 tokens). The same set at every temperature.
    Constraints:
        (C1) no logit is NaN.
        (C2) logits are one row, whose largest is finite.
        (C3) n is not negative, and finite.
    Source: Tang et al., Top-n sigma: not all logits are you need, 2024; the mean over V and not V - 1, as llama.cpp.

    >>> top_n_sigma(np.array([4.0, 3.0, -1.0, -2.0]), 1.0)   # s = 2.5
    array([  4.,   3., -inf, -inf])
    """
    require(0 <= n < np.inf, "C3", f"n is not negative, and finite, got {n}")
    x = _below(logits)
    if n == 0:
        return logits
    left = x[x > -np.inf]
    exponent = int(np.frexp(left.min())[1])
    scaled, unit = np.ldexp(left, -exponent), 2.0**-40 / len(left)
    mean = float(_units(scaled).sum()) * unit
    sigma = math.ldexp(math.sqrt(float(_units((scaled - mean) ** 2).sum()) * unit), exponent)
    return _keep(logits, x >= -(n * sigma))


@op
def top_h(logits: Float[Array, " V"], h: float) -> Float[Array, " V"]:
    """Keep the most likely tokens as long as their part of the entropy is at most h of it, and the best.

    Math: top_k(l, n), n = max {n >= 1 : e_1 + ... + e_n <= h (e_1 + ... + e_V)}, from the largest down, where
        e_i = -p_i log p_i; with w = exp(x), e_i is in proportion to w_i (log sum w - x_i).
    Cost: V exp and a sort.
    Numerics: w rounded to a multiple of 2^-40, e to one of 2^-36, and h down to one of 2^-53: sums of integers, exact
        in any order (up to 2^22 tokens). Where no entropy is left, the best stays alone; h = 1 keeps all.
    Constraints:
        (C1) no logit is NaN.
        (C2) logits are one row, whose largest is finite.
        (C3) h is in [0, 1].
    Source: Potraghloo et al., Top-H decoding: adapting the creativity and coherence with bounded entropy in text
        generation, 2025; Hugging Face TopHLogitsWarper, which looks at the 100 best alone: a top_k of 100 before.

    >>> top_h(np.log([0.5, 0.25, 0.125, 0.125]), 0.6).round(1)   # H = 1.75 bits, of which the first two have 0.5 each
    array([-0.7, -1.4, -inf, -inf])
    """
    require(0 <= h <= 1, "C3", f"top-h keeps a part of the entropy in [0, 1], got {h}")
    x = _below(logits)
    if h == 1:
        return logits
    order = np.argsort(-x, kind="stable")
    descending = x[order][x[order] > -np.inf]
    weights = np.exp(descending)
    total = math.log(float(_units(weights).sum()) * 2.0**-40)
    running = np.cumsum(_units(weights * (total - descending), 36))
    within = np.searchsorted(running, int(float(h) * 2**53) * int(running[-1]) >> 53, side="right")
    kept = np.zeros(len(x), bool)
    kept[order[: max(1, within if running[-1] else 1)]] = True
    return _keep(logits, kept)
