"""How surprised a model is by a text: the perplexity of chunks, scored as llama.cpp scores them."""

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TypeAlias

import numpy as np

from refimpl.basics.training import cross_entropy
from refimpl.contract import Array, Float, UsageError, host

__all__ = ["Advance", "chunk_losses", "first_scored", "perplexity", "text_chunks"]

Advance: TypeAlias = Callable[[list[int], int], Array]
"""Appends ids to a sequence, and returns the logits after the last so many of them."""

_STEP, _ROWS = 128, 16  # tokens that go to the model together; of those, rows of logits that are widened together


@host
def text_chunks(ids: Sequence[int], size: int, bos: int | None = None) -> list[list[int]]:
    """Cut the ids of a text into chunks of ``size``, each of which begins with ``bos`` instead of its first token.

    What fills no chunk at the end is left out, unless the whole text is shorter than one.

    >>> text_chunks([1, 5, 6, 7, 8, 9, 10], 3, bos=1), text_chunks([1, 5], 3)
    ([[1, 5, 6], [1, 8, 9]], [[1, 5]])
    """
    if len(ids) < 2 or size < 2:
        raise UsageError(f"perplexity takes texts and chunks of two tokens or more, not {len(ids)} in chunks of {size}")
    whole = min(size, len(ids))
    chunks = [list(ids[start : start + whole]) for start in range(0, len(ids) - whole + 1, whole)]
    return chunks if bos is None else [[bos, *chunk[1:]] for chunk in chunks]


@host
def first_scored(length: int) -> int:
    """Return the place of the first token of a chunk that is scored: behind the middle, so that it has a context."""
    return min(length // 2 + 1, length - 1)


@host
def chunk_losses(advance: Advance, chunk: Sequence[int]) -> Float[Array, " T"]:
    """Return -log p of the tokens of a chunk's second half, each given all before it in the chunk."""
    first, losses = first_scored(len(chunk)), list[Array]()
    cuts = [0, *range(first, len(chunk) - 1, _STEP), len(chunk) - 1]
    for start, stop in pairwise(cuts):
        wanted = 1 if start == 0 else stop - start  # the last id of the first half predicts the first one scored
        logits = advance(list(chunk[start:stop]), wanted)
        targets = np.array(chunk[stop + 1 - wanted : stop + 1])
        for rows in (slice(row, row + _ROWS) for row in range(0, wanted, _ROWS)):
            losses.append(cross_entropy(np.asarray(logits[rows], np.float64), targets[rows]))
    return np.concatenate(losses)


@host
def perplexity(losses: Float[Array, " T"]) -> tuple[float, float]:
    """Return the perplexity of tokens by their losses, and its standard error.

    Math: exp(mean), and of the mean's error to first order: exp(mean) sqrt(variance / (T - 1)).
    Source: Jelinek et al., Perplexity: a measure of the difficulty of speech recognition tasks, 1977;
        llama.cpp, tools/perplexity, whose chunks and error these are.

    >>> perplexity(np.full(7, np.log(50257.0)))[0].__round__(6)
    50257.0
    """
    mean = float(losses.mean())
    if mean > 700:  # exp of more is no float64
        return math.inf, math.inf
    return math.exp(mean), math.exp(mean) * float(losses.std()) / math.sqrt(max(len(losses) - 1, 1))
