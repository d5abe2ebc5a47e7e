"""Faults of the cuts by the whole distribution."""

import math

import numpy as np

from golden.derive import sampler
from golden.derive import tail_cuts as derive
from golden.derive.activation import softmax
from golden.values import Array

__all__ = [
    "all_cut", "epsilon_best_lost", "epsilon_of_the_best", "eta_is_epsilon", "eta_of_bits", "eta_without_root",
    "h_crossing_stays", "h_of_mass", "h_of_the_vocabulary", "sigma_below_the_mean", "sigma_of_cut_tokens",
    "sigma_of_samples", "sigma_overflows", "typical_crossing_dropped", "typical_is_likely", "typical_is_surprising",
    "typical_of_bits", "typical_ties_parted",
]  # fmt: skip


def _gaps(logits: Array) -> Array:
    probs = softmax(logits)
    surprise = -np.log(probs)
    return surprise - np.nansum(probs * surprise)


def _by_gap(logits: Array, gaps: Array, p: float, more: int = 1) -> Array:
    """Keep those of the least gaps until their mass reaches p, and of the one that crosses so many."""
    order = np.argsort(gaps, kind="stable")
    count = int(np.searchsorted(np.cumsum(softmax(logits)[order]), p)) + more
    return np.where(np.isin(np.arange(len(logits)), order[: max(count, 1)]), logits, -np.inf)


def all_cut(logits: Array, **_: float) -> Array:
    """Only what lies strictly above its threshold stays: nothing, where all lies on it."""
    return np.full_like(logits, -np.inf)


def typical_is_likely(logits: Array, p: float) -> Array:
    """The likeliest tokens: top-p."""
    return sampler.top_p(logits, p)


def typical_is_surprising(logits: Array, p: float) -> Array:
    """The difference keeps its sign: the likeliest tokens come first, whatever the entropy."""
    return _by_gap(logits, _gaps(logits), p)


def typical_crossing_dropped(logits: Array, p: float) -> Array:
    """The token that crosses p goes."""
    return _by_gap(logits, np.abs(_gaps(logits)), p, more=0)


def typical_ties_parted(logits: Array, p: float) -> Array:
    """Of those that are equally typical only so many stay as reach p."""
    return _by_gap(logits, np.abs(_gaps(logits)), p)


def typical_of_bits(logits: Array, p: float) -> Array:
    """The entropy in bits, the information in nats."""
    probs = softmax(logits)
    surprise = -np.log(probs)
    return _by_gap(logits, np.abs(surprise - np.nansum(probs * surprise) / math.log(2)), p)


def epsilon_of_the_best(logits: Array, epsilon: float) -> Array:
    """A share of the best's probability: min-p."""
    return sampler.min_p(logits, epsilon)


def epsilon_best_lost(logits: Array, epsilon: float) -> Array:
    """Where no token reaches epsilon none is left."""
    return np.where(softmax(logits) >= epsilon, logits, -np.inf)


def eta_is_epsilon(logits: Array, epsilon: float) -> Array:
    """The threshold does not know of the entropy."""
    return derive.epsilon_cutoff(logits, epsilon)


def eta_without_root(logits: Array, epsilon: float) -> Array:
    """epsilon exp(-H)."""
    probs = softmax(logits)
    return derive.epsilon_cutoff(logits, epsilon * math.exp(np.nansum(probs * np.log(probs))))


def eta_of_bits(logits: Array, epsilon: float) -> Array:
    """exp(-H) of an entropy in bits."""
    probs = softmax(logits)
    bits = -np.nansum(probs * np.log2(probs))
    return derive.epsilon_cutoff(logits, min(epsilon, math.sqrt(epsilon) * math.exp(-bits)))


def sigma_below_the_mean(logits: Array, n: float) -> Array:
    """Within n standard deviations of the mean, not of the best."""
    left = logits[np.isfinite(logits)]
    return np.where(logits >= left.mean() - n * left.std(), logits, -np.inf)


def sigma_of_samples(logits: Array, n: float) -> Array:
    """The sum of squares over V - 1."""
    left = logits[np.isfinite(logits)]
    sigma = left.std(ddof=1) if len(left) > 1 else np.nan
    return np.where(logits >= left.max() - n * sigma, logits, -np.inf)


def sigma_of_cut_tokens(logits: Array, n: float) -> Array:
    """Tokens that are cut count as the least finite number."""
    finite = np.nan_to_num(logits, neginf=-3e38)
    return np.where(logits >= logits.max() - n * finite.std(), logits, -np.inf)


def sigma_overflows(logits: Array, n: float) -> Array:
    """Squares in float32."""
    narrow = logits.astype(np.float32)
    return np.where(narrow >= narrow.max() - np.float32(n) * narrow.std(), logits, -np.inf)


def h_crossing_stays(logits: Array, h: float) -> Array:
    """The token with which the entropy crosses its share stays too."""
    return sampler.top_k(logits, int(np.isfinite(derive.top_h(logits, h)).sum()) + 1)


def h_of_mass(logits: Array, h: float) -> Array:
    """A share of the mass."""
    return sampler.top_p(logits, h)


def h_of_the_vocabulary(logits: Array, h: float) -> Array:
    """A share of the largest entropy that so many tokens can have."""
    probs = np.sort(softmax(logits))[::-1]
    parts = np.cumsum(-probs * np.log(probs, out=np.zeros_like(probs), where=probs > 0))
    return sampler.top_k(logits, max(1, int((parts <= h * math.log(len(logits))).sum())))
