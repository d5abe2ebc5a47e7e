"""Perplexity: closed forms, what is scored of a chunk, and the same losses from pieces as from whole logits."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refimpl.contract import UsageError
from refimpl.perplexity import chunk_losses, first_scored, perplexity, text_chunks


@pytest.mark.parametrize("vocabulary", [2, 257, 50257])
@pytest.mark.parametrize("length", [2, 3, 300, 512])
def test_who_knows_nothing_has_the_perplexity_of_the_vocabulary(vocabulary: int, length: int) -> None:
    losses = chunk_losses(lambda ids, wanted: np.zeros((wanted, vocabulary), np.float32), [1] * length)
    value, error = perplexity(losses)
    assert value == pytest.approx(vocabulary, rel=1e-12) and error < 1e-9 * vocabulary


@given(st.floats(0.01, 0.99), st.integers(0, 1000), st.integers(1, 1000))
def test_a_biased_coin_has_the_exponential_of_its_entropy(p: float, hits: int, misses: int) -> None:
    losses = np.array([-math.log(p)] * hits + [-math.log1p(-p)] * misses)
    value, error = perplexity(losses)
    n = hits + misses
    assert value == pytest.approx(p ** (-hits / n) * (1 - p) ** (-misses / n))
    spread = abs(math.log(p) - math.log1p(-p)) * math.sqrt(hits * misses) / n  # of two values
    assert error == pytest.approx(value * spread / math.sqrt(max(n - 1, 1)))


def test_one_who_knows_has_one_and_one_who_excludes_what_comes_has_no_end() -> None:
    assert perplexity(np.zeros(9)) == (1.0, 0.0)
    assert perplexity(np.array([0.0, math.inf, 1.0])) == (math.inf, math.inf) == perplexity(np.full(3, 800.0))


@pytest.mark.parametrize(
    ("length", "scored"), [(2, [1]), (3, [2]), (4, [3]), (5, [3, 4]), (8, [5, 6, 7]), (512, list(range(257, 512)))]
)
def test_the_second_half_is_scored_as_llama_cpp_does(length: int, scored: list[int]) -> None:
    assert list(range(first_scored(length), length)) == scored  # its perplexity.cpp: tokens first + 1 .. n_ctx - 1


@given(st.lists(st.integers(0, 9), min_size=2, max_size=40), st.integers(2, 12), st.one_of(st.none(), st.just(7)))
def test_chunks_are_the_text_in_order(ids: list[int], size: int, bos: int | None) -> None:
    chunks = text_chunks(ids, size, bos)
    if len(ids) < size:
        assert len(chunks) == 1 and chunks[0][1:] == ids[1:]
    else:
        assert {len(chunk) for chunk in chunks} == {size} and len(chunks) == len(ids) // size
        assert [i for chunk in chunks for i in chunk[1:]] == [
            i for place, i in enumerate(ids[: len(chunks) * size]) if place % size
        ]
    assert all(chunk[0] == bos for chunk in chunks) or bos is None


@pytest.mark.parametrize(("ids", "size"), [([], 5), ([1], 5), ([1, 2, 3], 1), ([1, 2], 0)])
def test_a_text_of_less_than_two_tokens_is_refused(ids: list[int], size: int) -> None:
    with pytest.raises(UsageError, match="perplexity takes texts and chunks of two tokens or more, not"):
        text_chunks(ids, size)


@given(st.integers(2, 700), st.integers(0, 9))
def test_pieces_give_the_losses_of_the_whole(length: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    logits, chunk = rng.standard_normal((length, 11)).astype(np.float32) * 5, rng.integers(0, 11, length).tolist()
    seen: list[int] = []

    def advance(ids: list[int], wanted: int) -> np.ndarray:
        seen.extend(ids)
        return logits[len(seen) - wanted : len(seen)]

    losses, first = chunk_losses(advance, chunk), first_scored(length)
    rows = logits[first - 1 : -1].astype(np.float64)
    wanted = np.logaddexp.reduce(rows, 1) - rows[np.arange(length - first), chunk[first:]]
    assert seen == chunk[:-1] and np.allclose(losses, wanted, rtol=1e-12, atol=1e-12)
