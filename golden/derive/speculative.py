"""The rule of speculative sampling, token by token, in exact fractions."""

from fractions import Fraction

import numpy as np

from golden.values import Array

__all__ = ["accepted_length", "residual_probs"]


def accepted_length(probs: Array, draft_probs: Array, ids: Array, noise: Array) -> int:
    kept = 0
    for j, token in enumerate(ids):
        if Fraction(float(noise[j])) * Fraction(float(draft_probs[j][token])) >= Fraction(float(probs[j][token])):
            break
        kept += 1
    return kept


def residual_probs(probs: Array, draft_probs: Array) -> Array:
    left = [max(Fraction(float(p)) - Fraction(float(q)), Fraction(0)) for p, q in zip(probs, draft_probs, strict=True)]
    total = sum(left)
    return np.array([float(each / total) for each in left]) if total else np.array(probs, np.float64)
