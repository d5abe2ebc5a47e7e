"""The CPU executor: runs any ModelSpec over packed weights and a paged cache.

    executor = CpuExecutor(spec, weights)
    sequence = executor.new_sequence()
    logits = executor.step([(sequence, prompt_ids)])        # prefill, in chunks
    logits = executor.step([(sequence, [next_id]), ...])    # decode, alone or with others: the same bits
"""

import os
from collections.abc import Mapping
from collections.abc import Sequence as Row

import numpy as np

from gpu.executor.base import Executor
from gpu.executor.cache import PagedCache, Sequence
from gpu.executor.jit import compile_now, is_cold
from gpu.executor.plan import Plan, Segment
from gpu.executor.step import PHASES_PER_LAYER, run_step
from gpu.executor.threads import Pool
from gpu.executor.weights import Weights
from gpu.executor.workspace import Workspace, memory_bytes, scratch_bytes, usual_capacity
from refimpl.contract import Array, Float, UsageError, host
from refimpl.models.spec import ModelSpec
from refimpl.models.tensor import Tensor

__all__ = ["CpuExecutor", "first_step_compiles", "memory_bytes"]


def _cores() -> int:
    """Return the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@host
def first_step_compiles() -> bool:
    """Say whether the first step will compile for a while, since no machine code is stored yet."""
    return is_cold(run_step)


def _reserve(spec: ModelSpec, context: int) -> PagedCache:
    """Return a cache for several contexts, or for one where the system refuses so much memory."""
    try:
        return PagedCache(spec, usual_capacity(spec, context))
    except UsageError:
        return PagedCache(spec, context)


class CpuExecutor(Executor):
    """A model ready to run.

    ``context`` is the most tokens of a sequence; None: as many as the model was made for, but a rotary model takes a
    longer sequence where one is asked for. ``capacity`` is the most tokens of all sequences together. ``dtype``
    converts the matrices; None keeps them as they are stored. Threads may call it at the same time: their steps take
    turns.
    """

    sequence = Sequence

    def __init__(
        self, spec: ModelSpec, weights: Mapping[str, Tensor], *, threads: int | None = None,
        activations: str = "float32", dtype: str | None = None, context: int | None = None,
        capacity: int | None = None,
    ) -> None:  # fmt: skip
        if activations not in ("float32", "int8"):
            raise UsageError(f"activations are float32 or int8, not {activations!r}")
        if threads is not None and threads < 1:
            raise UsageError(f"threads are at least 1, got {threads}")
        super().__init__(spec, context)
        int8 = activations == "int8"
        self.weights = Weights(spec, weights, dtype, int8)
        self._take(_reserve(spec, self.context) if capacity is None else PagedCache(spec, capacity), context)
        self.threads = threads or _cores()
        self._plan = Plan(spec.num_heads // spec.num_kv_heads, spec.num_kv_heads, self.threads, self.context)
        self._pool = Pool(self.threads, PHASES_PER_LAYER * spec.num_layers + 4, scratch_bytes(spec))
        self._work = Workspace(spec, self.weights, self._plan, self._pool.teams, int8)

    def _answer(self, segments: list[Segment], logits: Array) -> None:
        first = max(0, next((segment.result for segment in segments if segment.result >= 0), 0))
        self._run(segments, logits=logits[first:])

    def logits(self, ids: Row[int] | Array) -> Float[Array, "T V"]:
        """Return the logits at every position of a text of its own."""
        logits = np.empty((len(ids), self.spec.vocab_size), np.float32)
        for segments in self._whole(ids):
            self._run(segments, logits=logits[segments[0].start :], every_row=True)
        return logits

    def hidden_states(self, ids: Row[int] | Array) -> list[Float[Array, "T D"]]:
        """Return L + 1 arrays: the embeddings, then the output of every layer, the last after the final norm."""
        parts = []
        for segments in self._whole(ids):
            parts.append(np.empty((self.spec.num_layers + 1, len(segments[0].ids), self.spec.hidden_size), np.float32))
            self._run(segments, states=parts[-1], every_row=True)
        return list(np.concatenate(parts, axis=1))

    def close(self) -> None:
        """End the threads; whatever is asked afterwards is refused."""
        with self._lock:
            self._pool.close()

    def _run(
        self, segments: list[Segment], *, logits: Array | None = None, states: Array | None = None,
        every_row: bool = False,
    ) -> None:  # fmt: skip
        """Run one step, which writes the wanted rows' logits to ``logits`` and all hidden states to ``states``."""
        plan = self._plan
        with self._lock:
            compile_now(run_step)
            plan.fill(segments, every_row)
            self._work.positions.fill(segments)
            self._work.set(
                tokens=plan.tokens, rows=plan.rows, tiles=plan.all.tiles.ctypes.data,
                merges=plan.all.merges.ctypes.data, tile_count=plan.all.tile_count, merge_count=plan.all.merge_count,
                last_tile_count=plan.last.tile_count, last_merge_count=plan.last.merge_count,
            )  # fmt: skip
            self._work.answer_to(None if plan.rows == 0 else logits, states)
            self._pool.run(run_step, self._work.address)
        for segment in segments:
            segment.sequence.length = segment.start + len(segment.ids)
