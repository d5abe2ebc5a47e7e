"""Faults of bans, biases of sequences, and rules of length."""

from collections.abc import Iterable, Sequence

import numpy as np

from golden.derive import bans as derive
from golden.values import Array

__all__ = [
    "bias_of_last_wins", "bias_of_start_anywhere", "bias_on_first_token", "decay_adds", "decay_multiplies",
    "decay_without_power", "forced_keep_logits", "forced_stay_banned", "ngram_of_any_order", "ngram_one_longer",
    "ngram_one_shorter", "ngram_skips_overlap", "suppressed_are_small", "suppressed_come_back", "words_by_any_start",
    "words_by_first_token", "words_of_one_token",
]  # fmt: skip


def suppressed_are_small(logits: Array, tokens: Iterable[int]) -> Array:
    """The logit becomes -1e4: where all others are lower still, it is drawn."""
    return np.where(np.isneginf(derive.suppress_tokens(logits, tokens)), -1e4, logits)


def suppressed_come_back(logits: Array, tokens: Iterable[int]) -> Array:
    """What was banned before comes back."""
    return derive.suppress_tokens(np.nan_to_num(logits, neginf=0.0), tokens)


def forced_keep_logits(logits: Array, tokens: Iterable[int]) -> Array:
    """The forced tokens keep their logits: two of them are not equally likely."""
    return np.where(np.isfinite(derive.force_tokens(logits, tokens)), logits, -np.inf)


def forced_stay_banned(logits: Array, tokens: Iterable[int]) -> Array:
    """A forced token that was banned stays so, and nothing is left."""
    return np.where(np.isneginf(logits), -np.inf, derive.force_tokens(logits, tokens))


def ngram_one_shorter(logits: Array, ids: Array, n: int) -> Array:
    """What would end a sequence of n - 1."""
    return derive.no_repeat_ngram(logits, ids, n - 1)


def ngram_one_longer(logits: Array, ids: Array, n: int) -> Array:
    """What would end a sequence of n + 1."""
    return derive.no_repeat_ngram(logits, ids, n + 1)


def ngram_skips_overlap(logits: Array, ids: Array, n: int) -> Array:
    """Sequences that share tokens with the end of the text are not seen."""
    early = {tuple(ids[s : s + n]) for s in range(len(ids) - 2 * n + 2)}
    return derive.suppress_tokens(logits, [i for i in range(len(logits)) if (*ids[len(ids) - n + 1 :], i) in early])


def ngram_of_any_order(logits: Array, ids: Array, n: int) -> Array:
    """The last tokens in any order."""
    last = sorted(ids[len(ids) - n + 1 :])
    found = [ids[s + n - 1] for s in range(len(ids) - n + 1) if sorted(ids[s : s + n - 1]) == last]
    return derive.suppress_tokens(logits, found)


def bias_of_last_wins(logits: Array, ids: Array, biases: Iterable[tuple[Sequence[int], float]]) -> Array:
    """Of several biases for a token the last one counts."""
    y = logits.copy()
    for sequence, bias in biases:
        if _ends(ids, sequence[:-1]):
            y[sequence[-1]] = logits[sequence[-1]] + bias
    return y


def bias_on_first_token(logits: Array, ids: Array, biases: Iterable[tuple[Sequence[int], float]]) -> Array:
    """The bias falls on the token that would begin a sequence."""
    return derive.sequence_bias(logits, ids, [(sequence[:1], bias) for sequence, bias in biases])


def bias_of_start_anywhere(logits: Array, ids: Array, biases: Iterable[tuple[Sequence[int], float]]) -> Array:
    """The start of a sequence counts wherever it stands in the text."""
    y = logits.copy()
    for sequence, bias in biases:
        if any(_ends(ids[: s + 1], sequence[:-1]) for s in range(len(ids))):
            y[sequence[-1]] += bias
    return y


def _ends(ids: Array, start: Sequence[int]) -> bool:
    return len(start) <= len(ids) and list(ids[len(ids) - len(start) :]) == list(start)


def words_by_first_token(logits: Array, ids: Array, words: Iterable[Sequence[int]]) -> Array:
    """The token that begins a word is banned."""
    return derive.suppress_tokens(logits, [word[0] for word in words])


def words_by_any_start(logits: Array, ids: Array, words: Iterable[Sequence[int]]) -> Array:
    """The start of a word counts wherever it stands in the text."""
    said = [ids[: s + 1] for s in range(len(ids))]
    return derive.suppress_tokens(logits, [word[-1] for word in words if any(_ends(part, word[:-1]) for part in said)])


def words_of_one_token(logits: Array, ids: Array, words: Iterable[Sequence[int]]) -> Array:
    """Words of several tokens are not looked for."""
    return derive.suppress_tokens(logits, [word[0] for word in words if len(word) == 1])


def decay_multiplies(logits: Array, tokens: Iterable[int], factor: float, excess: int) -> Array:
    """The logit times the factor's power: one below 0 becomes less likely."""
    y = logits.copy()
    for i in tokens:
        y[i] = logits[i] * factor**excess
    return y


def decay_adds(logits: Array, tokens: Iterable[int], factor: float, excess: int) -> Array:
    """The power without its - 1."""
    y = logits.copy()
    for i in tokens:
        y[i] = logits[i] + abs(logits[i]) * factor**excess
    return y


def decay_without_power(logits: Array, tokens: Iterable[int], factor: float, excess: int) -> Array:
    """The factor alone, however long the text is."""
    return derive.exponential_decay(logits, tokens, factor, min(excess, 1))
