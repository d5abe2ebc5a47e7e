"""Speculation on the executors: logits of several tokens in one pass, tokens taken back, and the very same text."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu.draft import Drafts, check_vocabulary
from gpu.executor.cpu import CpuExecutor
from gpu.executor.cuda import CudaExecutor
from gpu.model import Model
from refimpl.contract import ContractError, UsageError
from refimpl.llm.sampler import sampling_chain
from refimpl.model import Source
from tests.executor.tiny_models import LLAMA, SPECS, random_tensors

NAMES = ["llama", "windows", "gpt2", "many queries", "dynamic", "gemma", "gpt_oss", "glm moe"]
EXECUTORS = {name: CpuExecutor(SPECS[name], random_tensors(SPECS[name]), threads=2, context=1024) for name in NAMES}


def one_by_one(executor, ids, wanted):
    """Return the logits after each of the last ids of a text, stepped one by one, and the sequence."""
    sequence = executor.new_sequence()
    rows = [executor.step([(sequence, ids[: len(ids) - wanted + 1])])[0]]
    rows += [executor.step([(sequence, [token])])[0] for token in ids[len(ids) - wanted + 1 :]]
    return np.array(rows), sequence


@given(data=st.data())
@pytest.mark.parametrize("name", NAMES)
def test_logits_of_the_last_tokens_are_those_of_steps_of_one(name, data):
    executor = EXECUTORS[name]
    lengths = data.draw(st.lists(st.integers(1, 40), min_size=1, max_size=3))
    wanted = [data.draw(st.integers(1, length)) for length in lengths]
    random = np.random.default_rng(data.draw(st.integers(0, 99)))
    texts = [random.integers(0, 70, length) for length in lengths]
    sequences = [executor.new_sequence() for _ in texts]
    got = executor.step(list(zip(sequences, texts, strict=True)), wanted)
    expected = [one_by_one(executor, text, count) for text, count in zip(texts, wanted, strict=True)]
    assert np.array_equal(got, np.concatenate([rows for rows, _ in expected]))
    for sequence in [*sequences, *(sequence for _, sequence in expected)]:
        executor.free(sequence)


def test_wanted_tokens_may_lie_in_two_steps():
    executor, ids = EXECUTORS["llama"], np.random.default_rng(3).integers(0, 70, 530)
    sequence = executor.new_sequence()
    rows = executor.step([(sequence, ids)], [25])
    expected, other = one_by_one(executor, ids, 25)
    assert np.array_equal(rows, expected)
    executor.free(sequence)
    executor.free(other)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_taken_back_leaves_no_trace(name):
    executor, random = EXECUTORS[name], np.random.default_rng(5)
    ids, wrong = random.integers(0, 70, 50), random.integers(0, 70, 30)
    sequence = executor.new_sequence()
    executor.step([(sequence, ids[:20])])
    executor.step([(sequence, wrong)], [30])
    executor.rewind(sequence, 20)
    rows = executor.step([(sequence, ids[20:])], [30])
    other = executor.new_sequence()
    executor.step([(other, ids[:20])])
    assert np.array_equal(rows, [executor.step([(other, [token])])[0] for token in ids[20:]])
    executor.free(sequence)
    executor.free(other)


def test_what_cannot_be_wanted_or_taken_back():
    executor = EXECUTORS["llama"]
    sequence = executor.new_sequence()
    for wanted in ([0], [4]):
        with pytest.raises(ContractError, match="C3: logits after"):
            executor.step([(sequence, [1, 2, 3])], wanted)
    assert sequence.length == 0
    executor.step([(sequence, [1, 2, 3])])
    for length in (-1, 4):
        with pytest.raises(ContractError, match=f"C1: a rewind from 3 tokens to {length}"):
            executor.rewind(sequence, length)
    executor.free(sequence)


def model_of(name: str, executor=None, seed: int = 0) -> Model:
    spec = SPECS[name]
    tensors = random_tensors(spec, seed)
    executor = executor or CpuExecutor(spec, tensors, threads=2, context=256)
    return Model(Source(spec, tensors, None, Path()), executor, "cpu")


CHAINS = {"greedy": sampling_chain(), "sampled": sampling_chain(0.8, top_k=30, repetition_penalty=1.1)}
PROMPTS = [[1, 2, 3, 4, 1, 2, 3], [5], [9, 8, 9, 8, 9]]


@pytest.mark.parametrize("chain", CHAINS.values(), ids=CHAINS)
@pytest.mark.parametrize("name", NAMES)
def test_text_is_the_same_with_any_draft(name, chain):
    model, settings = model_of(name), {"max_tokens": 24, "chain": chain, "seed": 3, "ignore_eos": True}
    free = model.executor.cache.free_pages
    plain = list(model.generate_batch(PROMPTS, **settings))
    drafts = {"itself": model, "another": model_of("llama", seed=1), "ngram": "ngram"}
    for kind, draft in drafts.items():
        for most in (1, 5):
            drafting = replace(model, draft=draft, num_draft_tokens=most)
            tokens = list(drafting.generate_batch(PROMPTS, **settings))
            for number in range(len(PROMPTS)):
                ours, theirs = ([(t.id, t.stop) for n, t in each if n == number] for each in (tokens, plain))
                assert ours == theirs
            stayed = sum(token.drafted for _, token in tokens)
            if kind == "itself" and chain == CHAINS["greedy"] and name != "dynamic":
                assert stayed >= 72 * most // (most + 1) - 6
    assert model.executor.cache.free_pages == free


def test_text_is_the_same_emulated():
    model = model_of("llama", CudaExecutor(LLAMA, random_tensors(LLAMA), "emulated", context=64))
    plain = [token.id for token in model.generate(PROMPTS[0], max_tokens=6)]
    for draft in (model, "ngram"):
        drafting = replace(model, draft=draft, num_draft_tokens=3)
        assert [token.id for token in drafting.generate(PROMPTS[0], max_tokens=6)] == plain


def test_a_generator_that_is_dropped_gives_all_pages_back():
    model = model_of("llama")
    free = model.executor.cache.free_pages
    tokens = replace(model, draft=model, num_draft_tokens=4).generate([1, 2, 3], max_tokens=30)
    next(tokens)
    tokens.close()
    assert model.executor.cache.free_pages == free


def test_a_draft_model_whose_cache_is_full_drafts_no_more():
    executor = CpuExecutor(LLAMA, random_tensors(LLAMA), context=256, capacity=16)
    small = Model(Source(LLAMA, {}, None, Path()), executor, "cpu")
    model, prompt = model_of("llama"), [1] * 250
    drafting = replace(model, draft=small, num_draft_tokens=4)
    assert [t.id for t in drafting.generate(prompt)] == [t.id for t in model.generate(prompt)]


def test_drafts_shrink_when_they_are_wrong_and_grow_when_they_are_right():
    drafts, reply = Drafts("ngram", 16), SimpleNamespace(prompt=[1, 2] * 20, output=[], room=1000)
    sizes = []
    for kept in (16, 3, 4, 0, 0):
        sizes.append(len(drafts.propose(0, reply)))
        reply.output += [1 if (len(reply.prompt) + len(reply.output)) % 2 == 0 else 2 for _ in range(kept + 1)]
    assert sizes == [16, 16, 4, 8, 0]


def test_a_draft_of_another_vocabulary_is_refused():
    def model_with(size, letters):
        tokenizer = SimpleNamespace(token_bytes=letters.__getitem__) if letters else None
        return SimpleNamespace(spec=replace(LLAMA, vocab_size=size), tokenizer=tokenizer)

    ours, theirs = model_with(3, [b"a", b"b", b"c"]), model_with(3, [b"a", b"b", b"d"])
    check_vocabulary(ours, ours)
    check_vocabulary(model_with(3, []), ours)
    with pytest.raises(UsageError, match="the draft model has a vocabulary of 4 tokens, the model one of 3"):
        check_vocabulary(model_with(4, []), ours)
    with pytest.raises(UsageError, match="token 2 of the draft model is b'd', of the model b'c'"):
        check_vocabulary(theirs, ours)
