"""What a decoder costs, as formulas: operations, bytes and memory from its spec, its packed weights and a length.

A phase runs ``queries`` tokens after ``start`` earlier ones; prefill is (T, 0), a decode step (1, S).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple, Protocol

from refimpl.contract import host
from refimpl.models.spec import ModelSpec

__all__ = [
    "Limits", "Part", "attention_pairs", "cache_bytes_per_token", "cache_bytes_read", "fit_line",
    "Stored", "head_name", "matrix_parts", "phase_parts", "stored", "total", "weight_bytes", "weight_bytes_read",
]

_TABLES = ("embedding", "position_embedding")  # a token looks up one row


class Stored(NamedTuple):
    """A weight as an executor holds it."""

    format: str
    shape: tuple[int, ...]
    nbytes: int


Weights = Mapping[str, Stored]


class Limits(Protocol):
    """What bounds a computation: bytes and operations a second."""

    @property
    def bytes_per_s(self) -> float: ...
    @property
    def flops_per_s(self) -> float: ...


@dataclass(frozen=True)
class Part:
    """A part of a phase: its shapes in words, the operations it does and the bytes it moves."""

    name: str
    shape: str
    flops: int
    bytes_moved: int

    @property
    def intensity(self) -> float:
        """FLOP for each byte moved."""
        return self.flops / self.bytes_moved

    def seconds(self, limits: Limits) -> float:
        """Return the least time: memory and arithmetic overlap, so the slower one decides."""
        return max(self.bytes_moved / limits.bytes_per_s, self.flops / limits.flops_per_s)

    def bound(self, limits: Limits) -> str:
        """Return which of the two decides: ``memory`` or ``compute``."""
        return "memory" if self.intensity < limits.flops_per_s / limits.bytes_per_s else "compute"


@host
def total(parts: Sequence[Part], limits: Limits) -> tuple[Part, float]:
    """Return the sum of the parts, and the least time of all: parts run one after another."""
    flops, moved = sum(part.flops for part in parts), sum(part.bytes_moved for part in parts)
    return Part("total", "", flops, moved), sum(part.seconds(limits) for part in parts)


@host
def stored(tensors: Mapping[str, Any], dtype: str | None = None) -> dict[str, Stored]:
    """Return how the tensors of a file are held: vectors in float32, matrices as they are or converted to ``dtype``."""
    itemsize = {"float32": 4, "float16": 2, "bfloat16": 2}
    held = {}
    for name, tensor in tensors.items():
        form = "float32" if len(tensor.shape) < 2 else dtype or tensor.format
        size = int(tensor.data.nbytes) if form == tensor.format else prod(tensor.shape) * itemsize[form]
        held[name] = Stored(form, tensor.shape, size)
    return held


@host
def head_name(weights: Weights) -> str:
    """Return the matrix that makes logits; a tied model uses its embedding."""
    return "lm_head" if "lm_head" in weights else "embedding"


@host
def weight_bytes(weights: Weights) -> int:
    """Return the bytes of all weights, packed as they are."""
    return sum(w.nbytes for w in weights.values())


@host
def weight_bytes_read(weights: Weights) -> int:
    """Return the bytes of the weights that a pass reads: all but the tables of which it looks up rows."""
    head = head_name(weights)
    return sum(w.nbytes for name, w in weights.items() if name == head or name not in _TABLES)


@host
def cache_bytes_per_token(spec: ModelSpec, itemsize: int = 4) -> int:
    """Return 2 L K H itemsize: a key and a value in every layer."""
    return 2 * spec.num_layers * spec.num_kv_heads * spec.head_dim * itemsize


@host
def attention_pairs(queries: int, start: int, window: int | None) -> int:
    """Return the query-key pairs of a causal layer: the query at position p sees min(p + 1, window) keys.

    >>> attention_pairs(4, 0, None), attention_pairs(4, 0, 2), attention_pairs(1, 99, None)
    (10, 7, 100)
    """
    full = start + queries if window is None else window
    rising = min(max(full - start, 0), queries)  # queries that see all that came before
    return rising * start + rising * (rising + 1) // 2 + (queries - rising) * full


@host
def cache_bytes_read(spec: ModelSpec, queries: int, start: int, itemsize: int = 4) -> int:
    """Return the bytes of keys and values that a phase reads once: those inside each layer's window."""
    token = cache_bytes_per_token(spec, itemsize) // spec.num_layers
    keys = start + queries
    return token * sum(keys if window is None else min(keys, window + queries - 1) for window in spec.windows)


@host
def matrix_parts(weights: Weights, queries: int, chunk: int) -> list[Part]:
    """Return a part for each kind of matrix: 2 T O D operations; its bytes once for every ``chunk`` of tokens."""
    kinds: dict[str, list[Stored]] = {}
    for name, w in weights.items():
        if len(w.shape) == 2 and name.startswith("layers."):
            kinds.setdefault(name.split(".", 2)[2], []).append(w)
    passes = -(-queries // chunk)
    return [
        Part(
            kind, f"[{queries} {all_w[0].shape[1]}] [{all_w[0].shape[1]} {all_w[0].shape[0]}] x {len(all_w)}",
            2 * queries * sum(prod(w.shape) for w in all_w), passes * sum(w.nbytes for w in all_w),
        )
        for kind, all_w in kinds.items()
    ]


@host
def phase_parts(spec: ModelSpec, weights: Weights, queries: int, start: int = 0, *, chunk: int = 512) -> list[Part]:
    """Return the parts of a phase: matrices, attention, and the head, which runs for the last token alone.

    Attention does 4 N H operations for each pair of query and key, reads the keys and values in its windows and
    writes those of the queries. Norms and activations are left out: below one percent.
    """
    pairs = sum(attention_pairs(queries, start, window) for window in spec.windows)
    cache = cache_bytes_read(spec, queries, start) + queries * cache_bytes_per_token(spec)
    shape = f"[{queries} {spec.num_heads} {spec.head_dim}] [{start + queries} {spec.num_kv_heads} {spec.head_dim}]"
    head = weights[head_name(weights)]
    rows, width = head.shape
    return [
        *matrix_parts(weights, queries, chunk),
        Part("attention", f"{shape} x {spec.num_layers}", 4 * spec.num_heads * spec.head_dim * pairs, cache),
        Part("head", f"[1 {width}] [{width} {rows}]", 2 * rows * width, head.nbytes),
    ]


@host
def fit_line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return intercept and slope of the least-squares line through (x, y) points.

    >>> fit_line([(0, 1), (2, 5), (4, 9)])
    (1.0, 2.0)
    """
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / sum((x - mean_x) ** 2 for x, _ in points)
    return mean_y - slope * mean_x, slope
