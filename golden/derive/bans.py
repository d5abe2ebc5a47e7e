"""Bans as loops over tokens, ids and sequences."""

import math
from collections.abc import Iterable, Sequence

import numpy as np

from golden.values import Array

__all__ = ["bad_words", "exponential_decay", "force_tokens", "no_repeat_ngram", "sequence_bias", "suppress_tokens"]


def suppress_tokens(logits: Array, tokens: Iterable[int]) -> Array:
    y = logits.copy()
    for i in tokens:
        y[i] = -math.inf
    return y


def force_tokens(logits: Array, tokens: Iterable[int]) -> Array:
    y = np.full(len(logits), -math.inf)
    for i in tokens:
        y[i] = 0.0
    return y


def no_repeat_ngram(logits: Array, ids: Array, n: int) -> Array:
    text = [int(i) for i in ids]
    seen = {tuple(text[s : s + n]) for s in range(len(text) - n + 1)} if n else set()
    return suppress_tokens(logits, [i for i in range(len(logits)) if tuple([*text, i][-n:]) in seen])


def _ends_with(ids: Array, start: Sequence[int]) -> bool:
    return len(start) <= len(ids) and all(ids[len(ids) - len(start) + j] == start[j] for j in range(len(start)))


def sequence_bias(logits: Array, ids: Array, biases: Iterable[tuple[Sequence[int], float]]) -> Array:
    y = logits.copy()
    for sequence, bias in biases:
        if _ends_with(ids, sequence[:-1]):
            y[sequence[-1]] += bias
    return y


def bad_words(logits: Array, ids: Array, words: Iterable[Sequence[int]]) -> Array:
    return suppress_tokens(logits, [word[-1] for word in words if _ends_with(ids, word[:-1])])


def exponential_decay(logits: Array, tokens: Iterable[int], factor: float, excess: int) -> Array:
    y = logits.copy()
    for i in tokens:
        if math.isfinite(logits[i]):
            y[i] = logits[i] + abs(logits[i]) * (math.prod([factor] * excess) - 1)
    return y
