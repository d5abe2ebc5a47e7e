"""Laws of the norms."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refimpl.basics.norm import layer_norm, rms_norm
from tests.laws.strategies import DTYPES, assert_near, normal, seeds, sizes


@given(seeds, sizes, sizes)
def test_norms_by_scalars(seed, T, D):
    x, gain, bias = normal(seed, T, D), normal(seed + 1, D), normal(seed + 2, D)
    for t in range(T):
        mean = math.fsum(x[t]) / D
        deviation = math.sqrt(math.fsum((v - mean) ** 2 for v in x[t]) / D + 1e-3)
        root = math.sqrt(math.fsum(v * v for v in x[t]) / D + 1e-3)
        centred = [(x[t, d] - mean) / deviation * gain[d] + bias[d] for d in range(D)]
        assert_near(layer_norm(x, gain, bias, 1e-3)[t], centred, terms=D, scale=60.0)
        assert_near(rms_norm(x, gain, 1e-3)[t], [x[t, d] / root * gain[d] for d in range(D)], terms=D, scale=20.0)


@given(seeds, st.integers(2, 9), st.floats(0.01, 100.0), st.floats(-100.0, 100.0))
def test_norms_forget_scale_and_layer_norm_forgets_offset(seed, D, scale, offset):
    x, gain = normal(seed, 3, D), normal(seed + 1, D)
    x[:, 0] += 3  # away from a constant row, whose variance is 0
    assert_near(rms_norm(scale * x, gain, 0.0), rms_norm(x, gain, 0.0), terms=D)
    assert_near(layer_norm(scale * x, gain, eps=0.0), layer_norm(x, gain, eps=0.0), terms=100 * D)
    assert_near(layer_norm(x + offset, gain, eps=0.0), layer_norm(x, gain, eps=0.0), terms=1000 * D)


@given(seeds, sizes)
def test_rms_norm_of_a_centred_row_is_its_layer_norm(seed, D):
    x = normal(seed, 4, D)
    x -= x.mean(-1, keepdims=True)
    assert_near(rms_norm(x, np.ones(D), 1e-5), layer_norm(x, np.ones(D), eps=1e-5), terms=D, scale=4.0)


@given(seeds, sizes)
def test_gain_offset_is_added_to_the_gain(seed, D):
    x, gain = normal(seed, 3, D), normal(seed + 1, D)
    assert np.array_equal(rms_norm(x, gain, gain_offset=1.0), rms_norm(x, 1.0 + gain))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_three_hundred_gives_one(dtype):  # ≡ CONVENTIONS row 8: its square overflows float16
    x, gain = np.full((2, 8), 300.0, dtype), np.ones(8, dtype)
    assert (rms_norm(x, gain, 0.0) == 1).all()
    x[:, ::2] *= -1
    assert (np.abs(layer_norm(x, gain, eps=0.0)) == 1).all()


def test_small_float16_squares_do_not_vanish():
    assert (rms_norm(np.full((1, 8), 1e-4, np.float16), np.ones(8, np.float16), 0.0) == 1).all()


def test_layer_norm_survives_a_large_offset():
    x = 4096.0 + np.arange(8, dtype=np.float32)[None]  # mean of squares minus squared mean would round to nothing
    wanted = (np.arange(8) - 3.5) / math.sqrt(5.25)
    assert_near(layer_norm(x, np.ones(8, np.float32), eps=0.0)[0], wanted)


def test_eps_stands_inside_the_root():
    zeros, x = np.zeros((1, 4)), np.full((1, 4), 3.0)
    assert (rms_norm(zeros, np.ones(4)) == 0).all() and (layer_norm(zeros, np.ones(4)) == 0).all()
    assert rms_norm(x, np.ones(4), 16.0)[0, 0] == 3 / 5


def test_squares_that_overflow_leave_nothing():
    x = np.float32([[1e30, -1e30], [1.0, -1.0]])  # a row beyond the range touches no other
    for norm in (rms_norm, layer_norm):
        assert norm(x, np.ones(2, np.float32), eps=0.0).tolist() == [[0, 0], [1, -1]]
