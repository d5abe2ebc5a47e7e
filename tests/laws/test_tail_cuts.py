"""Cuts by the whole distribution: against their definitions in scalars, and what holds whatever they keep."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refimpl.contract import ContractError
from refimpl.llm.cuts import temperature, top_k, top_p
from refimpl.llm.sampler import apply_chain, sampling_chain
from refimpl.llm.tail_cuts import epsilon_cutoff, eta_cutoff, top_h, top_n_sigma, typical
from tests.laws.strategies import DTYPES
from tests.laws.test_cuts import LOGITS, RATIO, by_likelihood, kept

CUTS = (typical, epsilon_cutoff, eta_cutoff, top_h, top_n_sigma)
each_cut = pytest.mark.parametrize("cut", CUTS, ids=lambda cut: cut.__name__)
ODD_SIZES = st.sampled_from((1, 2, 257, 1025))
UNIT = 2.0**-38  # how far sums of weights, rounded to 2^-40 each, may be off for a dozen tokens


def probs_of(logits: np.ndarray) -> list[float]:
    weights = [math.exp(x - float(logits.max())) for x in logits.tolist()]
    return [w / math.fsum(weights) for w in weights]


def entropy_of(probs: list[float]) -> float:
    return -math.fsum(p * math.log(p) for p in probs if p)


@given(LOGITS, RATIO)
def test_typical_keeps_the_least_gaps_that_reach_p(logits, p):
    probs, left = probs_of(logits), kept(typical(logits, p))
    entropy = entropy_of(probs)
    total = math.log(math.fsum(math.exp(x - float(logits.max())) for x in logits.tolist()))
    gaps = {i: abs(total - float(logits[i] - logits.max()) - entropy) for i in kept(logits)}
    widest = max(gaps[i] for i in left)
    assert {i for i in gaps if gaps[i] < widest - 1e-9} <= set(left) <= {i for i in gaps if gaps[i] < widest + 1e-9}
    assert math.fsum(probs[i] for i in left) >= p - UNIT
    inner = [i for i in left if gaps[i] < widest - 1e-9]
    assert p == 1 or not inner or math.fsum(probs[i] for i in inner) < p + UNIT


@given(LOGITS, RATIO)
def test_epsilon_cutoff_keeps_what_reaches_epsilon(logits, epsilon):
    probs, left = probs_of(logits), set(kept(epsilon_cutoff(logits, epsilon)))
    best = {i for i, x in enumerate(logits) if x == logits.max()}
    sure = {i for i, p in enumerate(probs) if p > epsilon + UNIT}
    possible = {i for i, p in enumerate(probs) if p > epsilon - UNIT}
    assert sure | best <= left <= possible | best


@given(LOGITS, RATIO)
def test_eta_cutoff_lowers_epsilon_where_entropy_is_high(logits, epsilon):
    probs, left = probs_of(logits), set(kept(eta_cutoff(logits, epsilon)))
    eta = min(epsilon, math.sqrt(epsilon) * math.exp(-entropy_of(probs)))
    best = {i for i, x in enumerate(logits) if x == logits.max()}
    sure = {i for i, p in enumerate(probs) if p > eta + UNIT}
    assert sure | best <= left <= {i for i, p in enumerate(probs) if p > eta - UNIT} | best
    assert set(kept(epsilon_cutoff(logits, epsilon))) <= left, "eta is epsilon at most"


@given(LOGITS, st.floats(0.01, 4.0))
def test_top_n_sigma_measures_from_the_best(logits, n):
    left = [float(logits[i]) for i in kept(logits)]
    mean = math.fsum(left) / len(left)
    sigma = math.sqrt(math.fsum((x - mean) ** 2 for x in left) / len(left))
    least = max(left) - n * sigma
    sure = [i for i, x in enumerate(logits) if x > least + 1e-9 or x == logits.max()]
    assert set(sure) <= set(kept(top_n_sigma(logits, n))) <= {i for i, x in enumerate(logits) if x >= least - 1e-9}


@given(LOGITS, RATIO)
def test_top_h_keeps_a_beginning_of_at_most_h(logits, h):
    order, probs = by_likelihood(logits), probs_of(logits)
    left = kept(top_h(logits, h))
    assert left == sorted(order[: len(left)]), "a beginning of the order"
    parts, entropy = [-probs[i] * math.log(probs[i]) if probs[i] else 0.0 for i in order], entropy_of(probs)
    slack = len(order) * 2.0**-34
    assert len(left) == 1 or h == 1 or math.fsum(parts[: len(left)]) <= h * entropy + slack
    assert len(left) == len(order) or math.fsum(parts[: len(left) + 1]) > h * entropy - slack


@given(LOGITS, st.sampled_from(CUTS), RATIO)
def test_cuts_keep_values_and_at_least_one_token_and_revive_none(logits, cut, p):
    out = cut(logits, p)
    left = kept(out)
    assert left and set(left) <= set(kept(logits)) and (out[left] == logits[left]).all()
    if cut is not typical:
        assert logits.argmax() in left, "the best stays"


@given(LOGITS, st.sampled_from(CUTS), RATIO, st.integers(-20, 20))
def test_cuts_forget_a_shift(logits, cut, p, shift):
    assert kept(cut(logits + np.float32(shift), p)) == kept(cut(logits, p))


@given(LOGITS, st.sampled_from(CUTS), RATIO, st.randoms(use_true_random=False))
def test_cuts_do_not_know_the_order_of_tokens(logits, cut, p, random):
    order = list(range(len(logits)))
    random.shuffle(order)
    assert np.array_equal(np.sort(cut(logits[order], p)), np.sort(cut(logits, p)))
    if cut is not top_h:  # which of equals stay depends on it there, as with top_k
        assert np.array_equal(cut(logits[order], p), cut(logits, p)[order])


@given(LOGITS, st.sampled_from((typical, top_h)), RATIO, RATIO)
def test_more_is_kept_of_more_mass(logits, cut, p, q):
    fewer, more = sorted((p, q))
    assert set(kept(cut(logits, fewer))) <= set(kept(cut(logits, more)))


@given(LOGITS, st.sampled_from((epsilon_cutoff, eta_cutoff)), RATIO, RATIO)
def test_less_is_kept_above_a_higher_threshold(logits, cut, p, q):
    lower, higher = sorted((p, q))
    assert set(kept(cut(logits, higher))) <= set(kept(cut(logits, lower)))


@given(LOGITS, st.floats(0.01, 4.0), st.floats(1.0, 3.0))
def test_more_sigmas_keep_more(logits, n, more):
    assert set(kept(top_n_sigma(logits, n))) <= set(kept(top_n_sigma(logits, n * more)))


@given(LOGITS, st.floats(0.01, 4.0), st.integers(-3, 3))
def test_top_n_sigma_is_the_same_at_every_temperature(logits, n, power):
    assert kept(top_n_sigma(temperature(logits, 2.0**power), n)) == kept(top_n_sigma(logits, n))


@given(LOGITS, RATIO)
def test_cutting_by_epsilon_twice_keeps_what_is_left(logits, epsilon):
    once = epsilon_cutoff(logits, epsilon)  # what is left has grown: all of it reaches epsilon again
    assert np.array_equal(epsilon_cutoff(once, epsilon), once)


@given(LOGITS)
def test_off_is_off(logits):
    outs = [typical(logits, 1.0), top_h(logits, 1.0), top_n_sigma(logits, 0.0), top_n_sigma(logits, 1e6)]
    outs += [epsilon_cutoff(logits, 0.0), eta_cutoff(logits, 0.0)]
    assert all(np.array_equal(out, logits) for out in outs)


@given(ODD_SIZES, st.sampled_from(CUTS), st.floats(0.01, 0.99))
def test_of_equals_all_stay_or_a_share_of_them(size, cut, p):
    logits = np.full(size, 2.5, np.float32)
    share = math.floor(Fraction(math.floor(p * 2**53), 2**53) * size)
    assert kept(cut(logits, p)) == list(range(max(1, share) if cut is top_h else size))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@each_cut
def test_large_logits_of_every_dtype(dtype, cut):
    logits = np.array([60000, 60000, -60000, -np.inf, 100], dtype)
    before = logits.copy()
    out = cut(logits, 0.5)
    assert out.dtype == dtype and (logits == before).all()
    assert kept(out) == ([0] if cut is top_h else [0, 1])


@each_cut
def test_one_token_stays_alone(cut):
    assert kept(cut(np.array([-7.0]), 0.3)) == [0]
    assert kept(cut(np.array([-np.inf, -7.0, -np.inf]), 0.3)) == [1]


def test_typical_may_drop_the_best_and_top_p_never_does():
    logits = np.array([2.5] + [0.0] * 20)
    assert 0 not in kept(typical(logits, 0.3)) and 0 in kept(top_p(logits, 0.3))


def test_ties_of_top_k():
    logits = np.array([1.0, 2.0, 2.0, 2.0, 3.0])  # ≡ CONVENTIONS row 17
    assert kept(top_k(logits, 2)) == [1, 4] and kept(top_k(logits, 2, ties="all")) == [1, 2, 3, 4]


@given(LOGITS, st.integers(0, 14))
def test_all_ties_are_the_first_and_their_equals(logits, k):
    first, every = kept(top_k(logits, k)), kept(top_k(logits, k, ties="all"))
    least = min((logits[i] for i in first), default=-math.inf)
    assert every == [i for i in kept(logits) if logits[i] >= least]
    assert np.array_equal(top_k(top_k(logits, k, ties="all"), k, ties="all"), top_k(logits, k, ties="all"))


@given(LOGITS, st.floats(0.1, 0.9))
def test_each_step_is_its_operation(logits, p):
    for cut in CUTS:
        assert np.array_equal(apply_chain(logits, [], [], ((cut.__name__, p),)), cut(logits, p))
    assert np.array_equal(apply_chain(logits, [], [], (("top_k", (2, "all")),)), top_k(logits, 2, "all"))


def test_the_chain_has_the_order_of_hugging_face():
    settings = {"top_n_sigma": 1.0, "typical": 0.9, "epsilon_cutoff": 0.1, "eta_cutoff": 0.2, "top_h": 0.4}
    chain = sampling_chain(0.8, 40, 0.9, 0.05, **settings)
    likely, tail = ["top_k", "top_p", "min_p"], ["typical", "epsilon_cutoff", "eta_cutoff"]
    assert [name for name, _ in chain] == ["temperature", "top_n_sigma", "top_h", *likely, *tail]
    assert dict(chain) | settings == dict(chain)
    assert sampling_chain(0.0, **settings) == (("greedy", None),)


NAN, NONE, INF, FINE = (np.array(values) for values in ([0.0, np.nan], [-np.inf] * 2, [0.0, np.inf], [0.0, 1.0]))


@pytest.mark.parametrize(
    ("label", "call"),
    [
        ("C1", lambda: typical(NAN, 0.5)),
        ("C1", lambda: epsilon_cutoff(NAN, 0.5)),
        ("C1", lambda: eta_cutoff(NAN, 0.5)),
        ("C1", lambda: top_n_sigma(NAN, 0.5)),
        ("C1", lambda: top_h(NAN, 0.5)),
        ("C2", lambda: typical(NONE, 1.0)),
        ("C2", lambda: epsilon_cutoff(INF, 0.5)),
        ("C2", lambda: eta_cutoff(np.array([]), 0.5)),
        ("C2", lambda: top_n_sigma(NONE, 0.0)),
        ("C2", lambda: top_h(INF, 0.5)),
        ("C3", lambda: typical(FINE, 1.1)),
        ("C3", lambda: epsilon_cutoff(FINE, -0.1)),
        ("C3", lambda: eta_cutoff(FINE, np.nan)),
        ("C3", lambda: top_n_sigma(FINE, np.inf)),
        ("C3", lambda: top_h(FINE, -0.1)),
        ("C4", lambda: top_k(FINE, 1, ties="last")),
    ],
)
def test_constraints(label, call):
    with pytest.raises(ContractError, match=f"^{label}: "):
        call()
