"""The CUDA executor: runs any ModelSpec with the kernels of ``gpu``, on a GPU or emulated, over a paged cache.

Eager: one launch a kernel, in stream order. Buffers are made at the start; what changes from step to step (ids,
positions, slots, block tables, lengths) is read by the kernels from device memory. Its face is that of CpuExecutor.
"""

import threading
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as Row
from typing import Any

import numpy as np

from gpu import device
from gpu.basics import activation
from gpu.basics.norm import layer_norm_into, rms_norm_into
from gpu.efficient.paged import paged_append_into, paged_attention_into
from gpu.executor.buffers import Buffers
from gpu.executor.matrices import DeviceWeights
from gpu.executor.paged import DeviceCache, DeviceSequence
from gpu.executor.plan import Segment, cut
from gpu.llm.embedding import embedding_into
from gpu.llm.position import learned_position_into, rope_append_into
from refimpl.contract import Array, Float, UsageError, require
from refimpl.llm.quantize import Tensor
from refimpl.models.spec import ModelSpec

__all__ = ["CudaExecutor"]

_SEQUENCES = 8  # contexts that the cache holds
_TOKENS = 1 << 16  # and the most tokens, if one context is not more


class CudaExecutor:
    """A model ready to run on ``device_name``, cuda or emulated; the other arguments are those of CpuExecutor."""

    def __init__(
        self, spec: ModelSpec, weights: Mapping[str, Tensor], device_name: str, *, dtype: str | None = None,
        context: int | None = None, capacity: int | None = None,
    ) -> None:  # fmt: skip
        self.spec, self.context = spec, spec.max_positions if context is None else context
        if self.context < 1 or (spec.rope is None and self.context > spec.max_positions):
            raise UsageError(f"a context of {self.context} tokens; the model has {spec.max_positions} positions")
        self.device = device_name
        with device.use(device_name):
            self.weights = DeviceWeights(weights, dtype)
            usual = max(self.context, min(_SEQUENCES * self.context, _TOKENS))
            self.cache = DeviceCache(spec, usual if capacity is None else capacity)
            fixed = context is not None or spec.rope is None
            self.longest = self.context if fixed else max(self.context, self.cache.tokens)
            self._buffers = Buffers(spec, self.longest)
        self._lock = threading.RLock()  # a step may be where Python drops a generator that frees its sequence

    def new_sequence(self, longest: int | None = None, prompt_length: int = 0) -> DeviceSequence:
        """Begin a sequence of at most ``longest`` tokens, None: the context."""
        longest = self.context if longest is None else longest
        if not 1 <= longest <= self.longest:
            holder = "context" if self.longest == self.context else "cache"
            raise UsageError(f"a sequence of {longest} tokens: the {holder} holds from 1 to {self.longest}")
        return DeviceSequence(self.cache, longest, prompt_length)

    def free(self, sequence: DeviceSequence) -> None:
        """Give a sequence's blocks back; a second time does nothing."""
        with self._lock:
            self.cache.release(sequence)

    def step(self, items: Row[tuple[DeviceSequence, Row[int] | Array]]) -> Float[Array, "R V"]:
        """Append ids to each sequence, and return the logits after the last id of each.

        Constraints:
            (C1) at least one sequence, each once and open, with at least one id.
            (C2) every id is in the vocabulary.
        """
        known = [(sequence, self._checked(ids)) for sequence, ids in items]
        require(len({id(sequence) for sequence, _ in known}) == len(known) > 0, "C1", "a step takes a sequence once")
        logits = np.empty((len(known), self.spec.vocab_size), np.float32)
        with self._lock:
            require(not any(sequence.closed for sequence, _ in known), "C1", "a step takes open sequences")
            for sequence, ids in known:
                self.cache.extend(sequence, sequence.length + len(ids))
            for segments in cut(known):
                x = self._run(segments)
                ends = np.cumsum([len(segment.ids) for segment in segments]) - 1
                wanted = [(segment.result, end) for segment, end in zip(segments, ends, strict=True)]
                self._project(x, [(result, end) for result, end in wanted if result >= 0], logits)
        return logits

    def logits(self, ids: Row[int] | Array) -> Float[Array, "T V"]:
        """Return the logits at every position of a text of its own."""
        logits = np.empty((len(ids), self.spec.vocab_size), np.float32)
        for segments in self._whole(ids):
            (segment,) = segments
            x = self._run(segments)
            self._project(x, [(segment.start + row, row) for row in range(len(x))], logits)
        return logits

    def hidden_states(self, ids: Row[int] | Array) -> list[Float[Array, "T D"]]:
        """Return L + 1 arrays: the embeddings, then the output of every layer, the last after the final norm."""
        parts: list[list[Array]] = []
        for segments in self._whole(ids):
            states: list[Array] = []
            last = self._run(segments, lambda x, states=states: states.append(device.to_host(x).copy()))
            with device.use(self.device):
                parts.append([*states[:-1], device.to_host(self._normed(last)).copy()])
        return [np.concatenate(layer) for layer in zip(*parts, strict=True)]

    def close(self) -> None:
        """Nothing runs on: there is nothing to end."""

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
            yield from cut([(sequence, known)])
        finally:
            self.free(sequence)

    def _run(self, segments: list[Segment], watch: Callable[[Array], None] = lambda x: None) -> Array:
        """Run a step through all layers; return its tokens before the final norm. ``watch`` sees every state."""
        with self._lock, device.use(self.device):
            step = self._buffers.fill(segments)
            self.weights.matrices["embedding"].look_up(step.x, step.ids)
            if self.spec.rope is None:
                learned_position_into(step.x, step.x, step.positions, self.weights.vectors["position_embedding"])
            watch(step.x)
            for layer in range(self.spec.num_layers):
                self._attend(step, layer)
                self._feed_forward(step, layer)
                watch(step.x)
        for segment in segments:
            segment.sequence.length = segment.start + len(segment.ids)
        return step.x

    def _attend(self, step: Any, layer: int) -> None:
        spec, prefix = self.spec, f"layers.{layer}."
        self._norm(step.normed, step.x, prefix + "attention_norm")
        for name, out in (("w_q", step.q), ("w_k", step.k), ("w_v", step.v)):
            self.weights.matrices[prefix + name].multiply(out.reshape(len(out), -1), step.normed)
        caches, vectors = (self.cache.k[layer], self.cache.v[layer]), self.weights.vectors
        if spec.rope is None:
            paged_append_into(*caches, step.k, step.v, step.slots)
        else:
            rope_append_into(
                step.q, *caches, step.q, step.k, step.v, step.cos, step.sin, step.slots,
                interleaved=spec.rope.interleaved, q_gain=vectors.get(prefix + "q_norm.gain"),
                k_gain=vectors.get(prefix + "k_norm.gain"), eps=spec.norm_eps,
            )  # fmt: skip
        places = step.tables, step.lengths, step.bounds
        paged_attention_into(step.mixed, step.q, *caches, *places, parts=step.parts, window=spec.windows[layer])
        mixed = step.mixed.reshape(len(step.mixed), -1)
        self.weights.matrices[prefix + "w_o"].multiply(step.x, mixed, residual=step.x)

    def _feed_forward(self, step: Any, layer: int) -> None:
        prefix, matrices = f"layers.{layer}.", self.weights.matrices
        self._norm(step.normed, step.x, prefix + "mlp_norm")
        matrices[prefix + "w_up"].multiply(step.up, step.normed)
        if self.spec.gated:
            matrices[prefix + "w_gate"].multiply(step.gate, step.normed)
            activation.gated_into(step.up, step.gate, step.up, self.spec.activation)
        else:
            getattr(activation, f"{self.spec.activation}_into")(step.up, step.up)
        matrices[prefix + "w_down"].multiply(step.x, step.up, residual=step.x)

    def _norm(self, out: Array, x: Array, name: str) -> None:
        gain, vectors = self.weights.vectors[name + ".gain"], self.weights.vectors
        if self.spec.norm == "rms":
            rms_norm_into(out, x, gain, self.spec.norm_eps)
        else:
            layer_norm_into(out, x, gain, vectors.get(name + ".bias"), self.spec.norm_eps)

    def _normed(self, x: Array) -> Array:
        normed = self._buffers.normed[: len(x)]
        self._norm(normed, x, "final_norm")
        return normed

    def _project(self, x: Array, wanted: Row[tuple[int, int]], logits: Array) -> None:
        """Write the logits of rows of ``x``, for each (row of the result, row of x)."""
        room = self._buffers
        with self._lock, device.use(self.device):
            for first in range(0, len(wanted), len(room.logits)):
                results, rows = zip(*wanted[first : first + len(room.logits)], strict=True)
                picked, scores = room.picked[: len(rows)], room.logits[: len(rows)]
                embedding_into(picked, device.array(np.array(rows), np.int32), x)
                self._norm(picked, picked, "final_norm")
                self.weights.matrices["lm_head"].multiply(scores, picked)
                logits[list(results)] = device.to_host(scores)
