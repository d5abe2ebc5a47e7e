"""Drafts for replies: what a smaller model, or the text itself, proposes as the next tokens."""

from typing import TYPE_CHECKING, Any

from refimpl.contract import ContractError, UsageError, host
from refimpl.llm.generate import Reply
from refimpl.llm.sampler import sample, sampling_chain
from refimpl.llm.speculative import ngram_draft

if TYPE_CHECKING:
    from gpu.model import Model

__all__ = ["Drafts", "check_vocabulary"]


class _Pace:
    """How many tokens are worth proposing: a token that does not stay costs time, and a pass of several costs more.

    One more than stayed of the last proposal, twice as many where all stayed; none for a while where none did.
    """

    def __init__(self, most: int) -> None:
        self.most = self.size = most
        self.asked = self.proposed = self.resume = 0
        self.wait = 1

    def size_at(self, length: int) -> int:
        """Look at what became of the last proposal, and return how many tokens to propose after ``length``."""
        if self.proposed:
            kept = length - self.asked - 1
            self.wait = 1 if kept else min(2 * self.wait, 64)
            self.resume = length if kept else length + self.wait
            self.size = min(self.most, 2 * self.proposed if kept == self.proposed else kept + 1)
        return self.size if length >= self.resume else 0


class Drafts:
    """Proposals of at most ``most`` tokens for replies, from ``source``: a model, "ngram", or nothing.

    A model drafts with a sequence of its own for each reply. What the reply did not take is forgotten, and what it
    took instead is read, before the next proposal.
    """

    def __init__(self, source: "Model | str | None", most: int) -> None:
        self.source, self.most = source, most
        self._places: dict[int, Any] = {}  # of the draft model: by reply, a sequence and the ids that it holds
        self._paces: dict[int, _Pace] = {}

    def propose(self, number: int, reply: Reply) -> list[int]:
        """Return ids that may follow a reply, fewer than it has room for."""
        if self.source is None:
            return []
        known, pace = [*reply.prompt, *reply.output], self._paces.setdefault(number, _Pace(self.most))
        draft = self._draft(number, known, min(pace.size_at(len(known)), reply.room - 1))
        pace.asked, pace.proposed = len(known), len(draft)
        return draft

    def _draft(self, number: int, known: list[int], most: int) -> list[int]:
        if self.source is None or most < 1:
            return []
        if isinstance(self.source, str):
            return ngram_draft(known, most)
        try:
            return self._continue(self.source, number, known, min(most, self.source.context - len(known)))
        except (UsageError, ContractError):  # its cache is full, or a logit NaN: this reply goes on without
            self.free(number)
            return []

    def free(self, number: int) -> None:
        """Give back what a reply's drafts hold."""
        if number in self._places and self.source is not None and not isinstance(self.source, str):
            self.source.executor.free(self._places.pop(number)[0])

    def close(self) -> None:
        """Give back all."""
        for number in list(self._places):
            self.free(number)

    def _continue(self, source: "Model", number: int, known: list[int], most: int) -> list[int]:
        """Return the likeliest ids by the draft model, one after the other."""
        if most < 1:
            return []
        if number not in self._places:
            self._places[number] = source.executor.new_sequence(), []
        sequence, held = self._places[number]
        same = 0  # of the ids it holds; one at least is read anew, for its logits
        while same < min(len(held), len(known) - 1) and held[same] == known[same]:
            same += 1
        source.executor.rewind(sequence, same)
        pending, draft = known[same:], list[int]()
        while len(draft) < most:
            (logits,) = source.executor.step([(sequence, pending)])
            draft.append(sample(logits, (), (), sampling_chain(), 0.0))
            pending = draft[-1:]
        self._places[number] = sequence, [*known, *draft[:-1]]
        return draft


@host
def check_vocabulary(draft: "Model", model: "Model") -> None:
    """Refuse a draft whose ids mean other text."""
    sizes = draft.spec.vocab_size, model.spec.vocab_size
    if sizes[0] != sizes[1]:
        raise UsageError(f"the draft model has a vocabulary of {sizes[0]} tokens, the model one of {sizes[1]}")
    if draft.tokenizer is None or model.tokenizer is None:
        return
    ours, theirs = model.tokenizer.token_bytes, draft.tokenizer.token_bytes
    other = next((i for i in range(sizes[0]) if ours(i) != theirs(i)), None)
    if other is not None:
        raise UsageError(f"token {other} of the draft model is {theirs(other)!r}, of the model {ours(other)!r}")
