"""Changes to single logits before the cuts: for tokens that were used already, and for those a user wants or forbids.

The arithmetic is in float64 and rounded once to the dtype of the logits; what overflows there is infinite.
"""

from collections.abc import Iterable, Mapping

import numpy as np

from refimpl.contract import Array, Float, Int, op, require, widen

__all__ = ["frequency_penalty", "logit_bias", "presence_penalty", "repetition_penalty"]


def _counts(ids: Array, logits: Array) -> Array:
    rows = widen(logits).ndim == ids.ndim == 1 and ids.dtype.kind in "iu"
    require(rows, "C1", f"logits are one row, ids one of integers, got {logits.shape} and {ids.dtype} {ids.shape}")
    vocab_size = len(logits)
    inside = ids.size == 0 or (ids.min() >= 0 and ids.max() < vocab_size)
    require(bool(inside), "C1", f"ids are in [0, {vocab_size}), got {ids.min(initial=0)} to {ids.max(initial=0)}")
    return np.bincount(ids.astype(np.int64), minlength=vocab_size)


def _round(wide: Array, dtype: np.dtype[np.floating]) -> Array:
    with np.errstate(over="ignore"):
        return wide.astype(dtype)


@op
def repetition_penalty(logits: Float[Array, " V"], ids: Int[Array, " ids"], penalty: float) -> Float[Array, " V"]:
    """Make every token of the prompt and the output less likely, once however often it occurs.

    Math: l_i <- l_i / penalty if l_i > 0, l_i penalty otherwise, for every i among the ids.
    Cost: V flop; reads and writes V.
    Numerics: rounded once. The zero of the logits matters: this step is not shift-invariant.
    Constraints:
        (C1) logits are one row, and ids are integers in the vocabulary.
        (C2) penalty is positive and finite; below 1 it rewards.
    Source: Keskar et al., CTRL, 2019; divide or multiply by sign as in Hugging Face RepetitionPenaltyLogitsProcessor.

    >>> repetition_penalty(np.array([2.0, -2.0, 3.0]), np.array([0, 1, 1]), 2.0)
    array([ 1., -4.,  3.])
    """
    require(0 < penalty < np.inf, "C2", f"the repetition penalty is positive and finite, got {penalty}")
    seen = _counts(ids, logits) > 0
    wide = logits.astype(np.float64)
    changed = np.where(wide > 0, wide / penalty, wide * penalty)
    return _round(np.where(seen, changed, wide), logits.dtype)


@op
def presence_penalty(logits: Float[Array, " V"], ids: Int[Array, " ids"], penalty: float) -> Float[Array, " V"]:
    """Lower the logit of every token of the output, once however often it occurs.

    Math: l_i <- l_i - penalty if i is among the ids.
    Cost: V flop; reads and writes V.
    Numerics: rounded once.
    Constraints:
        (C1) logits are one row, and ids are integers in the vocabulary.
        (C2) penalty is finite; below 0 it rewards.
    Source: OpenAI API reference, presence_penalty.

    >>> presence_penalty(np.array([2.0, 2.0, 2.0]), np.array([1, 1]), 0.5)
    array([2. , 1.5, 2. ])
    """
    require(bool(np.isfinite(penalty)), "C2", f"the presence penalty is finite, got {penalty}")
    said = _counts(ids, logits) > 0
    return _round(logits.astype(np.float64) - said * float(penalty), logits.dtype)


@op
def frequency_penalty(logits: Float[Array, " V"], ids: Int[Array, " ids"], penalty: float) -> Float[Array, " V"]:
    """Lower the logit of every token of the output, as many times as it occurs.

    Math: l_i <- l_i - penalty |{s : ids_s = i}|.
    Cost: 2 V flop; reads and writes V.
    Numerics: rounded once.
    Constraints:
        (C1) logits are one row, and ids are integers in the vocabulary.
        (C2) penalty is finite; below 0 it rewards.
    Source: OpenAI API reference, frequency_penalty.

    >>> frequency_penalty(np.array([2.0, 2.0, 2.0]), np.array([1, 1]), 0.5)
    array([2., 1., 2.])
    """
    require(bool(np.isfinite(penalty)), "C2", f"the frequency penalty is finite, got {penalty}")
    counts = _counts(ids, logits)
    return _round(logits.astype(np.float64) - counts * float(penalty), logits.dtype)


@op
def logit_bias(
    logits: Float[Array, " V"], bias: Mapping[int, float] | Iterable[tuple[int, float]]
) -> Float[Array, " V"]:
    """Add a bias to the logits of chosen tokens; -inf forbids a token.

    Math: l_i <- l_i + bias_i.
    Cost: one flop a chosen token; reads and writes V.
    Numerics: rounded once.
    Constraints:
        (C1) logits are one row, and ids are integers in the vocabulary.
        (C2) a bias is a number below +inf.
    Source: OpenAI API reference, logit_bias.

    >>> logit_bias(np.array([2.0, 2.0, 2.0]), {0: -np.inf, 2: 1.0})
    array([-inf,   2.,   3.])
    """
    require(widen(logits).ndim == 1, "C1", f"logits are one row, got shape {logits.shape}")
    biased = logits.astype(np.float64)
    for token_id, value in dict(bias).items():
        whole = isinstance(token_id, int | np.integer) and not isinstance(token_id, bool)  # as an index, True is a mask
        inside = whole and 0 <= token_id < len(biased)
        require(inside, "C1", f"biased ids are integers in [0, {len(biased)}), got {token_id!r}")
        require(value < np.inf, "C2", f"a bias is a number below +inf, got {value} for token {token_id}")
        biased[token_id] += value
    return _round(biased, logits.dtype)
