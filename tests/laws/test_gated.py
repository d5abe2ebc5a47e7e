"""Laws of sigmoid, softplus and the gated activations, and their constraints."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refimpl.basics.activation import relu, sigmoid, silu, softplus
from refimpl.basics.gated import geglu, swiglu, swiglu_clamped
from refimpl.contract import ContractError
from refimpl.llm.mlp import gated_mlp, mlp
from tests.laws.strategies import DTYPES, assert_near, normal, seeds, sizes

GRID = np.arange(-600, 601) / 50.0


@pytest.mark.parametrize("x", [-700.0, -30.0, -1.0, -1e-9, 0.0, 0.5, 4.0, 30.0, 700.0])
def test_sigmoid_and_softplus_by_scalars(x):
    assert sigmoid(np.array([x]))[0] == pytest.approx(1 / (1 + math.exp(-x)), rel=1e-14)
    wanted = math.log1p(math.exp(x)) if x < 0 else x + math.log1p(math.exp(-x))
    assert softplus(np.array([x]))[0] == pytest.approx(wanted, rel=1e-14)


def test_the_two_sides_of_a_sigmoid_add_up_to_one():
    assert_near(sigmoid(GRID) + sigmoid(-GRID), np.ones_like(GRID), terms=4)
    assert_near(silu(GRID), GRID * sigmoid(GRID))


def test_softplus_is_odd_about_half_of_x_and_bounds_relu():
    assert_near(softplus(GRID) - softplus(-GRID), GRID, terms=8)
    assert (softplus(GRID) > relu(GRID)).all() and softplus(np.zeros(1))[0] == math.log(2)


def test_sigmoid_is_the_slope_of_softplus():
    step = 1e-5
    slope = (softplus(GRID + step) - softplus(GRID - step)) / (2 * step)
    np.testing.assert_allclose(slope, sigmoid(GRID), rtol=0, atol=1e-9)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_tails_neither_overflow_nor_vanish(dtype):
    x = np.array([-np.inf, -6e4, 6e4, np.inf], dtype)
    assert sigmoid(x).tolist() == [0, 0, 1, 1]
    assert softplus(x).tolist() == [0, 0, x[2], np.inf]
    lower = np.array([-9.0], dtype)
    for smooth in (sigmoid, softplus):
        assert float(smooth(lower)[0]) == pytest.approx(math.exp(-9), rel=0.01 if dtype.itemsize == 2 else 2e-4)
        assert smooth(lower).dtype == dtype


@given(seeds, sizes, st.floats(0.1, 4.0), st.floats(0.5, 9.0))
def test_swiglu_clamped_by_scalars(seed, D, alpha, limit):
    gate, up = 5 * normal(seed, 2, D), 5 * normal(seed + 1, 2, D)
    found = swiglu_clamped(gate, up, alpha=alpha, limit=limit)
    for t in range(2):
        for d in range(D):
            g, u = min(gate[t, d], limit), max(-limit, min(up[t, d], limit))
            assert found[t, d] == pytest.approx((u + 1) * g / (1 + math.exp(-alpha * g)), rel=1e-12)


@given(seeds, sizes)
def test_swiglu_clamped_without_bounds_and_one_less_is_swiglu(seed, D):
    gate, up = normal(seed, 2, D), normal(seed + 1, 2, D)
    assert_near(swiglu_clamped(gate, up - 1, alpha=1.0, limit=1e3), swiglu(gate, up), terms=4, scale=20.0)


@given(seeds, sizes)
def test_what_lies_beyond_the_bounds_changes_nothing(seed, D):
    gate, up = normal(seed, D), normal(seed + 1, D)
    far = 7 + np.abs(normal(seed + 2, D))
    same = np.full(D, 7.0)
    assert np.array_equal(swiglu_clamped(far, up), swiglu_clamped(same, up))
    assert np.array_equal(swiglu_clamped(gate, far), swiglu_clamped(gate, same))
    assert np.array_equal(swiglu_clamped(gate, -far), swiglu_clamped(gate, -same))


def test_a_very_negative_gate_is_shut_and_not_bounded():
    gate = np.float32([-3e38, -100.0, -10.0])
    found = swiglu_clamped(gate, np.zeros(3, np.float32))
    assert found[:2].tolist() == [0.0, 0.0]
    assert found[2] == pytest.approx(-10 * math.exp(-17.02), rel=1e-5)


@given(seeds, sizes)
def test_gated_mlp_takes_the_clamped_gate(seed, T):
    x, w_gate, w_up, w_down = normal(seed, T, 4), 9 * normal(1, 6, 4), 9 * normal(2, 6, 4), normal(3, 4, 6)
    found = gated_mlp(x, w_gate, w_up, w_down, activation="swiglu_clamped")
    assert_near(found, swiglu_clamped(x @ w_gate.T, x @ w_up.T) @ w_down.T, terms=20, scale=400.0)


@pytest.mark.parametrize("limit", [0.0, -7.0, np.nan])
def test_swiglu_clamped_refuses_c2(limit):
    with pytest.raises(ContractError, match=r"^C2: limit is .*, not positive$"):
        swiglu_clamped(np.ones(2), np.ones(2), limit=limit)


@pytest.mark.parametrize("gated", [swiglu, geglu, swiglu_clamped])
def test_swiglu_geglu_and_swiglu_clamped_refuse_c1(gated):
    with pytest.raises(ContractError, match=r"^C1: gate has shape \(2, 3\), up \(1, 3\)$"):
        gated(np.ones((2, 3)), np.ones((1, 3)))


def test_a_plain_mlp_has_no_gate_to_clamp():
    with pytest.raises(ContractError, match=r"^C1: activation"):
        mlp(np.ones((1, 2)), np.ones((3, 2)), np.ones((2, 3)), activation="swiglu_clamped")
