"""Penalties and biases against scalar loops."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refimpl.contract import ContractError
from refimpl.llm.penalties import frequency_penalty, logit_bias, presence_penalty, repetition_penalty
from tests.laws.strategies import DTYPES, normal, seeds

V = 7
IDS = st.lists(st.integers(0, V - 1), max_size=20).map(lambda ids: np.array(ids, np.int64))


@given(seeds, IDS, st.floats(0.5, 2.0))
def test_repetition_divides_positive_and_multiplies_negative(seed, ids, penalty):
    logits = normal(seed, V)
    got = repetition_penalty(logits, ids, penalty)
    for i, x in enumerate(logits):
        assert got[i] == (x if i not in ids else x / penalty if x > 0 else x * penalty)


@given(seeds, IDS, st.floats(-2.0, 2.0))
def test_presence_counts_once_and_frequency_each_time(seed, ids, penalty):
    logits = normal(seed, V)
    presence, frequency = presence_penalty(logits, ids, penalty), frequency_penalty(logits, ids, penalty)
    for i, x in enumerate(logits):
        count = ids.tolist().count(i)
        assert presence[i] == x - min(count, 1) * penalty
        assert frequency[i] == x - count * penalty


@given(seeds, st.dictionaries(st.integers(0, V - 1), st.floats(-100.0, 100.0)))
def test_bias_is_added(seed, bias):
    logits = normal(seed, V)
    wanted = [x + bias.get(i, 0.0) for i, x in enumerate(logits)]
    assert logit_bias(logits, bias).tolist() == wanted
    assert logit_bias(logits, tuple(bias.items())).tolist() == wanted


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_dtype_stays_and_the_input_is_not_touched(dtype):
    logits, ids = np.array([1, -2, 0, -np.inf], dtype), np.array([0, 1, 3])
    before = logits.copy()
    for out, wanted in (
        (repetition_penalty(logits, ids, 2.0), [0.5, -4, 0, -np.inf]),
        (presence_penalty(logits, ids, 0.5), [0.5, -2.5, 0, -np.inf]),
        (frequency_penalty(logits, ids, 0.5), [0.5, -2.5, 0, -np.inf]),
        (logit_bias(logits, {0: -0.5, 2: -np.inf}), [0.5, -2, -np.inf, -np.inf]),
    ):
        assert out.dtype == dtype and out.astype(np.float64).tolist() == wanted
    assert (logits == before).all()


def test_what_overflows_is_cut_without_a_warning():
    logits, ids = np.array([1, 1], np.float16), np.array([0])
    assert presence_penalty(logits, ids, 1e300).tolist() == [-np.inf, 1]
    assert frequency_penalty(logits, ids, 1e300).tolist() == [-np.inf, 1]
    assert repetition_penalty(-logits, ids, 1e300).tolist() == [-np.inf, -1]
    assert logit_bias(logits, {0: -1e300}).tolist() == [-np.inf, 1]


LOGITS, NO_IDS = np.zeros(V), np.array([], np.int64)


@pytest.mark.parametrize(
    ("label", "call"),
    [
        ("C1", lambda: repetition_penalty(LOGITS, np.array([V]), 1.1)),
        ("C1", lambda: presence_penalty(LOGITS, np.array([-1]), 0.1)),
        ("C1", lambda: frequency_penalty(LOGITS, np.array([0, V]), 0.1)),
        ("C1", lambda: logit_bias(LOGITS, {-1: 0.5})),
        ("C1", lambda: logit_bias(LOGITS, {V: 0.5})),
        ("C2", lambda: repetition_penalty(LOGITS, NO_IDS, 0.0)),
        ("C2", lambda: repetition_penalty(LOGITS, NO_IDS, np.inf)),
        ("C2", lambda: presence_penalty(LOGITS, NO_IDS, np.nan)),
        ("C2", lambda: frequency_penalty(LOGITS, NO_IDS, -np.inf)),
        ("C2", lambda: logit_bias(LOGITS, {0: np.inf})),
        ("C2", lambda: logit_bias(LOGITS, {0: np.nan})),
    ],
)
def test_constraints(label, call):
    with pytest.raises(ContractError, match=f"^{label}: "):
        call()
