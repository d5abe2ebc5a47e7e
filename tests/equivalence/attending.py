"""How attention is judged: sums by the scale of what they sum, scores by a scale of 1."""

import numpy as np

from golden.tolerance import judge
from tests.equivalence.strategies import reference

__all__ = ["assert_rows", "assert_scores", "truth_of"]


def truth_of(op, arguments, values):
    """Return what the reference gives in float64, and its output for the magnitudes of ``values``.

    These tell the scale of an output's terms: what they sum to may be next to nothing.
    """
    wide = {name: x.astype(np.float64) if _is_float(x) else x for name, x in arguments.items()}
    with np.errstate(all="ignore"):
        results = reference(op)(**wide)
        magnitude, *_ = reference(op)(**wide | {name: np.abs(wide[name]) for name in values})
    return results, magnitude


def assert_rows(result, truth, magnitude, dtype, terms):
    """Judge outputs by the scale of the terms that they sum."""
    scale = magnitude.max(-1, keepdims=True, initial=0)
    scale = np.where(np.isfinite(scale), scale, 0).astype(dtype)
    assert result.dtype == dtype
    padded = np.concatenate((result, scale), -1), np.concatenate((truth, scale.astype(np.float64)), -1)
    verdict = judge(*padded, str(dtype), terms=terms)
    assert verdict.passed, verdict.reason


def assert_scores(result, truth, terms):
    """Judge log-sum-exps and maxima, whose errors are those of scores of about 1."""
    verdict = judge(np.append(result, np.float32(1)), np.append(truth, 1.0), "float32", terms=terms)
    assert verdict.passed, verdict.reason


def _is_float(x):
    return isinstance(x, np.ndarray) and x.dtype.kind not in "biu"
