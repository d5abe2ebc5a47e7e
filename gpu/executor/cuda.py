"""The CUDA executor: runs any ModelSpec with the kernels of ``gpu``, on a GPU or emulated, over a paged cache.

Eager: one launch a kernel, in stream order. Buffers are made at the start; what changes from step to step (ids,
positions, slots, block tables, lengths) is read by the kernels from device memory. Its face is that of CpuExecutor.
"""

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Row
from typing import Any

import numpy as np

from gpu import device
from gpu.basics import activation
from gpu.basics.gated import gated_into
from gpu.basics.norm import layer_norm_into, rms_norm_into
from gpu.efficient.paged import paged_append_into, paged_attention_into
from gpu.executor.base import Executor
from gpu.executor.buffers import Buffers
from gpu.executor.matrices import DeviceWeights
from gpu.executor.paged import DeviceCache, DeviceSequence
from gpu.executor.plan import Segment
from gpu.llm.embedding import embedding_into
from gpu.llm.position import learned_position_into, rope_append_into
from refimpl.contract import Array, Float
from refimpl.models.spec import ModelSpec
from refimpl.models.tensor import Tensor

__all__ = ["CudaExecutor"]

_SEQUENCES = {"cuda": 8, "emulated": 1}  # contexts that the cache holds
_TOKENS = 1 << 16  # and the most tokens, if one context is not more


class CudaExecutor(Executor):
    """A model ready to run on ``device_name``, cuda or emulated; the other arguments are those of CpuExecutor."""

    sequence = DeviceSequence

    def __init__(
        self, spec: ModelSpec, weights: Mapping[str, Tensor], device_name: str, *, dtype: str | None = None,
        context: int | None = None, capacity: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__(spec, context)
        self.device = device_name
        with device.use(device_name):
            self.weights = DeviceWeights(weights, dtype)
            usual = max(self.context, min(_SEQUENCES[device_name] * self.context, _TOKENS))
            self._take(DeviceCache(spec, usual if capacity is None else capacity), context)
            self._buffers = Buffers(spec, self.longest)

    def _answer(self, segments: list[Segment], logits: Array) -> None:
        x = self._run(segments)
        ends = np.cumsum([len(segment.ids) for segment in segments]) - 1
        wanted = [(segment.result, end) for segment, end in zip(segments, ends, strict=True)]
        self._project(x, [(result, end) for result, end in wanted if result >= 0], logits)

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
            gated_into(step.up, step.gate, step.up, self.spec.activation)
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
