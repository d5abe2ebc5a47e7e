"""The draw, one block a row of probabilities."""

from typing import Any

import numpy as np

from gpu import device
from gpu.grid import threads_for
from gpu.llm.row_kernels import draw_kernel
from gpu.number import DTYPES, named
from gpu.registry import Variant
from refimpl.contract import Array, Float, Int, kernel, op, require

__all__ = ["VARIANTS", "draw", "draw_into"]


@op
def draw(probs: Float[Array, " V"], u: float) -> int:
    """One block a row: the largest; the sums of 256 chunks, in shared memory; one warp finds the chunk and walks it."""
    require(0 <= u < 1, "C1", f"u is in [0, 1), got {u}")
    rows, ids = device.array(probs)[None], device.empty(1, np.int32)
    if probs.size:
        draw_into(ids, rows, device.array(np.array([int(u * 2**53)], np.uint64)))
    drawn = int(device.to_host(ids)[0]) if probs.size else -1
    require(drawn >= 0, "C2", "probabilities are finite and not negative, and one is positive")
    return drawn


@kernel
def draw_into(ids: Int[Array, " R"], probs: Float[Array, "R V"], units: Int[Array, " R"]) -> None:
    """Draw one token of each row by noise in units of 2^-53, uint64; -2 where nothing can be drawn.

    An id is a function of its row and its noise alone.
    """
    rows, V = probs.shape
    device.launch(draw_kernel(named(probs)), rows, threads_for(V), ids, probs, units)


def _workload() -> dict[str, Any]:
    probs = np.random.default_rng(0).random(32000).astype(np.float32)
    return {"probs": probs / probs.sum(), "u": 0.5}


VARIANTS = (Variant("numba", "draw", draw, lambda probs, u: str(probs.dtype) in DTYPES, _workload),)
