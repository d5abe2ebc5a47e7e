"""Laws of the linear map."""

import math

import numpy as np
from hypothesis import given

from refimpl.basics.linear import linear
from tests.laws.strategies import assert_near, normal, seeds, sizes


@given(seeds, sizes, sizes, sizes)
def test_linear_is_the_sum_of_its_definition(seed, T, D, F):
    x, w, b = normal(seed, T, D), normal(seed + 1, F, D), normal(seed + 2, F)
    wanted = [[math.fsum([b[o], *(x[t, d] * w[o, d] for d in range(D))]) for o in range(F)] for t in range(T)]
    assert_near(linear(x, w, b), wanted, terms=D, scale=20.0)
    assert_near(linear(x, w), np.array(wanted) - b, terms=D, scale=20.0)


@given(seeds, sizes, sizes)
def test_linear_is_linear(seed, T, D):
    x, y, w = normal(seed, T, D), normal(seed + 1, T, D), normal(seed + 2, 5, D)
    assert_near(linear(2 * x - y, w), 2 * linear(x, w) - linear(y, w), terms=D, scale=50.0)


@given(seeds, sizes)
def test_linear_by_the_identity_is_the_input(seed, D):
    x = normal(seed, 3, D, dtype=np.float32)
    assert np.array_equal(linear(x, np.eye(D, dtype=np.float32)), x)


def test_linear_sums_float16_in_float32():
    ones = np.ones((1, 4096), np.float16)  # a float16 sum of ones stops at 2048
    assert linear(ones, ones).tolist() == [[4096.0]]


def test_linear_of_no_tokens():
    assert linear(np.zeros((0, 3)), np.zeros((2, 3))).shape == (0, 2)
