"""The judge is judged: what it lets pass, and what it must not."""

import ml_dtypes
import numpy as np
import pytest

from golden.tolerance import judge, rounding, ulp

TRUTH = np.linspace(-3, 4, 64).reshape(4, 16)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_rounded_truth_passes(dtype: str):
    verdict = judge(TRUTH.astype(np.dtype(getattr(ml_dtypes, dtype, dtype))), TRUTH, dtype)
    assert verdict.passed and verdict.ulps <= 0.5


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_error_beyond_the_bound_fails(dtype: str):
    width = np.dtype(getattr(ml_dtypes, dtype, dtype))
    scale = np.abs(TRUTH[2]).max()
    wrong = TRUTH.copy()
    wrong[2, 3] += 1.1 * (rounding(1, dtype) * scale + 4 * ulp(scale, dtype)) + ulp(scale, dtype)
    assert not judge(wrong.astype(width), TRUTH, dtype).passed


def test_zeros_never_pass():
    assert not judge(np.zeros((4, 16), np.float32), TRUTH, "float32", terms=1000).passed


def test_systematic_error_fails():
    terms = 10000  # a bound that one element may reach, and not all of them at once
    shifted = TRUTH + 0.9 * rounding(terms, "float32") * np.abs(TRUTH).max(-1, keepdims=True)
    assert not judge(shifted.astype(np.float32), TRUTH, "float32", terms=terms).passed


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_special_values_stand_in_their_places(value: float):
    truth = TRUTH.copy()
    truth[1, 1] = value
    assert judge(truth.astype(np.float32), truth, "float32").passed
    assert not judge(TRUTH.astype(np.float32), truth, "float32").passed
    assert not judge(truth.astype(np.float32), TRUTH, "float32").passed
    assert not judge(np.where(np.isfinite(truth), truth, 7).astype(np.float32), truth, "float32").passed


def test_minus_infinity_is_not_infinity():
    assert not judge(np.float32([np.inf, 1]), np.array([-np.inf, 1]), "float32").passed


def test_shape_and_dtype_count():
    assert judge(np.float32([1, 2]), np.array([[1.0, 2.0]]), "float32").reason == "shape [2], expected [1, 2]"
    assert judge(np.float64([1, 2]), np.array([1.0, 2.0]), "float32").reason == "dtype float64, expected float32"


def test_integers_are_exact():
    assert judge(np.array([1, 2]), np.array([1, 2]), "int64").passed
    assert not judge(np.array([1, 3]), np.array([1, 2]), "int64").passed


def test_truth_in_a_narrow_dtype_is_judged_wide():
    assert judge(np.float16(1257), np.array(1257, np.float16), "float16").passed  # whose square is no float16
    assert not judge(np.float16(1300), np.array(1257, np.float16), "float16").passed
