"""The CUDA executor: runs any ModelSpec with the kernels of ``gpu``, on a GPU or emulated, over a paged cache.

Eager: one launch a kernel, in stream order. Buffers are made at the start; what changes from step to step (ids,
positions, slots, block tables, lengths) is read by the kernels from device memory. Its face is that of CpuExecutor.
"""

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Row

import numpy as np

from gpu import device
from gpu.basics import activation
from gpu.basics.gated import gated_into
from gpu.basics.norm import layer_norm_into, rms_norm_into
from gpu.efficient.paged import paged_append_into, paged_attention_into
from gpu.executor.base import Executor
from gpu.executor.buffers import Buffers, Step
from gpu.executor.matrices import DeviceWeights, Matrix
from gpu.executor.mixture import Mixtures
from gpu.executor.paged import DeviceCache, DeviceSequence
from gpu.executor.plan import Segment
from gpu.executor.stream import add_scaled_into, cap_into, grow_into
from gpu.llm.embedding import embedding_into
from gpu.llm.position import learned_position_into, rope_append_into
from refimpl.contract import Array, Float
from refimpl.models.spec import AttentionSpec, LayerSpec, MlpSpec, ModelSpec, MoeSpec
from refimpl.models.tensor import Tensor

__all__ = ["CudaExecutor"]

_SEQUENCES = {"cuda": 8, "emulated": 2}  # contexts that the cache holds
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
            self.weights = DeviceWeights(spec, weights, dtype)
            usual = max(self.context, min(_SEQUENCES[device_name] * self.context, _TOKENS))
            self._take(DeviceCache(spec, usual if capacity is None else capacity), context)
            self._buffers, self._mixtures = Buffers(spec, self.longest), Mixtures(spec, self.weights)

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
            if self.spec.embedding_scale != 1:
                cap_into(step.x, step.x, self.spec.embedding_scale)
            if self.spec.learned_positions:
                learned_position_into(step.x, step.x, step.positions, self.weights.vectors["position_embedding"])
            watch(step.x)
            for number, layer in enumerate(self.spec.layers):
                self._run_layer(step, number, layer)
                watch(step.x)
        for segment in segments:
            segment.sequence.length = segment.start + len(segment.ids)
        return step.x

    def _run_layer(self, step: Step, number: int, layer: LayerSpec) -> None:
        prefix = f"layers.{number}."
        read = self._norm(step.normed, step.x, prefix + "attention_norm")
        aside = self._norm(step.aside, step.x, prefix + "mlp_norm") if layer.norms == "parallel" else None
        self._attend(step, number, layer.mixer, read)
        mixed = step.mixed.reshape(len(step.mixed), -1)
        self._add(step, self.weights.matrices[prefix + "w_o"], mixed, prefix + "attention_post_norm")
        read = self._norm(step.normed, step.x, prefix + "mlp_norm") if aside is None else aside
        if isinstance(layer.network, MoeSpec):
            self._mixtures.run(step.fed, read, layer.network, prefix)
            self._add_fed(step, prefix + "mlp_post_norm")
        else:
            self._feed_forward(step, layer.network, prefix, read)

    def _attend(self, step: Step, number: int, mixer: AttentionSpec, read: Array) -> None:
        """Write what the heads mix of the keys and values so far, those of this step included."""
        prefix, vectors = f"layers.{number}.", self.weights.vectors
        caches = self.cache.k[number], self.cache.v[number]
        for name, out in (("w_q", step.q), ("w_k", step.k), ("w_v", step.v)):
            self.weights.matrices[prefix + name].multiply(out.reshape(len(out), -1), read)
        fused = mixer.qk_norm == "head" and mixer.rope is not None and self.spec.norm == "rms"
        for name, heads in () if fused else (("q", step.q), ("k", step.k)):
            rows = heads.reshape(len(heads), -1) if mixer.qk_norm == "row" else heads
            self._norm(rows, rows, f"{prefix}{name}_norm")
        if mixer.rope is None:
            paged_append_into(*caches, step.k, step.v, step.slots)
        else:
            gains = {f"{name}_gain": vectors[f"{prefix}{name}_norm.gain"] if fused else None for name in "qk"}
            rope_append_into(
                step.q, *caches, step.q, step.k, step.v, *step.ropes[mixer.rope], step.slots,
                interleaved=mixer.rope.interleaved, **gains, eps=self.spec.norm_eps,
            )  # fmt: skip
        if mixer.temperature is not None:
            grow_into(step.q, step.growth[mixer.temperature])
        paged_attention_into(
            step.mixed, step.q, *caches, step.tables, step.lengths, step.bounds, parts=step.parts, scale=mixer.scale,
            window=mixer.window, softcap=mixer.softcap, sinks=vectors.get(prefix + "sinks"), chunk=mixer.chunk,
        )  # fmt: skip

    def _feed_forward(self, step: Step, network: MlpSpec, prefix: str, read: Array) -> None:
        matrices, (gate, up) = self.weights.matrices, self._buffers.wide(len(step.x), network)
        matrices[prefix + "w_up"].multiply(up, read)
        if network.gated:
            matrices[prefix + "w_gate"].multiply(gate, read)
            gated_into(up, gate, up, network.activation)
        else:
            getattr(activation, f"{network.activation}_into")(up, up)
        self._add(step, matrices[prefix + "w_down"], up, prefix + "mlp_post_norm")

    def _add(self, step: Step, matrix: Matrix, given: Array, norm: str) -> None:
        """Add to the tokens what a matrix makes of ``given``, normalised and scaled if the model says so."""
        if self.spec.residual_scale == 1 and norm + ".gain" not in self.weights.vectors:
            matrix.multiply(step.x, given, residual=step.x)
        else:
            matrix.multiply(step.fed, given)
            self._add_fed(step, norm)

    def _add_fed(self, step: Step, norm: str) -> None:
        add_scaled_into(step.x, step.x, self._norm(step.fed, step.fed, norm), self.spec.residual_scale)

    def _norm(self, out: Array, x: Array, name: str) -> Array:
        """Return ``out`` with the norm of that name, or ``x`` where the model has none."""
        vectors = self.weights.vectors
        gain = vectors.get(name + ".gain")
        if gain is None:
            return x
        if self.spec.norm == "rms":
            rms_norm_into(out, x, gain, self.spec.norm_eps)
        else:
            layer_norm_into(out, x, gain, vectors.get(name + ".bias"), self.spec.norm_eps)
        return out

    def _normed(self, x: Array) -> Array:
        return self._norm(self._buffers.normed[: len(x)], x, "final_norm")

    def _project(self, x: Array, wanted: Row[tuple[int, int]], logits: Array) -> None:
        """Write the logits of rows of ``x``, for each (row of the result, row of x)."""
        room, spec = self._buffers, self.spec
        with self._lock, device.use(self.device):
            for first in range(0, len(wanted), len(room.logits)):
                results, rows = zip(*wanted[first : first + len(room.logits)], strict=True)
                picked, scores = room.picked[: len(rows)], room.logits[: len(rows)]
                embedding_into(picked, device.array(np.array(rows), np.int32), x)
                self._norm(picked, picked, "final_norm")
                self.weights.matrices["lm_head"].multiply(scores, picked)
                if spec.logit_scale != 1 or spec.logit_softcap is not None:
                    cap_into(scores, scores, spec.logit_scale, spec.logit_softcap)
                logits[list(results)] = device.to_host(scores)
