"""The verdict: how far a result may lie from the truth, derived and not chosen.

The truth is computed in float64 from the inputs as they are stored, rounded as they are. An element may err by

    c(n) eps scale + 4 ulp(scale),    c(n) = 4 sqrt(n)

where n is the number of terms of the longest sum behind it (times the square of an amplification, where exp or a
difference of large numbers amplifies what was rounded before), eps that of the arithmetic (float64 for float64, else
float32), scale the largest magnitude of the truth in its row, and ulp that of the output's dtype. Rounding errors of n
terms add up like a random walk, hence the root (Higham, Mary, A new approach to probabilistic rounding error analysis,
2019). Where the source's own error in the same dtype is known, twice that error stands in place of c(n) eps.

Beside it NaN and infinity must stand in the same places, and the error's norm is held to the same share of the norm of
the truth, so that neither zeros nor a systematic error just below the first bound pass. Integers are exact.
"""

import math
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from golden.values import Array, dtype_named

__all__ = ["Verdict", "judge", "rounding", "ulp"]

_finfo: Any = ml_dtypes.finfo  # NumPy's, and bfloat16 beside it


@dataclass(frozen=True)
class Verdict:
    passed: bool
    ulps: float  # the largest error, in units of the output's last place at the scale of its row
    reason: str = ""


def ulp(scale: Array, dtype: str) -> Array:
    """Return the distance between neighbours of a dtype at a magnitude.

    >>> ulp(np.array([1.0, 300.0]), "float16").tolist()
    [0.0009765625, 0.25]
    """
    info = _finfo(dtype_named(dtype))
    least = float(info.smallest_normal)
    return float(info.eps) * 2.0 ** np.floor(np.log2(np.maximum(scale, least)))


def rounding(terms: int, dtype: str) -> float:
    """Return c(n) eps of the arithmetic behind an output of a dtype.

    >>> rounding(64, "float16") == 32 * 2.0 ** -23
    True
    """
    return 4 * math.sqrt(terms) * float(np.finfo(np.float64 if dtype == "float64" else np.float32).eps)


def judge(
    result: Array, truth: Array, dtype: str, *, exact: bool = False, terms: int = 1, source_error: float | None = None
) -> Verdict:
    """Judge one result by the truth.

    >>> judge(np.float32([1.0, 2.0]), np.array([1.0, 2.0]), "float32").passed
    True
    >>> judge(np.float32([1.0, 2.1]), np.array([1.0, 2.0]), "float32").reason
    'off by 419430 ulp where 8 are allowed, at [1]'
    """
    result, truth = np.asarray(result), np.asarray(truth)
    if result.shape != truth.shape:
        return Verdict(False, math.inf, f"shape {list(result.shape)}, expected {list(truth.shape)}")
    if result.dtype != dtype_named(dtype):
        return Verdict(False, math.inf, f"dtype {result.dtype}, expected {dtype}")
    if result.dtype.kind in "iub" or exact:
        same = _same(result, truth.astype(result.dtype))
        return Verdict(bool(same.all()), 0.0 if same.all() else math.inf, _first(result, truth, ~same))
    return _judge_floats(result.astype(np.float64), truth.astype(np.float64), dtype, terms, source_error)


def _judge_floats(result: Array, truth: Array, dtype: str, terms: int, source_error: float | None) -> Verdict:
    with np.errstate(over="ignore"):
        stored = truth.astype(dtype_named(dtype)).astype(np.float64)
    finite = np.isfinite(stored)
    wrong = (finite != np.isfinite(result)) | (~finite & ~_same(result, stored))
    if wrong.any():
        return Verdict(False, math.inf, _first(result, stored, wrong))
    error = np.where(finite, np.abs(result - np.where(finite, truth, 0)), 0)
    magnitude = np.where(finite, np.abs(truth), 0)
    error, magnitude = np.atleast_1d(error), np.atleast_1d(magnitude)
    scale = np.broadcast_to(magnitude.max(-1, keepdims=True, initial=0), magnitude.shape)
    last_place = ulp(scale, dtype)
    relative = rounding(terms, dtype) if source_error is None else 2 * source_error
    allowed = relative * scale + 4 * last_place
    ulps = float((error / last_place).max(initial=0))
    if (error > allowed).any():
        at = np.unravel_index((error - allowed).argmax(), error.shape)
        seen, most = error[at] / last_place[at], allowed[at] / last_place[at]
        return Verdict(False, ulps, f"off by {seen:.0f} ulp where {most:.0f} are allowed, at {_at(at)}")
    share = relative + 4 * float(_finfo(dtype_named(dtype)).eps)
    least = 4 * float(ulp(0.0, dtype)) * math.sqrt(error.size)
    if np.linalg.norm(error) > share * np.linalg.norm(magnitude) + least:
        return Verdict(False, ulps, f"the error's norm is more than {share:.2g} of the truth's")
    return Verdict(True, ulps)


def _same(result: Array, truth: Array) -> Array:
    return (result == truth) | ((result != result) & (truth != truth))


def _first(result: Array, truth: Array, wrong: Array) -> str:
    if not np.any(wrong):
        return ""
    at = np.unravel_index(np.argmax(wrong), np.shape(wrong))
    return f"{result[at]} where {truth[at]} is expected, at {_at(at)}"


def _at(index: tuple[Array, ...]) -> list[int]:
    return [int(i) for i in index]
