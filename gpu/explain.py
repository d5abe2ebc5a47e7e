"""What a model takes as an executor holds it: its weights, packed as they are, and what a pass reads of them."""

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

from gpu.machine import Machine
from refimpl.bottleneck.roofline import Device
from refimpl.bottleneck.serving import experts_reached, mixture_of
from refimpl.contract import host
from refimpl.models.spec import ModelSpec

__all__ = [
    "Stored", "expert_bytes", "fit_line", "head_name", "stored", "this_machine", "weight_bytes", "weight_bytes_read",
]

_TABLES = ("embedding", "position_embedding")  # a token looks up one row


class Stored(NamedTuple):
    """A weight as an executor holds it."""

    format: str
    shape: tuple[int, ...]
    nbytes: int


Weights = Mapping[str, Stored]


@host
def stored(tensors: Mapping[str, Any], dtype: str | None = None) -> dict[str, Stored]:
    """Return how tensors of a file are held: matrices as they are or converted to ``dtype``, the rest in float32."""
    itemsize = {"float32": 4, "float16": 2, "bfloat16": 2}
    held = {}
    for name, tensor in tensors.items():
        vector = len(tensor.shape) < 2 or ".b_" in name or name == "position_embedding"
        form = "float32" if vector else dtype or tensor.format
        size = int(tensor.nbytes) if form == tensor.format else prod(tensor.shape) * itemsize[form]
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
def weight_bytes_read(weights: Weights, spec: ModelSpec, tokens: int = 1) -> int:
    """Return the bytes of the weights that a pass reads: of experts, those of its tokens; of tables, only rows."""
    head, read = head_name(weights), 0.0
    for name, weight in weights.items():
        moe = mixture_of(spec, name)
        if name == head or name not in _TABLES:
            read += weight.nbytes * experts_reached(moe, tokens) / moe.num_experts
    return round(read)


@host
def expert_bytes(weights: Weights) -> int:
    """Return the bytes of all experts that a router chooses from."""
    return sum(w.nbytes for name, w in weights.items() if ".experts." in name)


@host
def this_machine(limits: Machine) -> Device:
    """Return a measured machine as a device of the roofline."""
    return Device("this machine", {"float32": limits.flops_per_s}, limits.bytes_per_s, 0, "measured")


@host
def fit_line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return intercept and slope of the least-squares line through (x, y) points; level where all have one x.

    >>> fit_line([(0, 1), (2, 5), (4, 9)])
    (1.0, 2.0)
    """
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / spread if spread else 0.0
    return mean_y - slope * mean_x, slope
