"""Bans, biases of sequences and rules of length: against loops over the text, and what holds of all of them."""

import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refimpl.basics.activation import log_softmax
from refimpl.contract import ContractError
from refimpl.llm.bans import (
    bad_words,
    exponential_decay,
    force_tokens,
    no_repeat_ngram,
    sequence_bias,
    suppress_tokens,
)
from refimpl.llm.generate import generate
from refimpl.llm.penalties import logit_bias
from refimpl.llm.sampler import apply_chain, sampling_chain, settings_chain
from tests.laws.strategies import DTYPES, normal, seeds

V = 5
TOKEN = st.integers(0, V - 1)
IDS = st.lists(TOKEN, max_size=14).map(lambda ids: np.array(ids, np.int64))
SEQUENCES = st.lists(st.lists(TOKEN, min_size=1, max_size=4), max_size=6)
BANS = st.sampled_from(("suppress", "ngram", "words", "bias", "decay"))


def logits_of(seed: int) -> np.ndarray:
    """Draw logits of which some are banned already."""
    return np.where(np.random.default_rng(seed).random(V) < 0.3, -np.inf, normal(seed, V))


def banned(before: np.ndarray, after: np.ndarray) -> list[int]:
    """Return the tokens that a step bans, after a look at what it leaves."""
    left = ~np.isneginf(after)
    assert (after[left] == before[left]).all()
    return np.flatnonzero(~left & ~np.isneginf(before)).tolist()


@given(seeds, IDS)
def test_suppressed_are_those_tokens(seed, tokens):
    logits = normal(seed, V)
    assert banned(logits, suppress_tokens(logits, tokens)) == sorted(set(tokens.tolist()))
    assert np.array_equal(suppress_tokens(logits, tokens), logit_bias(logits, {int(i): -np.inf for i in tokens}))


@given(seeds, IDS.filter(len))
def test_forced_are_equally_likely_and_alone(seed, tokens):
    forced = force_tokens(logits_of(seed), tokens)
    assert [i for i in range(V) if forced[i] == 0] == sorted(set(tokens.tolist()))
    assert np.isneginf(forced[forced != 0]).all()


@given(seeds, IDS, st.integers(1, 6))
def test_ngrams_do_not_come_twice(seed, ids, n):
    logits, text = normal(seed, V), ids.tolist()
    seen = [text[s : s + n] for s in range(len(text) - n + 1)]
    wanted = [i for i in range(V) if len(text) >= n - 1 and [*text[len(text) - n + 1 :], i] in seen]
    assert banned(logits, no_repeat_ngram(logits, ids, n)) == wanted


@given(st.integers(1, 4), seeds)
def test_a_text_made_under_the_ban_repeats_nothing(n, seed):
    text: list[int] = []
    while len(text) < 12:
        logits = no_repeat_ngram(normal(seed + len(text), V), np.array(text, np.int64), n)
        if np.isneginf(logits).all():
            break
        text.append(int(logits.argmax()))
    grams = [tuple(text[s : s + n]) for s in range(len(text) - n + 1)]
    assert len(grams) == len(set(grams))


@given(seeds, IDS, SEQUENCES)
def test_words_are_never_completed(seed, ids, words):
    logits, text = normal(seed, V), ids.tolist()
    wanted = {i for i in range(V) if any([*text, i][-len(word) :] == word for word in words)}
    assert banned(logits, bad_words(logits, ids, words)) == sorted(wanted)


@given(seeds, IDS, SEQUENCES)
def test_biases_add_up_on_what_would_complete(seed, ids, sequences):
    logits, text = normal(seed, V), ids.tolist()
    biases = [(sequence, 2.0**-j) for j, sequence in enumerate(sequences)]
    added = [sum(b for s, b in biases if [*text, i][-len(s) :] == s) for i in range(V)]
    assert sequence_bias(logits, ids, biases).tolist() == (logits + added).tolist()
    assert np.array_equal(
        sequence_bias(logits, ids, [(s, -np.inf) for s in sequences]), bad_words(logits, ids, sequences)
    )


