"""Biases by distance: one block a row of scores, its threads along the keys."""

from functools import cache
from typing import Any

import numpy as np

from gpu import device
from gpu.compile import Kernel, numba_kernel
from gpu.grid import threads_for
from gpu.number import named, read, storage, write
from gpu.registry import Variant
from refimpl.contract import Array, Float, Int, kernel, op, require, whole
from refimpl.llm.position_bias import alibi_slopes, t5_buckets

__all__ = ["VARIANTS", "alibi_bias", "alibi_bias_into", "t5_bias", "t5_bias_into"]


@op
def alibi_bias(slopes: Float[Array, " N"], T: int, S: int) -> Float[Array, "N T S"]:
    """One block a head and query, its threads along the keys."""
    T, S = whole("T", T), whole("S", S)
    require(slopes.ndim == 1 and T >= 0 and S >= 0, "C1", f"slopes {slopes.shape} for {T} queries and {S} keys")
    bias = device.empty((len(slopes), T, S), slopes.dtype)
    alibi_bias_into(bias, device.array(slopes))
    return bias


@kernel
def alibi_bias_into(bias: Float[Array, "N T S"], slopes: Float[Array, " N"]) -> None:
    """Write the bias of each head into ``bias``."""
    made = _alibi_bias(named(slopes))
    if bias.size:
        N, T, S = bias.shape
        device.launch(made, N * T, threads_for(S), bias, slopes)


@op
def t5_bias(
    table: Float[Array, "buckets N"], T: int, S: int, *, max_distance: int = 128, bidirectional: bool = True
) -> Float[Array, "N T S"]:
    """One block a head and query, its threads along the keys. The bucket of each distance is found on the host."""
    T, S = whole("T", T), whole("S", S)
    require(table.ndim == 2 and T >= 0 and S >= 0, "C3", f"a table {table.shape} for {T} queries and {S} keys")
    _check_buckets(len(table), max_distance, bidirectional)
    ahead = np.arange(1 - S, T)
    buckets = t5_buckets(ahead, len(table), max_distance=max_distance, bidirectional=bidirectional)
    bias = device.empty((table.shape[1], T, S), table.dtype)
    t5_bias_into(bias, device.array(table), device.array(buckets, np.int32))
    return bias


@kernel
def t5_bias_into(
    bias: Float[Array, "N T S"], table: Float[Array, "buckets N"], buckets: Int[Array, " distances"]
) -> None:
    """Write the bias of each head into ``bias``; ``buckets`` are those of the distances from 1 - S on, int32."""
    made = _t5_bias(named(table))
    if bias.size:
        N, T, S = bias.shape
        device.launch(made, N * T, threads_for(S), bias, table, buckets)


def _check_buckets(num_buckets: int, max_distance: int, bidirectional: bool) -> None:
    each, left = divmod(num_buckets, 1 + bidirectional)
    require(each >= 2 and left == 0, "C1", f"{num_buckets} buckets for {1 + bidirectional} directions")
    require(max_distance > each // 2, "C2", f"max_distance {max_distance} within the {each // 2} exact distances")


@cache
def _alibi_bias(dtype: str) -> Kernel:
    from numba import float32, int64, uint64

    from gpu.warp import block, thread, threads

    wide, narrow = read(dtype), write(dtype)

    @numba_kernel(f"{storage(dtype)}[:, :, ::1]", f"{storage(dtype)}[::1]", name=f"alibi_bias[{dtype}]")
    def alibi_bias(bias, slopes):
        T, S = uint64(bias.shape[1]), uint64(bias.shape[2])
        n, t, s = block() // T, block() % T, thread()
        slope = wide(slopes[n])
        while s < S:
            behind = int64(S + t) - int64(T + s)
            bias[n, t, s] = narrow(slope * float32(-abs(behind)))
            s += threads()

    return alibi_bias


@cache
def _t5_bias(dtype: str) -> Kernel:
    from numba import uint64

    from gpu.warp import block, thread, threads

    held = storage(dtype)

    @numba_kernel(f"{held}[:, :, ::1]", f"{held}[:, ::1]", "int32[::1]", name=f"t5_bias[{dtype}]")
    def t5_bias(bias, table, buckets):
        T, S = uint64(bias.shape[1]), uint64(bias.shape[2])
        n, t, s = block() // T, block() % T, thread()
        while s < S:
            bias[n, t, s] = table[uint64(buckets[s + T - uint64(1) - t]), n]
            s += threads()

    return t5_bias


def _slopes() -> dict[str, Any]:
    return {"slopes": alibi_slopes(12).astype(np.float32), "T": 16, "S": 512}


def _table() -> dict[str, Any]:
    return {"table": np.random.default_rng(0).standard_normal((32, 12), np.float32), "T": 16, "S": 512}


VARIANTS = (
    Variant("numba", "alibi_bias", alibi_bias, lambda *_, **__: True, _slopes),
    Variant("numba", "t5_bias", t5_bias, lambda *_, **__: True, _table),
)
