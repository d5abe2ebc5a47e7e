"""Speculative decoding: the law of the model is kept, exactly by counting and in the text itself."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refimpl.contract import ContractError
from refimpl.llm.generate import Reply, generate
from refimpl.llm.sampler import draw, sampling_chain
from refimpl.llm.speculative import accepted_length, ngram_draft, residual_probs, speculate, speculative_sample
from refimpl.model import Model
from tests.executor.tiny_models import LLAMA, random_tensors
from tests.laws.strategies import seeds

widths = st.integers(1, 9)


def laws_of(seed: int, rows: int, V: int) -> np.ndarray:
    """Draw probabilities, some of them 0."""
    draws = np.random.default_rng(seed)
    weights = draws.exponential(size=(rows, V)) * (draws.random((rows, V)) < 0.8)
    weights[:, seed % V] += 0.1
    return weights / weights.sum(-1, keepdims=True)


@given(seeds, widths)
def test_accepting_and_correcting_gives_the_model_s_law(seed, V):
    """min(p, q) + (1 - sum min(p, q)) r = p."""
    p, q = laws_of(seed, 2, V)
    kept = np.minimum(p, q)
    np.testing.assert_allclose(kept + (1 - kept.sum()) * residual_probs(p, q), p, atol=1e-15)


@given(seeds, widths)
def test_a_residual_is_a_law_and_has_nothing_where_the_draft_has_more(seed, V):
    p, q = laws_of(seed, 2, V)
    r = residual_probs(p, q)
    assert math.isclose(r.sum(), 1, rel_tol=1e-12)
    if not np.array_equal(p, q):
        assert (r[q >= p] == 0).all()
    assert np.array_equal(residual_probs(p, p), p)


@given(seeds, widths, st.integers(0, 6))
def test_a_draft_of_the_model_itself_stays_and_one_of_nothing_goes(seed, V, count):
    p = laws_of(seed, count, V)
    ids = p.argmax(-1)
    noise = np.random.default_rng(seed).random(count)
    assert accepted_length(p, p, ids, noise) == count
    never = np.where(np.arange(V) == ids[:, None], 0, p)
    assert accepted_length(never, p, ids, np.zeros(count)) == 0


@given(seeds, widths, st.integers(1, 6))
def test_tokens_after_a_rejected_one_change_nothing(seed, V, count):
    p, q = laws_of(seed, count, V), laws_of(seed + 1, count, V)
    draws = np.random.default_rng(seed)
    ids, noise = draws.integers(0, V, count), draws.random(count)
    kept = accepted_length(p, q, ids, noise)
    p[kept + 1 :], noise[kept + 1 :] = q[kept + 1 :], 0
    assert accepted_length(p, q, ids, noise) == kept


P = np.array([[0.5, 0.25, 0.125, 0.125, 0.0], [0.1, 0.2, 0.3, 0.15, 0.25], [0.2, 0.2, 0.2, 0.2, 0.2]])
Q = np.array([[0.125, 0.25, 0.25, 0.25, 0.125], [0.4, 0.3, 0.1, 0.1, 0.1]])


def correction_from_p(probs, draft_probs, ids, noise):
    """Plant: the correction is drawn from the model's own law."""
    kept = accepted_length(probs[:-1], draft_probs, ids, noise[:-1])
    return [*ids[:kept].tolist(), draw(probs[kept], float(noise[-1]))]


def noise_used_twice(probs, draft_probs, ids, noise):
    """Plant: the noise that rejected a token draws its correction."""
    kept = accepted_length(probs[:-1], draft_probs, ids, noise[:-1])
    law = residual_probs(probs[kept], draft_probs[kept]) if kept < len(ids) else probs[-1]
    return [*ids[:kept].tolist(), draw(law, float(noise[kept]))]


def chi_square(sample, rounds: int = 4000) -> float:
    """Return how far the first tokens and the second ones are from the model's laws, in standard deviations."""
    draws = np.random.default_rng(7)
    counts = np.zeros((2, 5))
    for _ in range(rounds):
        ids = np.array([draw(row, draws.random()) for row in Q])
        for place, token in enumerate(sample(P, Q, ids, draws.random(3))[:2]):
            counts[place, token] += 1
    expected = P[:2] * counts.sum(-1, keepdims=True)
    alive = expected > 0
    assert (counts[~alive] == 0).all()
    freedom = alive.sum() - 2
    statistic = ((counts - expected)[alive] ** 2 / expected[alive]).sum()
    return float((statistic - freedom) / math.sqrt(2 * freedom))