@given(seeds, st.lists(TOKEN, min_size=1, max_size=4, unique=True), st.floats(-9, 9))
def test_a_sequence_of_one_is_a_logit_bias(seed, tokens, bias):
    logits = normal(seed, V)
    biased = sequence_bias(logits, np.array([0, 1]), [((i,), bias) for i in tokens])
    assert np.array_equal(biased, logit_bias(logits, dict.fromkeys(tokens, bias)))


@given(seeds, IDS, st.floats(0.5, 2.0), st.integers(0, 9))
def test_decay_grows_by_its_factor(seed, tokens, factor, excess):
    logits = normal(seed, V)
    got = exponential_decay(logits, tokens, factor, excess)
    for i, x in enumerate(logits.tolist()):
        wanted = x + abs(x) * (factor**excess - 1) if i in tokens else x
        assert got[i] == pytest.approx(wanted, rel=1e-14, abs=1e-14)
    further = exponential_decay(logits, tokens, factor, excess + 1)
    assert (further >= got).all() if factor >= 1 else (further <= got).all()
    assert np.array_equal(exponential_decay(logits, tokens, factor, 0), logits)


@given(seeds, IDS, SEQUENCES, st.integers(0, 4), BANS)
def test_no_ban_revives_a_token(seed, ids, words, n, name):
    logits = logits_of(seed)
    step = {
        "suppress": lambda x: suppress_tokens(x, ids),
        "ngram": lambda x: no_repeat_ngram(x, ids, n),
        "words": lambda x: bad_words(x, ids, words),
        "bias": lambda x: sequence_bias(x, ids, [(word, 3.0) for word in words]),
        "decay": lambda x: exponential_decay(x, ids, 1.5, 3),
    }[name]
    once = step(logits)
    assert np.isneginf(once[np.isneginf(logits)]).all()
    if name in ("suppress", "ngram", "words"):
        assert np.array_equal(step(once), once), "a ban holds at once"
        shifted = step(logits + 1.0)
        assert np.array_equal(np.isneginf(shifted), np.isneginf(once)), "and knows nothing of the logits"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_dtype_stays_and_the_input_is_not_touched(dtype):
    logits, ids = np.array([1, -2, 0, -np.inf], dtype), np.array([0, 1, 0])
    before = logits.copy()
    for out, wanted in (
        (suppress_tokens(logits, ids), [-np.inf, -np.inf, 0, -np.inf]),
        (force_tokens(logits, ids[:1]), [0, -np.inf, -np.inf, -np.inf]),
        (no_repeat_ngram(logits, ids, 2), [1, -np.inf, 0, -np.inf]),
        (bad_words(logits, ids, [[0, 2], [3]]), [1, -2, -np.inf, -np.inf]),
        (sequence_bias(logits, ids, [((0, 0), 0.5), ((0,), 1.0)]), [2.5, -2, 0, -np.inf]),
        (exponential_decay(logits, ids, 2.0, 2), [4, 4, 0, -np.inf]),
    ):
        assert out.dtype == dtype and out.astype(np.float64).tolist() == wanted
    assert (logits == before).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_long_text_ends_but_its_logits_stay_finite(dtype):
    most = float(ml_dtypes.finfo(dtype).max)
    got = exponential_decay(np.array([1, -1, 0, -np.inf], dtype), np.arange(4), 2.0, 10**6)
    assert got.astype(np.float64).tolist() == [most, most, 0, -np.inf]
    assert exponential_decay(np.array([-most], dtype), np.array([0]), 0.5, 10**6).astype(np.float64).tolist() == [-most]


def steps(prompt: list[int], output: list[int], *chain) -> list[int]:
    """Return the tokens that a chain leaves of all."""
    return np.flatnonzero(~np.isneginf(apply_chain(np.zeros(V), prompt, output, chain))).tolist()


def test_steps_of_length_begin_and_end_where_they_say():
    for output in ([], [3], [3, 3], [3, 3, 3]):
        few, short = len(output) < 2, len(output) + 1 < 2
        assert (0 not in steps([4], output, ("min_tokens", (2, (0,))))) == few
        assert (0 not in steps([4], output, ("min_length", (2, (0,))))) == short
        assert (steps([4], output, ("force_tokens", (3, (0,)))) == [0]) == (len(output) + 1 == 3)
        decayed = apply_chain(np.ones(V), [4], output, (("exponential_decay", (1, 1.5, (0,))),))
        assert decayed[0] == 1.5 ** max(len(output) - 1, 0)


