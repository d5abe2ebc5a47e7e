"""Rules of what may come next: tokens and sequences that are banned, favoured or forced, and how long the text gets.

A banned token has the logit -inf. What a rule reads of the text are ids: the prompt's and the output's, in a row.
"""

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

from refimpl.contract import Array, Float, Int, op, require, whole, widen, within

__all__ = ["bad_words", "exponential_decay", "force_tokens", "no_repeat_ngram", "sequence_bias", "suppress_tokens"]

_finfo: Any = ml_dtypes.finfo  # NumPy's, and bfloat16 beside it


def _check(logits: Array, ids: Array) -> None:
    """Demand one row of logits, and one of ids in the vocabulary."""
    rows = widen(logits).ndim == ids.ndim == 1 and ids.dtype.kind in "iu"
    require(rows, "C1", f"logits are one row, ids one of integers, got {logits.shape} and {ids.dtype} {ids.shape}")
    require(within(ids, len(logits)), "C1", f"ids {ids.min(initial=0)} to {ids.max(initial=0)} of {len(logits)} tokens")


def _ban(logits: Array, banned: Array) -> Array:
    changed = logits.copy()
    changed[banned] = -np.inf
    return changed


@op
def suppress_tokens(logits: Float[Array, " V"], tokens: Int[Array, " tokens"]) -> Float[Array, " V"]:
    """Ban tokens.

    Math: l_i <- -inf if i is among the tokens.
    Cost: no flop; reads and writes V.
    Numerics: exact.
    Constraints:
        (C1) logits are one row, and tokens are integers in the vocabulary.
    Source: Hugging Face SuppressTokensLogitsProcessor; as long as a text is short, MinLengthLogitsProcessor.

    >>> suppress_tokens(np.array([1.0, 2.0, 3.0]), np.array([2, 0]))
    array([-inf,   2., -inf])
    """
    _check(logits, tokens)
    return _ban(logits, tokens)


@op
def force_tokens(logits: Float[Array, " V"], tokens: Int[Array, " tokens"]) -> Float[Array, " V"]:
    """Ban all but some tokens, which become equally likely.

    Math: l_i <- 0 if i is among the tokens, else -inf.
    Cost: no flop; writes V.
    Numerics: exact. A token that was banned before comes back: what is forced is no choice.
    Constraints:
        (C1) logits are one row, and tokens are integers in the vocabulary, at least one.
    Source: Hugging Face ForcedEOSTokenLogitsProcessor and ForcedBOSTokenLogitsProcessor.

    >>> force_tokens(np.array([1.0, 2.0, 3.0]), np.array([1]))
    array([-inf,   0., -inf])
    """
    _check(logits, tokens)
    require(len(tokens) > 0, "C1", "at least one token is forced")
    forced = np.full_like(logits, -np.inf)
    forced[tokens] = 0
    return forced


@op
def no_repeat_ngram(logits: Float[Array, " V"], ids: Int[Array, " ids"], n: int) -> Float[Array, " V"]:
    """Ban every token that would end a sequence of n ids that the text already holds; n = 0 bans none.

    Math: l_i <- -inf if (ids_{S-n+1}, ..., ids_{S-1}, i) = (ids_s, ..., ids_{s+n-1}) for some s <= S - n, of S ids.
    Cost: S n comparisons; reads and writes V, reads S ids.
    Numerics: exact.
    Constraints:
        (C1) logits are one row, and ids are integers in the vocabulary.
        (C2) n is not negative.
    Source: Paulus, Xiong, Socher, A deep reinforced model for abstractive summarization, 2017, 2.5, for any n;
        Hugging Face NoRepeatNGramLogitsProcessor.

    >>> no_repeat_ngram(np.array([1.0, 2.0, 3.0]), np.array([0, 1, 2, 0, 1]), 3)
    array([  1.,   2., -inf])
    """
    _check(logits, ids)
    require(whole("n", n) >= 0, "C2", f"n is 0 or more, got {n}")
    if n == 0 or len(ids) < n:
        return logits
    windows = np.lib.stride_tricks.sliding_window_view(ids, n)
    repeats = (windows[:, :-1] == ids[len(ids) - n + 1 :]).all(axis=-1)
    return _ban(logits, windows[repeats, -1])


def _completed(logits: Array, ids: Array, sequences: Sequence[Sequence[int]]) -> list[int]:
    """Return which sequences the next token can complete: those whose other ids are the last ones of the text."""
    _check(logits, ids)
    _check(logits, np.array([token for sequence in sequences for token in sequence], np.int64))
    require(all(len(sequence) > 0 for sequence in sequences), "C2", "a sequence holds at least one id")
    said, starts = ids.tolist(), [list(sequence[:-1]) for sequence in sequences]
    return [j for j, start in enumerate(starts) if said[len(said) - len(start) :] == start]


