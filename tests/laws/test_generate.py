"""Generation with models of a line: when it stops, what it asks for, which text comes out when."""

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from refimpl.contract import ContractError, UsageError
from refimpl.llm.generate import Reply, TextStream, Token, generate
from refimpl.llm.sampler import sampling_chain
from tests.laws.strategies import normal

V = 11


class Counter:
    """A model whose next token is the last one plus 1; it remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[list[int]] = []

    def __call__(self, ids: list[int]) -> np.ndarray:
        self.asked.append(list(ids))
        return np.eye(V)[(ids[-1] + 1) % V]


class Noisy:
    """A model whose logits depend on the whole sequence."""

    def __init__(self) -> None:
        self.ids: list[int] = []

    def __call__(self, ids: list[int]) -> np.ndarray:
        self.ids += ids
        return normal(hash(tuple(self.ids)) % 2**32, V, dtype=np.float32)


def letter(token_id: int) -> bytes:
    return b"abcdefghijk"[token_id : token_id + 1]


def ids_of(tokens) -> list[int]:
    return [token.id for token in tokens]


def test_prefill_once_then_one_token_at_a_time_and_no_step_more():
    model = Counter()
    tokens = list(generate(model, [4, 2, 0], context=99, max_tokens=3))
    assert ids_of(tokens) == [1, 2, 3]
    assert model.asked == [[4, 2, 0], [1], [2]], "the last token is not fed back"


def test_model_is_asked_for_what_is_consumed():
    model = Counter()
    tokens = generate(model, [0], context=99)
    assert model.asked == []
    next(tokens)
    assert model.asked == [[0]]
    tokens.close()
    assert list(tokens) == [] and model.asked == [[0]]


@given(st.integers(1, 5), st.integers(0, 12), st.integers(6, 12), st.sets(st.integers(0, V - 1), max_size=3))
def test_the_first_reason_to_stop_stops(prompt_len, max_tokens, context, eos_ids):
    prompt = list(range(prompt_len))
    tokens = list(generate(Counter(), prompt, context=context, max_tokens=max_tokens, eos_ids=eos_ids))
    counted = [(prompt_len + i) % V for i in range(min(max_tokens, context - prompt_len))]
    until = next((i for i, token_id in enumerate(counted) if token_id in eos_ids), len(counted) - 1)
    assert ids_of(tokens) == counted[: until + 1]
    if counted:
        wanted = "eos" if counted[until] in eos_ids else "length" if len(counted) == max_tokens else "context"
        assert [token.stop for token in tokens] == [None] * until + [wanted]


def test_without_max_tokens_the_context_is_filled():
    tokens = list(generate(Counter(), [0], context=8))
    assert ids_of(tokens) == [1, 2, 3, 4, 5, 6, 7] and tokens[-1].stop == "context"


def test_text_comes_with_its_token():
    tokens = list(generate(Counter(), [0], context=99, eos_ids={4}, token_bytes=letter))
    assert tokens == [Token(1, "b"), Token(2, "c"), Token(3, "d"), Token(4, "", stop="eos")]


def test_a_stop_string_over_tokens_is_held_back_and_left_out():
    tokens = list(generate(Counter(), [0], context=99, stop=["def"], token_bytes=letter))
    assert [(token.text, token.stop) for token in tokens] == [
        ("b", None), ("c", None), ("", None), ("", None), ("", "stop"),
    ]


def test_what_was_held_back_comes_out_at_the_end():
    usual = {"context": 99, "stop": ["efgh", "dek"], "token_bytes": letter}
    for reason, settings in (("eos", {"eos_ids": {5}}), ("length", {"max_tokens": 5}), ("context", {"context": 6})):
        tokens = list(generate(Counter(), [0], **usual | settings))
        assert "".join(token.text for token in tokens) == ("bcde" if reason == "eos" else "bcdef")
        assert tokens[-1].stop == reason


def test_a_stop_string_goes_before_the_other_reasons():
    (*_, last) = generate(Counter(), [0], context=4, max_tokens=3, stop=["d"], token_bytes=letter)
    assert last == Token(3, "", stop="stop")


def test_half_a_character_at_the_end_is_replaced():
    pieces = {1: b"x", 2: "é".encode()[:1], 3: b"", 4: b""}
    tokens = list(generate(Counter(), [0], context=99, eos_ids={4}, token_bytes=lambda i: pieces[i]))
    assert [token.text for token in tokens] == ["x", "", "", "\ufffd"]


CHAIN = sampling_chain(1.0, top_k=8)


def test_noise_belongs_to_seed_request_and_position():
    def run(**place: int) -> list[int]:
        return ids_of(generate(Noisy(), [1, 2], context=50, max_tokens=30, chain=CHAIN, **place))

    assert run(seed=3, request=1) == run(seed=3, request=1)
    different = [run(seed=3), run(seed=4), run(seed=3, request=1)]
    assert all(a != b for a, b in pairwise([*different, different[0]]))


@given(st.integers(1, 20), st.integers(0, 99))
def test_a_cut_sequence_goes_on_as_if_it_had_not_been(cut, seed):
    whole = ids_of(generate(Noisy(), [1, 2], context=50, max_tokens=21, chain=CHAIN, seed=seed))
    again = ids_of(generate(Noisy(), [1, 2, *whole[:cut]], context=50, max_tokens=21 - cut, chain=CHAIN, seed=seed))
    assert whole[:cut] + again == whole


def test_penalties_see_the_prompt_and_the_output_as_each_is_meant_to():
    def run(name: str, penalty: float) -> list[int]:
        chain = ((name, penalty), ("greedy", None))
        return ids_of(generate(lambda ids: np.ones(4), [0], context=99, max_tokens=3, chain=chain))

    assert run("presence_penalty", 0.5) == run("frequency_penalty", 0.5) == [0, 1, 2]
    assert run("repetition_penalty", 2.0) == [1, 2, 3]


def test_logprobs_are_the_models_own():
    logits = np.array([1.0, 3.0, 2.0, 2.0], np.float32)
    chain = (("logit_bias", {0: 99.0}), ("greedy", None))
    (token,) = generate(lambda ids: logits, [0], context=9, max_tokens=1, logprobs=3, chain=chain)
    total = math.log(sum(math.exp(x) for x in logits))
    assert token.id == 0 and token.logprob == pytest.approx(1 - total, abs=1e-12)
    assert [i for i, _ in token.top_logprobs] == [1, 2, 3], "of equals the lower index first"
    assert [p for _, p in token.top_logprobs] == pytest.approx([3 - total, 2 - total, 2 - total], abs=1e-12)
    (silent,) = generate(lambda ids: logits, [0], context=9, max_tokens=1)
    assert silent.logprob is None and silent.top_logprobs == ()


@pytest.mark.parametrize(
    ("message", "settings"),
    [
        ("prompt holds no token", {"prompt_ids": []}),
        ("context of 3 tokens has no room .* prompt of 3", {"context": 3}),
        ("max_tokens is not negative, got -1", {"max_tokens": -1}),
        ("logprobs is not negative, got -2", {"logprobs": -2}),
        ("stop string is not empty", {"stop": ["a", ""], "token_bytes": letter}),
        ("stop strings need a tokenizer", {"stop": ["a"]}),
    ],
)
def test_what_cannot_be_served_is_refused_at_the_call(message, settings):
    model = Counter()
    with pytest.raises(UsageError, match=message):
        generate(model, **{"prompt_ids": [0, 1, 2], "context": 99} | settings)
    assert model.asked == []


def test_nan_logits_are_refused():
    tokens = generate(lambda ids: np.full(V, np.nan), [0], context=9)
    with pytest.raises(ContractError, match="NaN"):
        next(tokens)


def test_an_interrupt_passes_and_ends_the_generation():
    def interrupted(ids: list[int]) -> np.ndarray:
        if ids == [2]:
            raise KeyboardInterrupt
        return np.eye(V)[ids[-1] + 1]

    tokens = generate(interrupted, [0], context=99)
    assert ids_of([next(tokens), next(tokens)]) == [1, 2]
    with pytest.raises(KeyboardInterrupt):
        next(tokens)
    assert list(tokens) == []


def test_replies_side_by_side_are_each_alone():
    settings = {"context": 40, "max_tokens": 20, "chain": CHAIN, "seed": 5}
    alone = [ids_of(generate(Noisy(), prompt, request=r, **settings)) for r, prompt in enumerate(([1], [2, 3]))]
    replies = [Reply(prompt, request=r, **settings) for r, prompt in enumerate(([1], [2, 3]))]
    models = [Noisy(), Noisy()]
    while any(reply.ended is None for reply in replies):
        for reply, model in zip(replies, models, strict=True):
            reply.take(model(reply.pending))
    assert [reply.output for reply in replies] == alone


PIECES = st.lists(st.one_of(st.binary(max_size=4), st.text(max_size=3).map(str.encode)), max_size=8)


def outputs(stream: TextStream, pieces: list[bytes]) -> list[str]:
    texts = []
    for piece in pieces:
        stream, text = stream.push(piece)
        texts.append(text)
    return [*texts, stream.push(b"", final=True)[1]]


@given(PIECES)
def test_streamed_text_is_the_decoded_text(pieces):
    texts = outputs(TextStream(), pieces)
    data = b"".join(pieces)
    assert "".join(texts) == data.decode("utf-8", "replace")
    assert [len(piece) > 0 for piece in pieces].count(True) >= sum(text != "" for text in texts[:-1])


def cut_by_characters(text: str, stop: list[str]) -> str:
    """Read character by character; at the first complete stop string (the longest of those) cut before it."""
    for end in range(1, len(text) + 1):
        if complete := [s for s in stop if text[:end].endswith(s)]:
            return text[: end - max(map(len, complete))]
    return text


ABC = st.text("abé", max_size=12)


@example("éabb", ["bb", "ab"], [])
@example("éab", ["b", "ab"], [])
@given(ABC, st.lists(st.text("abé", min_size=1, max_size=4), max_size=3), st.lists(st.integers(0, 24), max_size=6))
def test_text_ends_before_the_stop_string_that_is_complete_first(text, stop, cuts):
    data = text.encode()
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    pieces = [data[a:b] for a, b in pairwise(edges)]
    assert "".join(outputs(TextStream(tuple(stop)), pieces)) == cut_by_characters(text, stop)


@given(ABC, st.lists(st.text("abé", min_size=1, max_size=4), min_size=1, max_size=3))
def test_no_more_is_held_back_than_a_stop_string_may_need(text, stop):
    stream = TextStream(tuple(stop))
    for character in text:
        stream, _ = stream.push(character.encode())
        assert stream.pending == b""
        assert stream.held == "" or any(s.startswith(stream.held) and s != stream.held for s in stop)
