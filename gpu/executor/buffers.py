"""The buffers of the CUDA executor, made once, and what a step puts into them."""

from typing import NamedTuple

import numpy as np

from gpu import device
from gpu.efficient.paged import parts_for
from gpu.efficient.paged_kernels import SPLIT
from gpu.executor.paged import BLOCK_SIZE
from gpu.executor.plan import CHUNK, Segment
from refimpl.contract import Array
from refimpl.efficient.allocator import blocks_for
from refimpl.llm.position import rope_table
from refimpl.llm.rope_scaling import rope_frequencies
from refimpl.models.spec import MlpSpec, ModelSpec, RopeSpec

__all__ = ["Buffers", "Step"]

_LOGIT_ROWS = 16  # rows of the vocabulary's size that are held at once


class Step(NamedTuple):
    """The leading rows of the buffers that one step uses: T tokens of R sequences."""

    x: Array
    normed: Array
    aside: Array  # what the network of a parallel layer reads
    fed: Array  # what is normalised or scaled before it is added to x
    q: Array
    k: Array
    v: Array
    mixed: Array
    ropes: dict[RopeSpec, tuple[Array, Array]]  # cosines and sines of every rotation
    growth: dict[tuple[float, float], Array]  # of queries, by AttentionSpec.temperature
    ids: Array
    positions: Array
    slots: Array
    tables: Array
    lengths: Array
    bounds: Array
    parts: tuple[Array, Array]


class Buffers:
    """Room for a step of CHUNK tokens; tables for sequences of ``longest``."""

    def __init__(self, spec: ModelSpec, longest: int) -> None:
        self.spec, self.blocks = spec, blocks_for(longest, BLOCK_SIZE)

        def floats(*shape: int) -> Array:
            return device.empty((CHUNK, *shape), "float32")

        self.x, self.normed, self.aside, self.fed = (floats(spec.hidden_size) for _ in range(4))
        self.q, self.mixed = floats(spec.num_heads, spec.head_dim), floats(spec.num_heads, spec.head_dim)
        self.k, self.v = floats(spec.num_kv_heads, spec.head_dim), floats(spec.num_kv_heads, spec.head_dim)
        networks = [layer.network for layer in spec.layers if isinstance(layer.network, MlpSpec)]
        self._gate = floats(max((each.size for each in networks if each.gated), default=0)).reshape(-1)
        self._up = floats(max((each.size for each in networks), default=0)).reshape(-1)
        self.ropes = {rope: (floats(rope.dim // 2), floats(rope.dim // 2)) for rope in spec.ropes}
        self.growth = {each.temperature: floats() for each in spec.mixers if each.temperature is not None}
        self.picked = device.empty((_LOGIT_ROWS, spec.hidden_size), "float32")
        self.logits = device.empty((_LOGIT_ROWS, spec.vocab_size), "float32")
        self.ids, self.positions, self.slots = (device.empty((CHUNK,), "int32") for _ in range(3))
        self.tables = device.empty((CHUNK, self.blocks), "int32")
        self.parts = parts_for(CHUNK, CHUNK, spec.num_heads, spec.num_kv_heads, spec.head_dim, longest)
        self.lengths, self.bounds = device.empty((CHUNK,), "int32"), device.empty((CHUNK + 1,), "int32")

    def fill(self, segments: list[Segment]) -> Step:
        """Copy what a step reads to the device."""
        ids = np.concatenate([segment.ids for segment in segments])
        spans = [np.arange(segment.start, segment.start + len(segment.ids)) for segment in segments]
        tables = np.full((len(segments), self.blocks), -1, np.int32)
        for row, segment in zip(tables, segments, strict=True):
            row[: len(segment.sequence.blocks)] = segment.sequence.blocks
        places = zip(tables, spans, strict=True)
        slots = [row[span // BLOCK_SIZE] * BLOCK_SIZE + span % BLOCK_SIZE for row, span in places]
        lengths = [int(span[-1]) + 1 for span in spans]
        bounds = np.cumsum([0, *map(len, spans)])
        T, R = len(ids), len(segments)
        for buffer, values in (
            (self.ids[:T], ids), (self.positions[:T], np.concatenate(spans)), (self.slots[:T], np.concatenate(slots)),
            (self.tables[:R], tables), (self.lengths[:R], lengths), (self.bounds[: R + 1], bounds),
        ):  # fmt: skip
            buffer[...] = device.array(np.asarray(values), np.int32)
        self._fill_tables(segments, spans, T)
        splits = blocks_for(max(lengths), SPLIT)
        others = {"tables": self.tables[:R], "lengths": self.lengths[:R], "bounds": self.bounds[: R + 1]}
        others["parts"] = tuple(part[:splits] for part in self.parts)
        others["ropes"] = {rope: (cos[:T], sin[:T]) for rope, (cos, sin) in self.ropes.items()}
        others["growth"] = {temperature: factors[:T] for temperature, factors in self.growth.items()}
        return Step(**others, **{name: getattr(self, name)[:T] for name in Step._fields if name not in others})

    def wide(self, T: int, network: MlpSpec) -> tuple[Array, Array]:
        """Return the room for the wide layer of T tokens: of the gate, if there is one, and of what it gates."""
        size, gated = network.size, network.size * network.gated
        return self._gate[: T * gated].reshape(T, gated), self._up[: T * size].reshape(T, size)

    def _fill_tables(self, segments: list[Segment], spans: list[Array], T: int) -> None:
        for rope, buffers in self.ropes.items():
            tables = []
            for segment, span in zip(segments, spans, strict=True):
                inv_freq, factor = rope_frequencies(
                    rope.dim, rope.theta, scaling=rope.scaling, seq_len=segment.rope_len, **dict(rope.params)
                )
                tables.append(rope_table(span, inv_freq, factor))
            for buffer, table in zip(buffers, zip(*tables, strict=True), strict=True):
                buffer[:T] = device.array(np.concatenate(table), np.float32)
        for (floor, scale), factors in self.growth.items():
            times = np.floor((np.concatenate(spans) + 1.0) / floor)
            factors[:T] = device.array(1 + scale * np.log1p(times), np.float32)
