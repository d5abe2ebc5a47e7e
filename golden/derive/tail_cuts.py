"""Cuts by the whole distribution, each as a sentence about probabilities; sums by ``math.fsum``."""

import math
import statistics
from collections.abc import Iterable

import numpy as np

from golden.values import Array

__all__ = ["epsilon_cutoff", "eta_cutoff", "top_h", "top_n_sigma", "typical"]

_SLACK = 2.0**-44  # a boundary that a sum meets exactly belongs to the set, however it rounds


def _probs(logits: Array) -> list[float]:
    weights = [math.exp(x - max(logits)) for x in logits]
    return [w / math.fsum(weights) for w in weights]


def _surprise(logits: Array) -> list[float]:
    """Return -log p of each token, also where p is too small to be held."""
    total = math.log(math.fsum(math.exp(x - max(logits)) for x in logits))
    return [total - (x - max(logits)) for x in logits]


def _entropy(logits: Array) -> float:
    return math.fsum(p * s for p, s in zip(_probs(logits), _surprise(logits), strict=True) if p)


def _keep(logits: Array, kept: Iterable[int]) -> Array:
    cut = np.full(len(logits), -np.inf)
    for i in kept:
        cut[i] = logits[i]
    return cut


def typical(logits: Array, p: float) -> Array:
    probs, entropy = _probs(logits), _entropy(logits)
    gaps = [abs(s - entropy) for s in _surprise(logits)]
    for gap in sorted(set(gaps)):
        kept = [i for i in range(len(gaps)) if gaps[i] <= gap or p == 1]
        if math.fsum(probs[i] for i in kept) >= p - _SLACK:
            return _keep(logits, kept)
    raise ValueError("p is above 1")


def epsilon_cutoff(logits: Array, epsilon: float) -> Array:
    probs = _probs(logits)
    return _keep(logits, [i for i in range(len(probs)) if probs[i] >= epsilon - _SLACK or logits[i] == max(logits)])


def eta_cutoff(logits: Array, epsilon: float) -> Array:
    return epsilon_cutoff(logits, min(epsilon, math.sqrt(epsilon) * math.exp(-_entropy(logits))))


def top_n_sigma(logits: Array, n: float) -> Array:
    if n == 0:
        return logits
    least = max(logits) - n * statistics.pstdev(x for x in logits.tolist() if x > -math.inf)
    return _keep(logits, [i for i in range(len(logits)) if logits[i] >= least])


def top_h(logits: Array, h: float) -> Array:
    order = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
    probs, surprise, entropy = _probs(logits), _surprise(logits), _entropy(logits)
    parts, kept = [probs[i] * surprise[i] if probs[i] else 0.0 for i in order], 1
    while kept < len(order) and (h == 1 or math.fsum(parts[: kept + 1]) <= h * entropy * (1 + _SLACK)):
        kept += 1
    return _keep(logits, order[:kept])
