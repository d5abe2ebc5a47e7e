"""Speculative decoding: a cheap draft proposes tokens, and one pass of the model judges them all.

Two rules decide which proposals stay. ``speculative_sample`` accepts and corrects, so that what comes out has the law
of the model whatever the draft's own law is (Leviathan). ``speculate`` draws each token as without a draft, by the
noise of its position, and keeps proposals while they are what was drawn: the very same text, only sooner. Where a draft
proposes its likeliest token, both keep it with the same probability.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from refimpl.contract import Array, Float, Int, host, op, require, widen, within
from refimpl.llm.generate import Reply, Token
from refimpl.llm.sampler import draw

__all__ = [
    "Propose", "Verify", "accepted_length", "judge_draft", "ngram_draft", "residual_probs", "speculate",
    "speculative_sample",
]

Propose: TypeAlias = Callable[[Sequence[int], int], list[int]]
"""From the ids so far, and how many are wanted at most, to ids that may follow."""

Verify: TypeAlias = Callable[[int, list[int], int], Array]
"""Forget all tokens but so many, append ids, and return the logits after so many of them, the last ones."""


@op
def accepted_length(
    probs: Float[Array, "draft V"], draft_probs: Float[Array, "draft V"], ids: Int[Array, " draft"],
    noise: Float[Array, " draft"],
) -> int:
    """Count the drafted tokens that stay: those before the first that is rejected.

    Math: min {j : u_j q_j(x_j) >= p_j(x_j)}, or ``draft`` if there is none, where p are the model's probabilities, q
        those that the draft drew the tokens x from, u the noise: token j stays with probability min(1, p / q).
    Cost: 1 flop and two reads a token.
    Numerics: the product in float64. What the model gives probability 0 never stays, whatever the noise.
    Constraints:
        (C1) probabilities, ids and noise are those of one draft.
        (C2) ids are integers in the vocabulary.
        (C3) the noise is in [0, 1).
    Source: Leviathan, Kalman, Matias, Fast inference from transformers via speculative decoding, 2023, algorithm 1.

    >>> p, q = np.array([[0.5, 0.5], [0.1, 0.9]]), np.array([[0.5, 0.5], [0.8, 0.2]])
    >>> accepted_length(p, q, np.array([1, 0]), np.array([0.9, 0.2]))
    1
    """
    fits = probs.ndim == 2 and probs.shape == draft_probs.shape and (len(probs),) == ids.shape == noise.shape
    require(fits, "C1", f"not of one draft: {probs.shape}, {draft_probs.shape}, {ids.shape}, {noise.shape}")
    require(within(ids, probs.shape[1]), "C2", f"ids are integers in the vocabulary 0..{probs.shape[1] - 1}")
    require(bool(((noise >= 0) & (noise < 1)).all()), "C3", f"the noise is in [0, 1), got {noise}")
    row = np.arange(len(ids))
    p, q = (widen(each[row, ids]).astype(np.float64) for each in (probs, draft_probs))
    rejected = np.flatnonzero(noise.astype(np.float64) * q >= p)
    return int(rejected[0]) if rejected.size else len(ids)


@op
def residual_probs(probs: Float[Array, " V"], draft_probs: Float[Array, " V"]) -> Float[Array, " V"]:
    """Return the law of the token that takes the place of a rejected one.

    Math: r_i = max(p_i - q_i, 0) / sum_j max(p_j - q_j, 0); p itself where no p_i exceeds q_i.
        Then P(x) = min(p, q)(x) + (1 - sum min(p, q)) r(x) = p(x): the model's law is kept.
    Cost: 3 V flop; two reads, one write.
    Numerics: float32 or wider, one cast.
    Constraints:
        (C1) the two are one row each, of one width.
        (C2) probabilities are finite and not negative.
    Source: Leviathan, Kalman, Matias, 2023, algorithm 1 and appendix A.1.

    >>> residual_probs(np.array([0.5, 0.25, 0.25]), np.array([0.75, 0.0, 0.25]))
    array([0., 1., 0.])
    """
    require(probs.ndim == 1 and probs.shape == draft_probs.shape, "C1", f"not rows: {probs.shape}, {draft_probs.shape}")
    p, q = widen(probs), widen(draft_probs)
    fair = bool(np.isfinite(p).all() and np.isfinite(q).all() and (p >= 0).all() and (q >= 0).all())
    require(fair, "C2", "probabilities are finite and not negative")
    left = np.maximum(p - q, 0)
    total = left.sum()
    return (left / total if total > 0 else p).astype(probs.dtype, copy=False)


@host
def speculative_sample(
    probs: Float[Array, "more V"], draft_probs: Float[Array, "draft V"], ids: Int[Array, " draft"],
    noise: Float[Array, " more"],
) -> list[int]:
    """Return the drafted tokens that stay, and one more: the correction of the first that does not, or the next.

    ``probs`` and ``noise`` have one row more than the draft. The noise u of a rejected token is known to lie between
    p / q and 1, so (u - p / q) / (1 - p / q) is noise again, and draws the correction.

    >>> p, q = np.array([[0.5, 0.5], [0.1, 0.9], [1.0, 0.0]]), np.array([[0.5, 0.5], [0.8, 0.2]])
    >>> speculative_sample(p, q, np.array([1, 0]), np.array([0.9, 0.2, 0.7]))
    [1, 1]
    """
    count = accepted_length(probs[:-1], draft_probs, ids, noise[:-1])
    kept = [int(i) for i in ids[:count]]
    if count == len(ids):
        return [*kept, draw(probs[-1], float(noise[-1]))]
    p, q = float(probs[count, ids[count]]), float(draft_probs[count, ids[count]])
    ratio = p / q if q > 0 else 0.0
    rest = (float(noise[count]) - ratio) / (1 - ratio)
    return [*kept, draw(residual_probs(probs[count], draft_probs[count]), min(max(rest, 0.0), 1 - 2**-53))]


@host
def ngram_draft(ids: Sequence[int], most: int, longest: int = 4, shortest: int = 2) -> list[int]:
    """Propose what followed the last time that the text went as it ends now: a draft without a model.

    The last ``longest`` ids are looked for, then fewer, down to ``shortest``; of several places the latest counts. A
    copy may run into itself, so that a text that repeats goes on repeating.

    Source: Saxena, Prompt lookup decoding, 2023.

    >>> ngram_draft([5, 6, 7, 8, 5, 6, 7], 3), ngram_draft([1, 1, 1], 4), ngram_draft([1, 2, 3], 4)
    ([8, 5, 6], [1, 1, 1, 1], [])
    """
    text = np.asarray(ids)
    for n in range(min(longest, len(text) - 1), shortest - 1, -1):
        places = len(text) - n  # where the pattern may begin, without the end itself
        same = np.logical_and.reduce([text[i : i + places] == text[len(text) - n + i] for i in range(n)])
        if same.any():
            copied = [int(i) for i in text[np.flatnonzero(same)[-1] + n :]]
            return [copied[i % len(copied)] for i in range(most)]
    return []


@host
def judge_draft(reply: Reply, logits: Float[Array, "more V"], draft: Sequence[int]) -> Iterator[Token]:
    """Take the tokens of one pass: drawn one by one, until one is not the draft's, or the reply ends."""
    for row, guess in zip(logits, [*draft, -1], strict=True):
        token = reply.take(row)
        yield replace(token, drafted=token.id == guess)
        if reply.ended is not None or token.id != guess:
            return


@host
def speculate(reply: Reply, verify: Verify, propose: Propose, most: int) -> Iterator[Token]:
    """Generate a reply by drafts of at most ``most`` tokens: the tokens of ``generate``, in fewer passes.

    >>> def verify(kept, ids, wanted):   # a model that counts
    ...     return np.eye(9)[(np.array(ids[-wanted:]) + 1) % 9]
    >>> reply = Reply([0, 1], context=16, max_tokens=4)
    >>> [(t.id, t.drafted) for t in speculate(reply, verify, lambda ids, most: [ids[-1] + 1, 0][:most], 2)]
    [(2, True), (3, False), (4, True), (5, False)]
    """
    while reply.ended is None:
        known = [*reply.prompt, *reply.output]
        draft = propose(known, min(most, reply.room - 1)) if reply.room > 1 else []
        logits = verify(len(known) - len(reply.pending), [*reply.pending, *draft], len(draft) + 1)
        yield from judge_draft(reply, logits, draft)
