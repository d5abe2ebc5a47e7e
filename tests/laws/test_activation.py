"""Laws and published values of the activations."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refimpl.basics.activation import (
    gelu_erf,
    gelu_quick,
    gelu_tanh,
    log_softmax,
    logsumexp,
    relu,
    silu,
    softmax,
)
from refimpl.basics.gated import geglu, swiglu
from tests.laws.strategies import assert_near, normal, seeds, sizes

GRID = np.arange(-600, 601) / 100.0
ELEMENTWISE = (relu, silu, gelu_erf, gelu_tanh, gelu_quick)


@given(seeds, sizes, sizes, st.floats(-1e3, 1e3))
def test_softmax_is_shift_invariant_and_sums_to_one(seed, rows, columns, shift):
    x = normal(seed, rows, columns)
    p = softmax(x)
    assert_near(p.sum(-1), np.ones(rows), terms=columns)
    assert_near(softmax(x + shift), p, terms=columns, scale=1e3)
    assert_near(softmax(x.T, axis=0), p.T)


@given(seeds, sizes)
def test_softmax_keeps_order_and_ratios(seed, columns):
    x = normal(seed, columns)
    p = softmax(x)
    assert np.array_equal(np.argsort(p), np.argsort(x))
    assert_near(p / p[0], np.exp(x - x[0]), terms=4)


@given(seeds, sizes, st.floats(-1e3, 1e3))
def test_logsumexp_by_scalars(seed, columns, shift):
    x = normal(seed, 2, columns)
    wanted = [math.log(math.fsum(map(math.exp, row))) for row in x]
    assert_near(logsumexp(x), wanted, terms=columns, scale=4.0)
    assert_near(logsumexp(x + shift), np.array(wanted) + shift, terms=columns, scale=1e3)
    assert_near(logsumexp(x.T, axis=0), logsumexp(x), scale=4.0)


@given(seeds, sizes)
def test_log_softmax_is_the_log_of_softmax(seed, columns):
    x = normal(seed, 3, columns)
    assert_near(log_softmax(x), np.log(softmax(x)), terms=columns, scale=8.0)
    assert_near(log_softmax(x), x - logsumexp(x)[:, None], terms=columns, scale=8.0)
    assert_near(log_softmax(x.T, axis=0), log_softmax(x).T, scale=8.0)


def test_softmax_of_extremes():
    assert softmax(np.array([1e300, -1e300, 0.0])).tolist() == [1.0, 0.0, 0.0]
    assert softmax(np.array([0.0, -np.inf], np.float32)).tolist() == [1.0, 0.0]
    assert log_softmax(np.array([0.0, -np.inf, -800.0])).tolist() == [0.0, -np.inf, -800.0]
    for undefined in ([-np.inf, -np.inf], [np.inf, 0.0], [np.nan, 0.0]):
        assert np.isnan(softmax(np.array(undefined))).any()
        assert np.isnan(log_softmax(np.array(undefined))).any()


def test_logsumexp_of_extremes():
    assert logsumexp(np.array([[-np.inf, -np.inf], [np.inf, 0.0], [-np.inf, 3.0]])).tolist() == [-np.inf, np.inf, 3.0]
    assert np.isnan(logsumexp(np.array([np.nan, 0.0])))


@pytest.mark.parametrize("x", [-9.0, -5.0, -1.0, -1e-9, 0.0, 0.5, 1.0, 4.0, 30.0])
def test_elementwise_by_scalars(x):
    def sigmoid(u):
        return 1 / (1 + math.exp(-u))

    u = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    wanted = {
        relu: x if x > 0 else 0.0,
        silu: x * sigmoid(x),
        gelu_erf: x * math.erfc(-x / math.sqrt(2)) / 2,
        gelu_tanh: x * sigmoid(2 * u),
        gelu_quick: x * sigmoid(1.702 * x),
    }
    for activation, value in wanted.items():
        assert activation(np.array([x]))[0] == pytest.approx(value, rel=1e-13, abs=1e-300)


def test_gelu_tanh_has_the_published_form():
    published = 0.5 * GRID * (1 + np.tanh(math.sqrt(2 / math.pi) * (GRID + 0.044715 * GRID**3)))
    assert_near(gelu_tanh(GRID), published)


def test_gelu_at_one():
    assert gelu_erf(np.ones(1))[0] == pytest.approx(0.8413447460685429, rel=1e-15)  # Phi(1)


def test_gelu_forms_differ_as_published():  # ≡ CONVENTIONS row 7
    tanh, quick = np.abs(gelu_erf(GRID) - gelu_tanh(GRID)), np.abs(gelu_erf(GRID) - gelu_quick(GRID))
    assert tanh.max() == pytest.approx(4.73e-4, abs=5e-7) and abs(GRID[tanh.argmax()]) == 2.70
    assert quick.max() == pytest.approx(2.03e-2, abs=5e-5) and abs(GRID[quick.argmax()]) == 2.27


@pytest.mark.parametrize("activation", [silu, gelu_erf, gelu_tanh, gelu_quick])
def test_gates_are_complementary(activation):
    """x g(x) with g(x) + g(-x) = 1, so act(x) - act(-x) = x."""
    assert_near(activation(GRID) - activation(-GRID), GRID, terms=4)


@pytest.mark.parametrize("activation", ELEMENTWISE)
def test_tails_neither_overflow_nor_leak(activation):
    x = np.array([-3e38, -1e4, 1e4, 3e38], np.float32)
    assert activation(x).tolist() == [0.0, 0.0, *x[2:].tolist()]


@pytest.mark.parametrize(
    ("activation", "x", "wanted"),
    [(silu, -89.0, -89.0 * math.exp(-89.0)), (gelu_erf, -10.0, -10.0 * math.erfc(10 / math.sqrt(2)) / 2)],
)
def test_negative_tail_keeps_its_relative_accuracy(activation, x, wanted):
    assert activation(np.array([x], np.float32))[0] == pytest.approx(wanted, rel=2e-5)


@given(seeds, sizes)
def test_gated_forms_are_products(seed, D):
    gate, up = normal(seed, 2, D), normal(seed + 1, 2, D)
    assert_near(swiglu(gate, up), silu(gate) * up)
    assert_near(geglu(gate, up), gelu_tanh(gate) * up)


def test_gated_forms_cast_once():
    gate, up = np.float16([60000.0]), np.float16([0.001])
    half = np.float16(60000.0 * float(up[0]))
    assert swiglu(gate, up)[0] == half and geglu(gate, up)[0] == half
    small = np.float16([6e-8])  # silu halves it to nothing in float16; the product must not see that
    assert swiglu(small, np.float16([1000.0]))[0] > 2.5e-5
    assert geglu(small, np.float16([1000.0]))[0] > 2.5e-5