@op
def sequence_bias(
    logits: Float[Array, " V"], ids: Int[Array, " ids"], biases: Sequence[tuple[Sequence[int], float]]
) -> Float[Array, " V"]:
    """Add a bias to the token that would complete a sequence; a sequence of one id is a token anywhere.

    Math: l_i <- l_i + the sum of b over the (s_1, ..., s_n; b) with s_n = i and s_1, ..., s_{n-1} the last n - 1 ids.
    Cost: a comparison for each id of a sequence, and a flop; reads and writes V.
    Numerics: summed in float64, in the order of the sequences, and rounded once to the dtype of the logits. A bias
        of -inf bans a token whatever its logit.
    Constraints:
        (C1) logits are one row, and ids, those of the sequences too, are integers in the vocabulary.
        (C2) a sequence holds at least one id.
        (C3) a bias is a number below +inf.
    Source: Hugging Face SequenceBiasLogitsProcessor.

    >>> sequence_bias(np.array([1.0, 2.0, 3.0]), np.array([2, 0]), [([0, 1], -1.5), ([2, 2], -np.inf), ([0], 1.0)])
    array([2. , 0.5, 3. ])
    """
    completed = _completed(logits, ids, [sequence for sequence, _ in biases])
    bad = [bias for _, bias in biases if not bias < np.inf]
    require(not bad, "C3", f"a bias is a number below +inf, got {bad[:1]}")
    added = np.zeros(len(logits))
    for j in completed:
        sequence, bias = biases[j]
        added[sequence[-1]] += bias
    with np.errstate(over="ignore", invalid="ignore"):
        return np.where(added > -np.inf, logits.astype(np.float64) + added, -np.inf).astype(logits.dtype)


@op
def bad_words(
    logits: Float[Array, " V"], ids: Int[Array, " ids"], words: Sequence[Sequence[int]]
) -> Float[Array, " V"]:
    """Ban the token that would complete a word, each a sequence of ids.

    Math: l_i <- -inf if a word is (s_1, ..., s_{n-1}, i) and s_1, ..., s_{n-1} are the last n - 1 ids.
    Cost: a comparison for each id of a word; reads and writes V.
    Numerics: exact.
    Constraints:
        (C1) logits are one row, and ids, those of the words too, are integers in the vocabulary.
        (C2) a word holds at least one id.
    Source: Hugging Face NoBadWordsLogitsProcessor, which leaves out a word that is an end-of-sequence token alone.

    >>> bad_words(np.array([1.0, 2.0, 3.0]), np.array([2, 0]), [[0, 1], [1, 2], [0]])
    array([-inf, -inf,   3.])
    """
    return _ban(logits, np.array([words[j][-1] for j in _completed(logits, ids, words)], np.int64))


@op
def exponential_decay(
    logits: Float[Array, " V"], tokens: Int[Array, " tokens"], factor: float, excess: int
) -> Float[Array, " V"]:
    """Make tokens that end a text likelier, the more so the longer it is: by a factor for each token in excess.

    Math: l_i <- l_i + |l_i| (factor^excess - 1) if i is among the tokens and l_i is finite.
    Cost: V flop; reads and writes V.
    Numerics: in float64, and rounded once; held at the largest finite number of the dtype. The zero of the logits
        matters: this step is not shift-invariant.
    Constraints:
        (C1) logits are one row, and tokens are integers in the vocabulary.
        (C2) factor is positive and finite; below 1 it makes a text longer.
        (C3) excess is not negative.
    Source: Hugging Face ExponentialDecayLengthPenalty.

    >>> exponential_decay(np.array([1.0, -2.0, 3.0]), np.array([1, 2]), 1.5, 2)
    array([1.  , 0.5 , 6.75])
    """
    _check(logits, tokens)
    require(0 < factor < np.inf, "C2", f"the factor is positive and finite, got {factor}")
    require(whole("excess", excess) >= 0, "C3", f"the excess is 0 or more tokens, got {excess}")
    with np.errstate(over="ignore", invalid="ignore"):
        growth = min(np.float64(factor) ** excess, np.finfo(np.float64).max)
        wide, most = logits.astype(np.float64), float(_finfo(logits.dtype).max)
        longer = np.clip(wide + np.abs(wide) * (growth - 1), -most, most)
    chosen = np.isin(np.arange(len(logits)), tokens) & np.isfinite(wide)
    return np.where(chosen, longer.astype(logits.dtype), logits)