def test_sampled_tokens_pass_chi_square_and_wrong_rules_fail_it():
    assert chi_square(speculative_sample) < 3
    assert chi_square(correction_from_p) > 20
    assert chi_square(noise_used_twice) > 20


def test_a_draft_proposes_what_followed():
    assert ngram_draft([7, 1, 2, 3, 9, 1, 2, 3], 2) == [9, 1]
    assert ngram_draft([1, 2, 1, 2], 5) == [1, 2, 1, 2, 1]
    assert ngram_draft([1, 2, 5, 1, 2, 6, 1, 2], 1) == [6]
    assert ngram_draft([1, 2, 3, 1], 2) == [] and ngram_draft([1, 2, 3, 1], 2, shortest=1) == [2, 3]
    assert ngram_draft([4], 3) == []


@given(st.lists(st.integers(0, 3), max_size=30), st.integers(1, 9))
def test_a_draft_is_a_copy(ids, most):
    draft = ngram_draft(ids, most)
    assert len(draft) in (0, most)
    text = [*ids, *draft]
    if draft:
        assert any(text[i : i + 2 + most] == text[len(ids) - 2 :] for i in range(len(ids) - 2))


TENSORS = random_tensors(LLAMA)
MODEL = Model(LLAMA, {name: tensor.read(np.float64) for name, tensor in TENSORS.items()})
CHAINS = [
    sampling_chain(),
    sampling_chain(0.7, top_k=20),
    sampling_chain(1.3, repetition_penalty=1.2, presence_penalty=0.1),
]


@pytest.mark.parametrize("chain", CHAINS, ids=["greedy", "sampled", "penalties"])
@pytest.mark.parametrize("most", [1, 3, 8])
@pytest.mark.parametrize("kind", ["right", "wrong", "half", "ngram"])
def test_whatever_is_drafted_the_text_is_the_same(chain, most, kind):
    prompt, settings = [1, 2, 3], {"context": 64, "chain": chain, "max_tokens": 20, "seed": 5, "logprobs": 2}
    plain = list(generate(MODEL.sequence(64), prompt, **settings))
    text = prompt + [token.id for token in plain]

    def propose(known, most):
        right = text[len(known) : len(known) + most]
        wrong = [(token + 1) % LLAMA.vocab_size for token in right]
        known_kinds = {"right": right, "wrong": wrong, "half": right[:1] + wrong[1:], "ngram": ngram_draft(known, most)}
        return known_kinds[kind]

    passes, step = [], MODEL.verifier(64)

    def verify(kept, ids, wanted):
        passes.append(kept)
        return step(kept, ids, wanted)

    drafted = list(speculate(Reply(prompt, **settings), verify, propose, most))
    assert [(t.id, t.text, t.stop) for t in drafted] == [(t.id, t.text, t.stop) for t in plain]
    for ours, theirs in zip(drafted, plain, strict=True):
        np.testing.assert_allclose(ours.logprob, theirs.logprob, atol=1e-12)
    stayed = sum(token.drafted for token in drafted)
    assert len(passes) == len(plain) - stayed
    if kind == "right":
        assert stayed == len(plain) - -(-len(plain) // (most + 1))
    if kind == "wrong":
        assert stayed == 0


a = np.ones
FAIR = (np.full((2, 3), 1 / 3), np.full((2, 3), 1 / 3), np.array([0, 2]), np.array([0.5, 0.5]))
BROKEN = [
    (accepted_length, "C1", (FAIR[0], FAIR[1][:1], *FAIR[2:])),
    (accepted_length, "C1", (*FAIR[:2], FAIR[2][:1], FAIR[3])),
    (accepted_length, "C1", (FAIR[0][0], FAIR[1][0], *FAIR[2:])),
    (accepted_length, "C2", (*FAIR[:2], np.array([0, 3]), FAIR[3])),
    (accepted_length, "C2", (*FAIR[:2], np.array([0, -1]), FAIR[3])),
    (accepted_length, "C2", (*FAIR[:2], np.array([True, False]), FAIR[3])),
    (accepted_length, "C3", (*FAIR[:3], np.array([0.5, 1.0]))),
    (accepted_length, "C3", (*FAIR[:3], np.array([0.5, np.nan]))),
    (residual_probs, "C1", (a(3), a(4))),
    (residual_probs, "C1", (a((2, 3)), a((2, 3)))),
    (residual_probs, "C2", (a(3), np.array([1, np.nan, 0]))),
    (residual_probs, "C2", (np.array([1, -0.1, 0]), a(3))),
]


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize(("operation", "label", "arguments"), BROKEN)
def test_broken_constraints_are_refused(operation, label, arguments):
    with pytest.raises(ContractError, match=f"^{label}: "):
        operation(*arguments)
