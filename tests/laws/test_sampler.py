"""The chain of steps and the draw."""

import math
from fractions import Fraction
from itertools import accumulate

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refimpl.contract import ContractError
from refimpl.llm.cuts import greedy, min_p, temperature, top_k, top_p
from refimpl.llm.penalties import frequency_penalty, logit_bias, presence_penalty, repetition_penalty
from refimpl.llm.sampler import apply_chain, draw, sample, sampling_chain
from tests.laws.strategies import normal, seeds

PROBS = (
    st.lists(st.one_of(st.just(0.0), st.floats(1e-30, 1.0)), min_size=1, max_size=10)
    .filter(lambda values: max(values) > 0)
    .map(np.array)
)
UNIT = st.one_of(st.floats(0.0, 1.0, exclude_max=True), st.sampled_from([0.0, 1 - 2.0**-53, 0.5, 5e-324]))


def units(probs: np.ndarray) -> list[int]:
    """Multiples of 2^-40 of the power of two above the largest; Python rounds fractions half to even."""
    unit = Fraction(2) ** (math.frexp(probs.max())[1] - 40)
    return [round(Fraction(p) / unit) for p in probs.tolist()]


@given(PROBS, UNIT)
def test_draw_is_the_first_whose_running_sum_exceeds(probs, u):
    running = list(accumulate(units(probs)))
    wanted = next(i for i, mass in enumerate(running) if mass * 2**53 > math.floor(u * 2**53) * running[-1])
    assert draw(probs, u) == wanted and probs[wanted] > 0


@given(PROBS, UNIT)
def test_draw_inverts_the_distribution(probs, u):
    drawn, total = draw(probs, u), math.fsum(probs)
    below, slack = math.fsum(probs[:drawn]), len(probs) * 2.0**-39 * probs.max()
    assert below - slack <= u * total < below + probs[drawn] + slack


@given(st.lists(st.integers(0, 9), min_size=1, max_size=8).filter(any))
def test_draw_gives_each_token_its_share(weights):
    total = sum(weights)
    probs = np.array(weights) / total
    drawn = [draw(probs, (i + 0.5) / (10 * total)) for i in range(10 * total)]
    assert np.bincount(drawn, minlength=len(weights)).tolist() == [10 * w for w in weights]


@pytest.mark.parametrize("tiny", [5e-324, 1e-310])
def test_draw_from_a_subnormal_sum(tiny):
    assert draw(np.array([0.0, tiny, 0.0]), 0.999) == 1


def test_draw_from_float32_sums_in_float64():
    probs = np.full(2**16, 2.0**-16, np.float32)
    assert draw(probs, 1 - 2.0**-53) == 2**16 - 1


FAIR = np.array([0.5, 0.5])


@pytest.mark.parametrize(
    ("label", "call"),
    [
        ("C1", lambda: draw(FAIR, 1.0)),
        ("C1", lambda: draw(FAIR, -0.1)),
        ("C1", lambda: draw(FAIR, np.nan)),
        ("C2", lambda: draw(np.array([0.0, 0.0]), 0.5)),
        ("C2", lambda: draw(np.array([1.0, -0.5]), 0.5)),
        ("C2", lambda: draw(np.array([np.nan, 0.5]), 0.5)),
        ("C2", lambda: draw(np.array([np.inf, 0.5]), 0.5)),
        ("C2", lambda: draw(np.array([]), 0.5)),
    ],
)
def test_constraints(label, call):
    with pytest.raises(ContractError, match=f"^{label}: "):
        call()


def test_chain_has_the_order_of_hugging_face():
    chain = sampling_chain(0.8, 40, 0.9, 0.05, 1.1, 0.2, 0.3, {7: 1.0, 2: -1.0})
    assert chain == (
        ("logit_bias", ((2, -1.0), (7, 1.0))),
        ("repetition_penalty", 1.1),
        ("presence_penalty", 0.2),
        ("frequency_penalty", 0.3),
        ("temperature", 0.8),
        ("top_k", 40),
        ("top_p", 0.9),
        ("min_p", 0.05),
    )
    assert isinstance(hash(chain), int), "a chain is a value"


def test_chain_leaves_out_what_is_off():
    assert sampling_chain() == sampling_chain(0.0, 40, 0.9) == (("greedy", None),)
    assert sampling_chain(1.0) == ()
    assert sampling_chain(0.0, repetition_penalty=1.1) == (("repetition_penalty", 1.1), ("greedy", None))


@given(seeds)
def test_each_step_is_its_operation(seed):
    logits, prompt, output = normal(seed, 9), [0, 1, 1], [2, 2, 5]
    steps = {
        ("logit_bias", ((3, 1.0),)): logit_bias(logits, {3: 1.0}),
        ("repetition_penalty", 1.3): repetition_penalty(logits, np.array(prompt + output), 1.3),
        ("presence_penalty", 0.5): presence_penalty(logits, np.array(output), 0.5),
        ("frequency_penalty", 0.5): frequency_penalty(logits, np.array(output), 0.5),
        ("greedy", None): greedy(logits),
        ("temperature", 0.7): temperature(logits, 0.7),
        ("top_k", 3): top_k(logits, 3),
        ("top_p", 0.6): top_p(logits, 0.6),
        ("min_p", 0.2): min_p(logits, 0.2),
    }
    for step, wanted in steps.items():
        assert np.array_equal(apply_chain(logits, prompt, output, (step,)), wanted)
    assert np.array_equal(apply_chain(logits, [], [], ()), logits)


def test_order_is_the_order_of_the_chain():
    probs = np.log([0.4, 0.3, 0.2, 0.1])
    first_k = apply_chain(probs, [], [], (("top_k", 2), ("top_p", 0.5)))
    assert np.flatnonzero(first_k > -np.inf).tolist() == [0]  # ≡ CONVENTIONS row 2: renormalised, 0.4 / 0.7 > 0.5
    first_p = apply_chain(probs, [], [], (("top_p", 0.5), ("top_k", 2)))
    assert np.flatnonzero(first_p > -np.inf).tolist() == [0, 1]


def test_unknown_step_is_refused():
    with pytest.raises(ContractError, match=r"steps of a chain are .*top_k.* got 'atypical'"):
        apply_chain(np.zeros(3), [], [], (("atypical", 0.9),))


@given(seeds, st.integers(1, 9), UNIT)
def test_sample_draws_from_the_softmax_of_what_is_left(seed, k, u):
    logits = normal(seed, 9)
    cut = top_k(logits, k)
    wanted = draw(np.exp(cut - cut.max()), u)
    assert sample(logits, [], [], (("top_k", k),), u) == wanted
    assert sample(logits, [], [], sampling_chain(), u) == logits.argmax()


@pytest.mark.parametrize("logits", [np.full(4, np.nan), np.full(4, -np.inf)])
def test_sample_refuses_logits_without_a_choice(logits):
    for chain in ((), (("greedy", None),), (("temperature", 0.5),)):
        with pytest.raises(ContractError):
            sample(logits, [], [], chain, 0.5)
