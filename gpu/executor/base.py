"""What every executor does with sequences, ids and steps; a subclass sets ``cache`` and runs segments."""

import threading
from collections.abc import Iterator
from collections.abc import Sequence as Row
from typing import Any

import numpy as np

from gpu.executor.plan import Segment, cut
from refimpl.contract import Array, Float, UsageError, require
from refimpl.models.spec import ModelSpec

__all__ = ["Executor"]


class Executor:
    """Sequences over a cache, ``longest`` being the most tokens of one; steps of several threads take turns."""

    cache: Any
    longest: int
    sequence: type  # of the cache: made of the cache, the most tokens, and the length of the prompt

    def __init__(self, spec: ModelSpec, context: int | None) -> None:
        self.spec, self.context = spec, spec.max_positions if context is None else context
        if self.context < 1 or (spec.learned_positions and self.context > spec.max_positions):
            raise UsageError(f"a context of {self.context} tokens; the model has {spec.max_positions} positions")
        self._lock = threading.RLock()  # a step may be where Python drops a generator that frees its sequence

    def _take(self, cache: Any, context: int | None) -> None:
        """Keep a cache; if no context is asked, a model without a table of positions takes what the cache holds."""
        fixed = context is not None or self.spec.learned_positions
        self.cache, self.longest = cache, self.context if fixed else max(self.context, cache.tokens)

    def new_sequence(self, longest: int | None = None, prompt_length: int = 0) -> Any:
        """Begin a sequence of at most ``longest`` tokens, None: the context.

        A caller that cuts its prompt in pieces tells ``prompt_length``: scalings of RoPE by length see the whole.
        """
        longest = self.context if longest is None else longest
        if not 1 <= longest <= self.longest:
            holder = "context" if self.longest == self.context else "cache"
            raise UsageError(f"a sequence of {longest} tokens: the {holder} holds from 1 to {self.longest}")
        return self.sequence(self.cache, longest, prompt_length)

    def free(self, sequence: Any) -> None:
        """Give what a sequence holds back; a second time does nothing."""
        with self._lock:
            self.cache.release(sequence)

    def rewind(self, sequence: Any, length: int) -> None:
        """Forget all tokens of a sequence but the first ``length``; it keeps its pages."""
        require(0 <= length <= sequence.length, "C1", f"a rewind from {sequence.length} tokens to {length}")
        sequence.length = length

    def step(
        self, items: Row[tuple[Any, Row[int] | Array]], wanted: Row[int] | None = None
    ) -> Float[Array, "rows V"]:
        """Append ids to each sequence, and return the logits after the last id of each, or after the last ``wanted``.

        Constraints:
            (C1) at least one sequence, each once and open, with at least one id.
            (C2) every id is in the vocabulary.
            (C3) from 1 to all ids of a sequence are wanted.
        """
        counts = [1] * len(items) if wanted is None else wanted
        known = [(sequence, self._checked(ids), count) for (sequence, ids), count in zip(items, counts, strict=True)]
        require(len({id(sequence) for sequence, *_ in known}) == len(known) > 0, "C1", "a step takes a sequence once")
        require(all(1 <= count <= len(ids) for _, ids, count in known), "C3", f"logits after {counts} ids are wanted")
        logits = np.empty((sum(counts), self.spec.vocab_size), np.float32)
        with self._lock:
            require(not any(sequence.closed for sequence, *_ in known), "C1", "a step takes open sequences")
            for sequence, ids, _ in known:
                self.cache.extend(sequence, sequence.length + len(ids))
            for segments in cut(known):
                self._answer(segments, logits)
        return logits

    def _answer(self, segments: list[Segment], logits: Array) -> None:
        """Run a step, and write the logits of the segments that end an item."""
        raise TypeError(f"{type(self).__name__} runs no steps")

    def _checked(self, ids: Row[int] | Array) -> Array:
        array = np.asarray(ids)
        require(array.ndim == 1 and array.size > 0, "C1", "a step takes a list of ids, one at least")
        inside = array.dtype.kind in "iu" and array.min() >= 0 and array.max() < self.spec.vocab_size
        require(bool(inside), "C2", f"ids are whole numbers in 0..{self.spec.vocab_size - 1}")
        return array

    def _whole(self, ids: Row[int] | Array) -> Iterator[list[Segment]]:
        """Yield the steps of a text in a sequence that lives as long."""
        known = self._checked(ids)
        sequence = self.new_sequence(len(known))
        try:
            with self._lock:
                self.cache.extend(sequence, len(known))
            yield from cut([(sequence, known, 1)])
        finally:
            self.free(sequence)
