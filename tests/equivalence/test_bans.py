"""Every kernel of bans, of biases of sequences and of the race gives what the reference gives, exactly."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from golden.values import dtype_named
from gpu import device
from gpu.llm.bans import (
    bad_words,
    exponential_decay,
    force_tokens,
    no_repeat_ngram,
    sequence_bias,
    sequence_bias_into,
    suppress_tokens,
    suppress_tokens_into,
)
from gpu.llm.rng import exponential
from gpu.llm.sampler import draw_race, draw_race_into
from refimpl.contract import ContractError
from refimpl.llm import bans, rng
from tests.equivalence.strategies import assert_equivalent, dtypes, each_kernel, examples, seeds
from tests.equivalence.test_sampler import assert_same, kinds, logits_of

vocabularies = st.sampled_from((1, 2, 33, 257, 2049))
id_types = st.sampled_from((np.int32, np.int64))


def text_of(seed: int, V: int, count: int, few: bool) -> np.ndarray:
    """Draw ids, of few tokens where something shall repeat; they lie at both ends of the vocabulary."""
    draws = np.random.default_rng(seed)
    ids = draws.integers(0, min(V, 3) if few else V, count)
    return np.where(draws.random(count) < 0.5, ids, V - 1 - ids)


def sequences_of(seed: int, V: int, ids: np.ndarray, count: int) -> list[tuple[int, ...]]:
    """Draw sequences, of which half begin with the last ids of the text."""
    draws = np.random.default_rng(seed + 1)
    found = []
    for _ in range(count):
        start = ids[len(ids) - min(int(draws.integers(0, 4)), len(ids)) :].tolist()
        other = text_of(int(draws.integers(2**31)), V, int(draws.integers(0, 4)), few=True).tolist()
        last = text_of(int(draws.integers(2**31)), V, 1, few=True).tolist()
        found.append((*(start if draws.random() < 0.5 else other), *last))
    return found


@each_kernel("suppress_tokens", "force_tokens")
@examples
@given(seeds, vocabularies, dtypes, kinds, st.integers(1, 70), id_types)
def test_tokens(kernel, seed, V, dtype, kind, count, id_type):
    """suppress_tokens, force_tokens."""
    tokens = text_of(seed, V, count, few=False).astype(id_type)
    assert_same(kernel, {"logits": logits_of(seed, V, dtype, kind), "tokens": tokens})


@each_kernel("no_repeat_ngram")
@examples
@given(seeds, vocabularies, dtypes, st.integers(0, 300), st.integers(0, 5), id_types)
def test_no_repeat_ngram(kernel, seed, V, dtype, count, n, id_type):
    ids = text_of(seed, V, count, few=True).astype(id_type)
    assert_same(kernel, {"logits": logits_of(seed, V, dtype, "cut"), "ids": ids, "n": n})


@each_kernel("bad_words")
@examples
@given(seeds, vocabularies, dtypes, st.integers(0, 9), st.integers(0, 40), id_types)
def test_bad_words(kernel, seed, V, dtype, length, count, id_type):
    ids = text_of(seed, V, length, few=True).astype(id_type)
    words = sequences_of(seed, V, ids, count)
    assert_same(kernel, {"logits": logits_of(seed, V, dtype, "cut"), "ids": ids, "words": words})


@each_kernel("sequence_bias")
@examples
@given(seeds, vocabularies, dtypes, kinds, st.integers(0, 9), st.integers(0, 40))
def test_sequence_bias(kernel, seed, V, dtype, kind, length, count):
    ids, draws = text_of(seed, V, length, few=True), np.random.default_rng(seed)
    values = draws.choice([-np.inf, -1e300, -100.0, 0.1, 1.0, 1e300], count).tolist()
    biases = list(zip(sequences_of(seed, V, ids, count), values, strict=True))
    assert_same(kernel, {"logits": logits_of(seed, V, dtype, kind), "ids": ids, "biases": biases})


@each_kernel("exponential_decay")
@examples
@given(seeds, vocabularies, dtypes, kinds, st.floats(0.5, 2.0), st.sampled_from((0, 1, 2, 50, 10**6)))
def test_exponential_decay(kernel, seed, V, dtype, kind, factor, excess):
    tokens = text_of(seed, V, seed % 20, few=False)
    logits = logits_of(seed, V, dtype, kind)
    if seed % 5 == 0:
        logits[seed % V] = np.nan
    assert_same(kernel, {"logits": logits, "tokens": tokens, "factor": factor, "excess": excess})


@each_kernel("draw_race")
@examples
@given(seeds, vocabularies, dtypes, st.sampled_from((1.0, 2.0**-20, 2.0**-130, 3e4)), dtypes)
def test_draw_race(kernel, seed, V, dtype, scale, noise_dtype):
    draws = np.random.default_rng(seed)
    probs = (draws.random(V) ** 9 * scale * (draws.random(V) < 0.7)).astype(dtype_named(dtype))
    if not probs.any():
        probs[seed % V] = 1
    noise = (draws.exponential(size=V) * (draws.random(V) < 0.9)).astype(dtype_named(noise_dtype))
    assert_same(kernel, {"probs": probs, "noise": noise})


words = st.integers(0, 2**64 - 1)


@each_kernel("exponential")
@examples
@given(words, words, words, st.sampled_from((0, 1, 2, 257, 1025)))
def test_exponential(kernel, seed, request, position, size):
    arguments = {"seed": seed, "request": request, "position": position, "size": size}
    assert_equivalent(kernel, arguments, "float32")
    assert np.array_equal(kernel.call(**arguments), rng.exponential(**arguments))


def test_a_launcher_may_write_over_its_logits():
    logits = logits_of(3, 5000, "float32", "plain")
    ids, values = np.array([4999, 2048, 0]), np.array([1.0, 2.0])
    wanted = bans.sequence_bias(bans.suppress_tokens(logits, ids[:1]), ids, [((0, 7), 1.0), ((2047,), 2.0)])
    suppress_tokens_into(logits, logits, ids[:1])
    sequence_bias_into(logits, logits, ids, np.array([0, 7, 2047]), np.array([0, 2, 3]), values)
    assert np.array_equal(logits, wanted)


def test_rows_without_a_choice_are_marked():
    probs = np.float32([[0, 0], [1, -1e-30], [np.nan, 1], [np.inf, 1], [-0.0, 1], [0.5, 0.5]])
    ids = device.empty(6, np.int32)
    draw_race_into(ids, probs, np.ones((6, 2), np.float32))
    assert ids.tolist() == [-2, -2, -2, -2, 1, 0]


FINE, NO_IDS, FAR = np.zeros(3, np.float32), np.zeros(0, np.int64), np.array([3])
FAIR, TIMES = np.float32([0.5, 0.5]), np.float32([1, 2])


@pytest.mark.parametrize(
    ("label", "twin", "arguments"),
    [
        *(("C1", twin, (FINE, ids)) for twin in (suppress_tokens, force_tokens)
          for ids in (FAR, np.array([-1]), np.zeros(1), np.zeros((1, 1), np.int64))),
        ("C1", force_tokens, (FINE, NO_IDS)),
        ("C1", suppress_tokens, (FINE[None], NO_IDS)),
        ("C1", no_repeat_ngram, (FINE, FAR, 1)),
        ("C2", no_repeat_ngram, (FINE, NO_IDS, -1)),
        ("C1", bad_words, (FINE, NO_IDS, [[0, 3]])),
        ("C2", bad_words, (FINE, NO_IDS, [[]])),
        ("C1", sequence_bias, (FINE, FAR, [])),
        ("C2", sequence_bias, (FINE, NO_IDS, [((), 1.0)])),
        *(("C3", sequence_bias, (FINE, NO_IDS, [((0,), bias)])) for bias in (np.inf, np.nan)),
        ("C1", exponential_decay, (FINE, FAR, 1.1, 1)),
        *(("C2", exponential_decay, (FINE, NO_IDS, factor, 1)) for factor in (0.0, np.inf, np.nan)),
        ("C3", exponential_decay, (FINE, NO_IDS, 1.1, -1)),
        *(("C1", draw_race, (FAIR, np.float32(noise))) for noise in ([1, -1], [1, np.nan], [np.inf, 1], [1], [[1, 1]])),
        *(("C2", draw_race, (np.float32(probs), TIMES)) for probs in ([0, 0], [1, -0.5], [np.nan, 1], [np.inf, 1])),
        ("C2", draw_race, (np.zeros(0, np.float32), np.zeros(0, np.float32))),
        *(("C1", exponential, place) for place in ((-1, 0, 0, 1), (0, 2**64, 0, 1), (0, 0, -1, 1))),
        *(("C2", exponential, (0, 0, 0, size)) for size in (-1, 2**32 + 1)),
    ],
)  # fmt: skip
def test_refused_by_label(label, twin, arguments):
    with pytest.raises(ContractError, match=f"^{label}: "):
        twin(*arguments)


@pytest.mark.parametrize("call", [
    lambda x: suppress_tokens(x, NO_IDS), lambda x: bad_words(x, NO_IDS, []), lambda x: draw_race(x, TIMES[[0, 0, 0]]),
    lambda x: draw_race(FINE + 1, x), lambda x: exponential_decay(x, NO_IDS, 1.1, 1),
])  # fmt: skip
def test_float64_is_refused(call):
    with pytest.raises(ContractError, match="float32, bfloat16 and float16, not float64"):
        call(np.ones(3))


def test_nothing_gives_nothing_without_a_launch():
    with device.recording() as launches:
        empty = np.zeros(0, np.float32)
        outs = suppress_tokens(empty, NO_IDS), bad_words(empty, NO_IDS, []), exponential(1, 2, 3, 0)
        assert [out.shape for out in outs] == [(0,)] * 3
    assert launches == []
