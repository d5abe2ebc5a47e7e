"""Speculative decoding's two operations, for R requests at once: a warp judges a draft, a block makes a residual."""

import math
from functools import cache
from typing import Any

import numpy as np

from gpu import device
from gpu.compile import Kernel, numba_kernel
from gpu.grid import threads_for
from gpu.number import DTYPES, named, read, storage, write
from gpu.registry import Variant
from refimpl.contract import Array, Float, Int, kernel, op, require

__all__ = ["VARIANTS", "accepted_length", "accepted_length_into", "residual_probs", "residual_probs_into"]


@op
def accepted_length(
    probs: Float[Array, "draft V"], draft_probs: Float[Array, "draft V"], ids: Int[Array, " draft"],
    noise: Float[Array, " draft"],
) -> int:
    """One warp a request, a lane a token, 32 tokens at once: a vote finds the first that is rejected.

    Float64, as the specification multiplies.
    """
    fits = probs.ndim == 2 and probs.shape == draft_probs.shape and (len(probs),) == ids.shape == noise.shape
    shapes = f"{probs.shape}, {draft_probs.shape}, {ids.shape}, {noise.shape}"
    require(fits, "C1", f"probs, draft_probs, ids and noise do not fit: {shapes}")
    vocab_size = probs.shape[1]
    inside = ids.dtype.kind in "iu" and bool(((ids >= 0) & (ids < vocab_size)).all())
    require(inside, "C2", f"ids are integers in the vocabulary 0..{vocab_size - 1}")
    require(bool(((noise >= 0) & (noise < 1)).all()), "C3", f"the noise is in [0, 1), got {noise}")
    counts = device.empty(1, np.int32)
    rows = device.array(probs)[None], device.array(draft_probs)[None], device.array(ids, np.int32)[None]
    accepted_length_into(counts, *rows, device.array(noise, np.float64)[None])
    return int(device.to_host(counts)[0])


@kernel
def accepted_length_into(
    counts: Int[Array, " R"], probs: Float[Array, "R draft V"], draft_probs: Float[Array, "R draft V"],
    ids: Int[Array, "R draft"], noise: Float[Array, "R draft"],
) -> None:
    """Count the tokens that stay of each request's draft; noise is float64, ids lie in the vocabulary."""
    device.launch(_accepted(named(probs), named(draft_probs)), len(counts), 32, counts, probs, draft_probs, ids, noise)


@op
def residual_probs(probs: Float[Array, " V"], draft_probs: Float[Array, " V"]) -> Float[Array, " V"]:
    """One block a row: the sum through shared memory, then one write; beside it, whether all was fair."""
    fits = probs.ndim == 1 and probs.shape == draft_probs.shape
    require(fits, "C1", f"probs {probs.shape} and draft_probs {draft_probs.shape} are not two rows of one width")
    out, fair = device.empty((1, len(probs)), probs.dtype), device.empty(1, np.int32)
    residual_probs_into(out, fair, device.array(probs)[None], device.array(draft_probs)[None])
    fine = len(probs) == 0 or bool(device.to_host(fair)[0])
    require(fine, "C2", "probabilities are finite and not negative")
    return out[0]


@kernel
def residual_probs_into(
    out: Float[Array, "R V"], fair: Int[Array, " R"], probs: Float[Array, "R V"], draft_probs: Float[Array, "R V"]
) -> None:
    """Write the residual of each row, and 1 to ``fair`` where its probabilities are finite and not negative, else 0."""
    rows, V = probs.shape
    if probs.size:
        made = _residual(named(probs), named(draft_probs))
        device.launch(made, rows, threads_for(V), out, fair, probs, draft_probs)


@cache
def _accepted(dtype: str, draft_dtype: str) -> Kernel:
    from numba import cuda, float64, int32, uint64

    from gpu.warp import ALL, block, lane

    wide, wide_draft = read(dtype), read(draft_dtype)

    @numba_kernel(
        "int32[::1]", f"{storage(dtype)}[:, :, ::1]", f"{storage(draft_dtype)}[:, :, ::1]", "int32[:, ::1]",
        "float64[:, ::1]", name=f"accepted_length[{dtype}]",
    )
    def accepted_length(counts, probs, draft_probs, ids, noise):
        row, count, start = block(), uint64(ids.shape[1]), uint64(0)
        first = count
        while start < count and first == count:
            j, rejected = start + lane(), False
            if j < count:
                token = uint64(ids[row, j])
                p, q = float64(wide(probs[row, j, token])), float64(wide_draft(draft_probs[row, j, token]))
                rejected = noise[row, j] * q >= p
            votes = cuda.ballot_sync(ALL, rejected)
            if votes:
                first = start + uint64(cuda.ffs(votes) - 1)
            start += uint64(32)
        if lane() == uint64(0):
            counts[row] = int32(first)

    return accepted_length


@cache
def _residual(dtype: str, draft_dtype: str) -> Kernel:
    from numba import float32, int32, uint64

    from gpu.warp import block, block_sum, thread, threads

    held, wide, wide_draft, narrow = storage(dtype), read(dtype), read(draft_dtype), write(dtype)

    @numba_kernel(
        f"{held}[:, ::1]", "int32[::1]", f"{held}[:, ::1]", f"{storage(draft_dtype)}[:, ::1]",
        name=f"residual_probs[{dtype}]",
    )
    def residual_probs(out, fair, probs, draft_probs):
        row, V = block(), uint64(probs.shape[1])
        unfair, total, i = float32(0), float32(0), thread()
        while i < V:
            p, q = wide(probs[row, i]), wide_draft(draft_probs[row, i])
            if not (float32(0) <= p < float32(math.inf) and float32(0) <= q < float32(math.inf)):
                unfair += float32(1)
            total += max(p - q, float32(0))
            i += threads()
        total, unfair = block_sum(total), block_sum(unfair)
        i = thread()
        while i < V:
            p, q = wide(probs[row, i]), wide_draft(draft_probs[row, i])
            out[row, i] = narrow(max(p - q, float32(0)) / total if total > float32(0) else p)
            i += threads()
        if thread() == uint64(0):
            fair[row] = int32(1) if unfair == float32(0) else int32(0)

    return residual_probs


def _workload(op: str) -> dict[str, Any]:
    draws = np.random.default_rng(0)
    probs, draft_probs = draws.dirichlet(np.full(32000, 0.1), (2, 8)).astype(np.float32)
    if op == "residual_probs":
        return {"probs": probs[0], "draft_probs": draft_probs[0]}
    ids = np.array([draws.choice(32000, p=row / row.sum()) for row in draft_probs.astype(np.float64)], np.int32)
    return {"probs": probs, "draft_probs": draft_probs, "ids": ids, "noise": draws.random(8).astype(np.float32)}


def _takes(probs: Array, draft_probs: Array, *_: Any, **__: Any) -> bool:
    return {str(probs.dtype), str(draft_probs.dtype)} <= set(DTYPES)


VARIANTS = (
    Variant("numba", "accepted_length", accepted_length, _takes, lambda: _workload("accepted_length")),
    Variant("numba", "residual_probs", residual_probs, _takes, lambda: _workload("residual_probs")),
)
