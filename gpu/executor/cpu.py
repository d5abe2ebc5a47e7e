"""The CPU executor: runs any ModelSpec over packed weights and a paged cache.

>>> from refimpl.llm.quantize import Tensor
"""

import os
import threading
from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Row
from typing import Any

import numpy as np

from refimpl.contract import Array, Float, UsageError, require
from refimpl.llm.position import rope_frequencies, rope_table
from refimpl.llm.quantize import Tensor
from refimpl.models.spec import ModelSpec

from gpu.executor.attention import BLOCK, PAGE, SPLIT
from gpu.executor.cache import PagedCache, Sequence, block_bytes, head_bytes, value_dim
from gpu.executor.elementary import ACTIVATIONS
from gpu.executor.jit import is_cold
from gpu.executor.linear import SCRATCH_BYTES
from gpu.executor.memory import aligned, row_bytes
from gpu.executor.plan import CHUNK, TILE_ROWS, Plan, Segment, cut
from gpu.executor.program import PROGRAM
from gpu.executor.step import PHASES_PER_LAYER, run_step
from gpu.executor.threads import Pool
from gpu.executor.weights import Weights

__all__ = ["CpuExecutor", "first_step_compiles", "memory_bytes"]


def _cores() -> int:
    """Return the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _scratch_bytes(spec: ModelSpec) -> int:
    """Return the bytes of a thread's scratch: a matrix's, or a tile of queries with its scores, parts and totals."""
    rows = max(TILE_ROWS, spec.num_heads // spec.num_kv_heads)
    attention = 4 * rows * (spec.head_dim + SPLIT + 2 * (value_dim(spec) + 32)) + 64
    return max(SCRATCH_BYTES, attention)


def first_step_compiles() -> bool:
    """Say whether the first step will compile for a while, since no machine code is stored yet."""
    return is_cold(run_step)


def _buffer_widths(spec: ModelSpec) -> dict[str, int]:
    """Return the floats of a token's row in each buffer of activations."""
    queries, keys = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    hidden, ffn = spec.hidden_size, spec.ffn_size
    return {
        "x": hidden, "normed": hidden, "q": queries, "k": keys, "v": keys, "mixed": queries, "gate": ffn, "up": ffn,
    }  # fmt: skip


