"""What a step's tokens take from their positions: cosines and sines of every rotation, factors of queries."""

from typing import Any

import numpy as np

from gpu.executor.plan import CHUNK, Segment
from refimpl.contract import Array
from refimpl.llm.position import rope_table
from refimpl.llm.rope_scaling import rope_frequencies
from refimpl.models.spec import AttentionSpec, ModelSpec, RopeSpec

__all__ = ["Positions"]


class Positions:
    """Tables float32 of CHUNK tokens: [2, CHUNK, pairs] for each rotation of the model, [CHUNK] for each growth."""

    def __init__(self, spec: ModelSpec) -> None:
        self.turns = {rope: np.zeros((2, CHUNK, rope.dim // 2), np.float32) for rope in spec.ropes}
        growths = {mixer.temperature for mixer in spec.mixers if mixer.temperature is not None}
        self.growths = {growth: np.zeros(CHUNK, np.float32) for growth in growths}

    def describe(self, mixer: AttentionSpec) -> dict[str, int]:
        """Return the fields of LAYER that lead to a layer's tables."""
        fields = {"cos": 0, "sin": 0, "rope_pairs": 0, "interleaved": 0, "growth": 0}
        if mixer.rope is not None:
            cos, sin = self.turns[mixer.rope]
            fields |= {"cos": cos.ctypes.data, "sin": sin.ctypes.data, "rope_pairs": cos.shape[1]}
            fields["interleaved"] = mixer.rope.interleaved
        if mixer.temperature is not None:
            fields["growth"] = self.growths[mixer.temperature].ctypes.data
        return fields

    def fill(self, segments: list[Segment]) -> None:
        """Write the tables of a step."""
        row = 0
        for segment in segments:
            here = slice(row, row + len(segment.ids))
            places = np.arange(segment.start, segment.start + len(segment.ids))
            for rope, table in self.turns.items():
                table[:, here] = _turn(rope, places, segment.rope_len)
            for (floor, scale), factors in self.growths.items():
                factors[here] = 1 + scale * np.log1p(np.floor((places + 1) / floor))
            row = here.stop


def _turn(rope: RopeSpec, places: Array, length: int) -> tuple[Array, Array]:
    params: dict[str, Any] = dict(rope.params)
    inv_freq, factor = rope_frequencies(rope.dim, rope.theta, scaling=rope.scaling, seq_len=length, **params)
    return rope_table(places, inv_freq, factor)