@given(seeds, IDS, IDS, SEQUENCES)
def test_each_step_is_its_operation(seed, prompt, output, words):
    logits, text = normal(seed, V), np.concatenate([prompt, output])
    biases = [(tuple(word), 1.0) for word in words]
    wanted = {
        ("no_repeat_ngram", 2): no_repeat_ngram(logits, text, 2),
        ("bad_words", tuple(map(tuple, words))): bad_words(logits, text, words),
        ("sequence_bias", tuple(biases)): sequence_bias(logits, text, biases),
        ("suppress_tokens", (1, 3)): suppress_tokens(logits, np.array([1, 3])),
        ("force_tokens", (len(text), (1, 3))): force_tokens(logits, np.array([1, 3])),
        ("exponential_decay", (0, 1.5, (2,))): exponential_decay(logits, np.array([2]), 1.5, len(output)),
        ("log_softmax", None): log_softmax(logits),
    }
    for step, result in wanted.items():
        assert np.array_equal(apply_chain(logits, prompt.tolist(), output.tolist(), (step,)), result)


def test_the_chain_has_the_order_of_hugging_face():
    settings = {"no_repeat_ngram": 3, "bad_words": [[1], [2, 3]], "suppress_tokens": [4]}
    chain = sampling_chain(0.8, repetition_penalty=1.1, frequency_penalty=0.5, min_tokens=2, eos_ids=[0], **settings)
    assert chain == (
        ("repetition_penalty", 1.1), ("frequency_penalty", 0.5), ("no_repeat_ngram", 3), ("bad_words", ((1,), (2, 3))),
        ("min_tokens", (2, (0,))), ("suppress_tokens", (4,)), ("temperature", 0.8),
    )  # fmt: skip
    assert isinstance(hash(chain), int), "a chain is a value"
    assert sampling_chain(eos_ids=[0]) == (("greedy", None),)


def test_the_least_tokens_are_made_before_an_end():
    def step(ids):
        return np.array([5.0, 1.0, 2.0])  # a model that only wants to end

    for least in (0, 1, 4):
        chain = settings_chain(None, {"min_tokens": least}, eos_ids=(0,))
        made = [token.id for token in generate(step, [1], context=16, chain=chain, eos_ids={0})]
        assert made == [2] * least + [0]


NO_IDS, FINE, FAR = np.array([], np.int64), np.zeros(V), np.array([V])


@pytest.mark.parametrize(
    ("label", "call"),
    [
        ("C1", lambda: suppress_tokens(FINE, FAR)),
        ("C1", lambda: suppress_tokens(FINE, np.array([-1]))),
        ("C1", lambda: force_tokens(FINE, FAR)),
        ("C1", lambda: force_tokens(FINE, NO_IDS)),
        ("C1", lambda: no_repeat_ngram(FINE, FAR, 1)),
        ("C2", lambda: no_repeat_ngram(FINE, NO_IDS, -1)),
        ("C1", lambda: bad_words(FINE, FAR, [])),
        ("C1", lambda: bad_words(FINE, NO_IDS, [[0, V]])),
        ("C2", lambda: bad_words(FINE, NO_IDS, [[0], []])),
        ("C1", lambda: sequence_bias(FINE, NO_IDS, [((-1,), 0.5)])),
        ("C2", lambda: sequence_bias(FINE, NO_IDS, [((), 0.5)])),
        ("C3", lambda: sequence_bias(FINE, NO_IDS, [((0,), np.inf)])),
        ("C3", lambda: sequence_bias(FINE, NO_IDS, [((0,), math.nan)])),
        ("C1", lambda: exponential_decay(FINE, FAR, 1.1, 1)),
        ("C2", lambda: exponential_decay(FINE, NO_IDS, 0.0, 1)),
        ("C2", lambda: exponential_decay(FINE, NO_IDS, np.inf, 1)),
        ("C3", lambda: exponential_decay(FINE, NO_IDS, 1.1, -1)),
    ],
)
def test_constraints(label, call):
    with pytest.raises(ContractError, match=f"^{label}: "):
        call()
