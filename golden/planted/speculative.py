"""Faults of speculative sampling: a text that is not the model's, though it reads well."""

import numpy as np

from golden.derive import speculative as derive
from golden.values import Array

__all__ = ["accepts_at_the_bound", "accepts_by_p_alone", "correction_from_p", "counts_beyond_a_rejection",
           "residual_of_distance", "residual_unscaled"]  # fmt: skip


def accepts_at_the_bound(probs: Array, draft_probs: Array, ids: Array, noise: Array) -> int:
    """u q <= p: with u = 0 a token of probability 0 stays."""
    return derive.accepted_length(probs, draft_probs, ids, np.nextafter(noise.astype(np.float64), -1))


def accepts_by_p_alone(probs: Array, draft_probs: Array, ids: Array, noise: Array) -> int:
    """The draft's own probability is forgotten."""
    return derive.accepted_length(probs, np.ones_like(draft_probs), ids, noise)


def counts_beyond_a_rejection(probs: Array, draft_probs: Array, ids: Array, noise: Array) -> int:
    """Tokens after a rejected one are counted too, though they follow a text that is not there."""
    rows = range(len(ids))
    return sum(derive.accepted_length(*(x[j : j + 1] for x in (probs, draft_probs, ids, noise))) for j in rows)


def correction_from_p(probs: Array, draft_probs: Array) -> Array:
    """The token in place of a rejected one is drawn from the model's own law: what the draft likes comes too often."""
    return probs


def residual_unscaled(probs: Array, draft_probs: Array) -> Array:
    """max(p - q, 0) as it is."""
    return np.maximum(probs.astype(np.float64) - draft_probs.astype(np.float64), 0)


def residual_of_distance(probs: Array, draft_probs: Array) -> Array:
    """|p - q|, scaled."""
    apart = np.abs(probs.astype(np.float64) - draft_probs.astype(np.float64))
    return apart / apart.sum() if apart.sum() else np.zeros(len(probs))
