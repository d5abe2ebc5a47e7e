"""Temperature and the cuts against their definitions in scalars."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refimpl.basics.activation import softmax
from refimpl.contract import ContractError
from refimpl.llm.cuts import greedy, min_p, temperature, top_k, top_p
from tests.laws.strategies import DTYPES, assert_near

# multiples of 1/4, so that there are ties and shifts are exact; some tokens are cut already
LOGITS = (
    st.lists(st.one_of(st.integers(-40, 40).map(lambda i: i / 4), st.just(-math.inf)), min_size=1, max_size=12)
    .filter(lambda values: max(values) > -math.inf)
    .map(lambda values: np.array(values, np.float32))
)
RATIO = st.floats(0.0, 1.0)


def kept(logits: np.ndarray) -> list[int]:
    return np.flatnonzero(logits > -np.inf).tolist()


def by_likelihood(logits: np.ndarray) -> list[int]:
    """The tokens that are left, the likeliest first, of equals the lower index first."""
    return sorted(kept(logits), key=lambda i: (-logits[i], i))


@given(LOGITS)
def test_greedy_keeps_the_first_of_the_best(logits):
    best = by_likelihood(logits)[:1]
    assert kept(greedy(logits)) == kept(top_k(logits, 1)) == kept(top_p(logits, 0.0)) == best
    assert kept(temperature(logits, 0.0)) == best


@given(LOGITS, st.integers(1, 14))
def test_top_k_keeps_exactly_k(logits, k):
    assert kept(top_k(logits, k)) == sorted(by_likelihood(logits)[:k])


@given(LOGITS, RATIO)
def test_top_p_keeps_the_smallest_set_that_reaches_p(logits, p):
    order = by_likelihood(logits)
    left = kept(top_p(logits, p))
    assert left == sorted(order[: len(left)]), "a beginning of the order"
    weights = [math.exp(logits[i] - logits[order[0]]) for i in order]
    mass, without_last = math.fsum(weights[: len(left)]), math.fsum(weights[: len(left) - 1])
    total, unit = math.fsum(weights), len(order) * 2.0**-40
    assert mass >= p * total - unit
    assert len(left) == 1 or p == 1 or without_last < p * total + unit


@given(st.integers(1, 3000), RATIO)
def test_top_p_of_equal_tokens_is_a_fraction_of_them(n, p):
    wanted = math.ceil(Fraction(math.floor(p * 2**53), 2**53) * n)  # where a running sum of float64 may miss it
    assert kept(top_p(np.zeros(n), p)) == list(range(max(wanted, 1)))


@given(LOGITS, st.floats(1e-6, 1.0))
def test_min_p_keeps_what_reaches_a_share_of_the_best(logits, p):
    ratios = [math.exp(logit - logits.max()) for logit in logits]
    sure = [i for i, ratio in enumerate(ratios) if ratio > p * (1 + 1e-12)]
    possible = [i for i, ratio in enumerate(ratios) if ratio > p * (1 - 1e-12)]
    assert set(sure) <= set(kept(min_p(logits, p))) <= set(possible)


def test_boundaries_belong_to_the_set():
    assert kept(top_p(np.log([0.5, 0.25, 0.125, 0.125]), 0.75)) == [0, 1]  # ≡ CONVENTIONS row 1
    assert kept(min_p(np.array([0.0, 0.0, -1.0]), 1.0)) == [0, 1]
    assert kept(top_k(np.array([1.0, 2.0, 2.0, 2.0, 3.0]), 3)) == [1, 2, 4]


@given(LOGITS)
def test_off_is_off(logits):
    outs = [top_k(logits, 0), top_k(logits, 10**9), top_p(logits, 1.0), min_p(logits, 0.0), temperature(logits, 1.0)]
    assert all(np.array_equal(out, logits) for out in outs)


@given(LOGITS, st.integers(1, 12), RATIO, st.integers(-20, 20))
def test_cuts_forget_a_shift_and_keep_values(logits, k, p, shift):
    for cut in (lambda x: top_k(x, k), lambda x: top_p(x, p), lambda x: min_p(x, p), greedy):
        out = cut(logits)
        assert kept(cut(logits + np.float32(shift))) == kept(out)
        assert (out[kept(out)] == logits[kept(out)]).all() and len(kept(out)) >= 1


@given(LOGITS, st.integers(1, 12), RATIO)
def test_cutting_twice_changes_nothing_more_for_k_and_min_p(logits, k, p):
    assert np.array_equal(top_k(top_k(logits, k), k), top_k(logits, k))
    assert np.array_equal(min_p(min_p(logits, p), p), min_p(logits, p))


@given(LOGITS, st.floats(0.1, 10.0))
def test_temperature_divides(logits, t):
    out, left = temperature(logits, t), kept(logits)
    assert kept(out) == left
    assert_near(out[left], [float(logits[i]) / t for i in left], terms=0)


@pytest.mark.parametrize("t", [1e-4, 1e-30, 1e-60, 5e-324])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_tiny_temperature_does_not_overflow(dtype, t):
    for base in (50, -50, 0):
        out = temperature(np.array([base, base + 1, base - 1, -np.inf], dtype), t)
        assert out.dtype == dtype
        assert softmax(out.astype(np.float64)).tolist() == [0, 1, 0, 0]


def test_temperature_before_and_after_a_cut_differ():
    logits = np.array([3.0, 2.0, 1.0])  # ≡ CONVENTIONS row 2
    assert kept(top_p(temperature(logits, 0.5), 0.8)) == [0]
    assert kept(temperature(top_p(logits, 0.8), 0.5)) == [0, 1]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_dtype_stays_and_the_input_is_not_touched(dtype):
    logits = np.array([1, 3, -np.inf, 2, 3], dtype)
    before = logits.copy()
    outs = [greedy(logits), temperature(logits, 0.5), top_k(logits, 2), top_p(logits, 0.7), min_p(logits, 0.9)]
    assert [kept(out) for out in outs] == [[1], [0, 1, 3, 4], [1, 4], [1, 4], [1, 4]]
    assert all(out.dtype == dtype for out in outs) and (logits == before).all()


NAN, NONE, INF, FINE = (np.array(values) for values in ([0.0, np.nan], [-np.inf] * 2, [0.0, np.inf], [0.0, 1.0]))


@pytest.mark.parametrize(
    ("label", "call"),
    [
        ("C1", lambda: greedy(NAN)),
        ("C1", lambda: temperature(NAN, 1.0)),
        ("C1", lambda: top_k(NAN, 1)),
        ("C1", lambda: top_p(NAN, 0.5)),
        ("C1", lambda: min_p(NAN, 0.5)),
        ("C2", lambda: greedy(NONE)),
        ("C2", lambda: greedy(np.array([]))),
        ("C2", lambda: temperature(NONE, 0.0)),
        ("C2", lambda: top_k(INF, 1)),
        ("C2", lambda: top_p(NONE, 0.5)),
        ("C2", lambda: min_p(INF, 0.5)),
        ("C3", lambda: temperature(FINE, -0.1)),
        ("C3", lambda: temperature(FINE, np.inf)),
        ("C3", lambda: temperature(FINE, np.nan)),
        ("C3", lambda: top_k(FINE, -1)),
        ("C3", lambda: top_p(FINE, 1.1)),
        ("C3", lambda: top_p(FINE, np.nan)),
        ("C3", lambda: min_p(FINE, -0.1)),
    ],
)
def test_constraints(label, call):
    with pytest.raises(ContractError, match=f"^{label}: "):
        call()