def memory_bytes(spec: ModelSpec, weights: Mapping[str, Tensor], tokens: int) -> int:
    """Return the bytes of packed weights, activations, and a cache in which ``tokens`` tokens stand."""
    packed = sum(int(tensor.data.nbytes) for tensor in weights.values())
    buffers = CHUNK * sum(row_bytes(width) for width in _buffer_widths(spec).values())
    return packed + buffers + -(-tokens // (PAGE * BLOCK)) * block_bytes(spec)


class CpuExecutor:
    """A model ready to run.

    ``context`` is the most tokens of a sequence, ``capacity`` the most tokens of all sequences together. ``dtype``
    converts the matrices; None keeps them as they are stored. Threads may call it at the same time: their steps take
    turns.
    """

    def __init__(
        self, spec: ModelSpec, weights: Mapping[str, Tensor], *, threads: int | None = None,
        activations: str = "float32", dtype: str | None = None, context: int | None = None,
        capacity: int | None = None,
    ) -> None:  # fmt: skip
        if activations not in ("float32", "int8"):
            raise UsageError(f"activations are float32 or int8, not {activations!r}")
        if threads is not None and threads < 1:
            raise UsageError(f"threads are at least 1, got {threads}")
        self.spec, self.context = spec, context or spec.max_positions
        if not 0 < self.context <= (spec.max_positions if spec.rope is None else 1 << 40):
            raise UsageError(f"a context of {self.context} tokens; the model has {spec.max_positions} positions")
        self._int8 = activations == "int8"
        self.weights = Weights(spec, weights, dtype, self._int8)
        self.cache = PagedCache(spec, max(self.context, capacity or 0))
        group, splits = spec.num_heads // spec.num_kv_heads, -(-self.context // SPLIT)
        self.threads = threads or _cores()
        self._plan = Plan(group, spec.num_kv_heads, self.threads, splits)
        self._pool = Pool(self.threads, PHASES_PER_LAYER * spec.num_layers + 4, _scratch_bytes(spec))
        self._buffers: dict[str, Array] = {}
        self._rope = None if spec.rope is None else np.zeros((2, CHUNK, spec.rope.dim // 2), np.float32)
        self._lock = threading.Lock()
        self._program = np.zeros(1, PROGRAM)
        self._describe_model(group)
        self._describe_buffers(group)

    def _describe_model(self, group: int) -> None:
        spec, weights, program = self.spec, self.weights, self._program[0]
        for name, value in {
            "layers": spec.num_layers, "hidden": spec.hidden_size, "ffn": spec.ffn_size, "heads": spec.num_heads,
            "kv_heads": spec.num_kv_heads, "group": group, "head_dim": spec.head_dim, "value_dim": value_dim(spec),
            "rope_pairs": 0 if spec.rope is None else spec.rope.dim // 2,
            "interleaved": spec.rope is not None and spec.rope.interleaved,
            "layer_norm": spec.norm == "layer", "gated": spec.gated, "int8": self._int8, "activation": ACTIVATIONS.index(spec.activation),
            "eps": spec.norm_eps, "scale": spec.head_dim**-0.5,
            "layer_table": weights.layers.ctypes.data, "matrices": weights.matrices.ctypes.data,
            "final_gain": weights.vector("final_norm.gain"), "final_bias": weights.vector("final_norm.bias"),
            "position_table": weights.vector("position_embedding"), "position_stride": 4 * spec.hidden_size,
            "layer_bytes": spec.num_kv_heads * head_bytes(spec), "head_bytes": head_bytes(spec),
            "logits_stride": 4 * spec.vocab_size,
        }.items():  # fmt: skip
            program[name] = value

    def _describe_buffers(self, group: int) -> None:
        program, plan = self._program[0], self._plan
        for name, width in _buffer_widths(self.spec).items():
            self._buffers[name] = aligned(CHUNK * row_bytes(width))
            program[name], program[name + "_stride"] = self._buffers[name].ctypes.data, row_bytes(width)
        part = 4 * (value_dim(self.spec) + 32) * self.spec.num_heads
        self._buffers["parts"] = aligned(plan.max_parts * part)
        program["parts"], program["teams"] = self._buffers["parts"].ctypes.data, self._pool.teams.ctypes.data
        widest = max(_buffer_widths(self.spec).values()) if self._int8 else 0
        for name, size in {"codes": widest, "scales": widest // 8 + 4, "sums": widest // 8 + 4}.items():
            self._buffers[name] = aligned(CHUNK * size)
            program[name] = self._buffers[name].ctypes.data
        for name in ("ids", "positions", "tables", "wanted"):
            program[name] = getattr(plan, name).ctypes.data
        program["last_tiles"], program["last_merges"] = plan.last.tiles.ctypes.data, plan.last.merges.ctypes.data
        if self._rope is not None:
            program["cos"], program["sin"] = (table.ctypes.data for table in self._rope)
    def new_sequence(self, prompt_length: int = 0) -> Sequence:
        """Begin a sequence. A caller that cuts its prompt itself tells the prompt's length (see Sequence)."""
        return Sequence(np.zeros(-(-self.context // PAGE), np.int64), prompt_length)

    def free(self, sequence: Sequence) -> None:
        """Give a sequence's pages back; a second time does nothing."""
        with self._lock:
            self.cache.release(sequence)

    def step(self, items: Row[tuple[Sequence, Row[int] | Array]]) -> Float[Array, "R V"]:
        """Append ids to each sequence, and return the logits after the last id of each.

        Constraints:
            (C1) at least one sequence, each once and open, with at least one id.
            (C2) every id is in the vocabulary.
        """
        known = [(sequence, self._checked(sequence, ids)) for sequence, ids in items]
        require(len({id(sequence) for sequence, _ in known}) == len(known) > 0, "C1", "a step takes a sequence once")
        logits = np.empty((len(known), self.spec.vocab_size), np.float32)
        for sequence, ids in known:
            with self._lock:
                self.cache.extend(sequence, sequence.length + len(ids))
        for segments in cut(known):
            first = max(0, next((segment.result for segment in segments if segment.result >= 0), 0))
            self._run(segments, logits=logits[first:])
        return logits

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
        """End the threads."""
        self._pool.close()

    def _checked(self, sequence: Sequence, ids: Row[int] | Array) -> Array:
        array = np.asarray(ids)
        require(array.ndim == 1 and array.size > 0 and not sequence.closed, "C1", "an open sequence and at least one id")
        inside = array.dtype.kind in "iu" and array.min() >= 0 and array.max() < self.spec.vocab_size
        require(bool(inside), "C2", f"ids are whole numbers in 0..{self.spec.vocab_size - 1}")
        return array

    def _whole(self, ids: Row[int] | Array) -> Iterator[list[Segment]]:
        """Yield the steps of a text in a sequence that lives as long."""
        sequence = self.new_sequence()
        known = self._checked(sequence, ids)
        try:
            with self._lock:
                self.cache.extend(sequence, len(known))
            yield from cut([(sequence, known)])
        finally:
            self.free(sequence)

    def _run(
        self, segments: list[Segment], *, logits: Array | None = None, states: Array | None = None,
        every_row: bool = False,
    ) -> None:  # fmt: skip
        """Run one step, which writes the wanted rows' logits to ``logits`` and all hidden states to ``states``."""
        plan, program = self._plan, self._program[0]
        with self._lock:
            plan.fill(segments, every_row)
            self._fill_rope(segments)
            program["tokens"], program["rows"] = plan.tokens, plan.rows
            program["tiles"], program["merges"] = plan.all.tiles.ctypes.data, plan.all.merges.ctypes.data
            program["tile_count"], program["merge_count"] = plan.all.tile_count, plan.all.merge_count
            program["last_tile_count"], program["last_merge_count"] = plan.last.tile_count, plan.last.merge_count
            program["states"] = 0 if states is None else states.ctypes.data
            program["logits"] = 0 if logits is None or plan.rows == 0 else logits.ctypes.data
            self._pool.run(run_step, self._program.ctypes.data)
        for segment in segments:
            segment.sequence.length = segment.start + len(segment.ids)

    def _fill_rope(self, segments: list[Segment]) -> None:
        if self.spec.rope is None:
            return
        row, params = 0, dict(self.spec.rope.params)
        for segment in segments:
            count = len(segment.ids)
            inv_freq, factor = rope_frequencies(
                self.spec.rope.dim, self.spec.rope.theta, scaling=self.spec.rope.scaling, seq_len=segment.rope_len,
                **params,
            )
            positions = np.arange(segment.start, segment.start + count)
            self._rope[:, row : row + count] = rope_table(positions, inv_freq, factor)
            row += count
