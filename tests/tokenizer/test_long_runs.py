"""Text without a boundary is cut, so that time grows linearly and nothing overflows."""

import time

import pytest

from tests.tokenizer.trained import ours


def seconds(text: str, kind: str) -> float:
    """Measure the least CPU time of three encodings."""
    measured = []
    for _ in range(3):
        start = time.process_time()
        ours(kind).encode(text)
        measured.append(time.process_time() - start)
    return min(measured)


@pytest.mark.parametrize("kind", ["gpt-2", "llama-bpe", "staged"])
@pytest.mark.parametrize("run", ["a", " ", "\n", "ab", "\u6771", "!", "7"])
def test_time_is_linear(kind, run):
    short, long = run * 20_000, run * 160_000
    assert seconds(long, kind) < 8 * 2.5 * seconds(short, kind) + 0.05
    assert b"".join(ours(kind).tokens[id] for id in ours(kind).encode(long)).decode() == long


def test_text_with_boundaries_is_not_cut():
    tokenizer = ours("gpt-2")
    ids = tokenizer.encode(" the quick fox")
    assert tokenizer.encode(" the quick fox" * 20_000) == ids * 20_000
