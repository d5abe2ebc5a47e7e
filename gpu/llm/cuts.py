"""Temperature and cuts over rows of logits. What spans a row is one block's work; the rest is a thread an element.

A cut first finds the best token of each row (``best_into``), for its checks and for what is relative to it.
"""

import math
from typing import Any

import numpy as np

from gpu import device
from gpu.grid import blocks_for, threads_for
from gpu.llm.cut_kernels import greedy_kernel, min_p_kernel, temperature_kernel, top_p_weights_kernel
from gpu.llm.row_kernels import NAN, NONE, best_kernel, top_k_kernel, top_p_kernel
from gpu.number import DTYPES, named
from gpu.registry import Variant
from refimpl.contract import Array, Float, Int, kernel, op, require, whole

__all__ = [
    "VARIANTS", "best_into", "greedy", "greedy_into", "min_p", "min_p_into", "temperature", "temperature_into", "top_k",
    "top_k_into", "top_p", "top_p_into", "weights_into",
]

_THREADS = 256


@kernel
def best_into(best: Int[Array, " R"], logits: Float[Array, "R V"]) -> None:
    """Write the index of each row's largest logit, the lowest of equals; -1 where one is NaN, -2 where it is infinite.

    One block a row: the least of (key, index) as one 64-bit number, by shuffles and through shared memory.
    """
    rows, V = logits.shape
    device.launch(best_kernel(named(logits)), rows, threads_for(V), best, logits)


@op
def greedy(logits: Float[Array, " V"]) -> Float[Array, " V"]:
    """A thread an element, after ``best_into``."""
    rows, best = _best(logits)
    out = device.empty(rows.shape, rows.dtype)
    greedy_into(out, rows, best)
    return out[0]


@kernel
def greedy_into(out: Float[Array, "R V"], logits: Float[Array, "R V"], best: Int[Array, " R"]) -> None:
    """Keep the best token of each row."""
    device.launch(greedy_kernel(named(logits)), *_elements(logits), out, logits, best)


@op
def temperature(logits: Float[Array, " V"], t: float) -> Float[Array, " V"]:
    """A thread an element, after ``best_into``. Float64, as the specification divides: one division an element."""
    require(0 <= t < np.inf, "C3", f"the temperature is not negative, and finite, got {t}")
    rows, best = _best(logits)
    out = device.empty(rows.shape, rows.dtype)
    temperature_into(out, rows, best, t)
    return out[0]


@kernel
def temperature_into(out: Float[Array, "R V"], logits: Float[Array, "R V"], best: Int[Array, " R"], t: float) -> None:
    """Divide the logits of each row by ``t``; ``out`` may be ``logits``, unless ``t`` is 0."""
    if t == 0:
        greedy_into(out, logits, best)
    else:
        device.launch(temperature_kernel(named(logits)), *_elements(logits), out, logits, best, t)


@op
def top_k(logits: Float[Array, " V"], k: int, ties: str = "first") -> Float[Array, " V"]:
    """One block a row: the key of the k-th token by radix, 8 bits a pass, then its index; counts in shared memory.

    Every pass reads the row anew, from the cache.
    """
    require(whole("k", k) >= 0, "C3", f"top-k keeps k tokens, 0 for all, got {k}")
    require(ties in ("first", "all"), "C4", f"ties at the boundary keep first or all, got {ties!r}")
    rows, _ = _best(logits)
    if k == 0 or k >= len(logits):
        return rows[0]
    out = device.empty(rows.shape, rows.dtype)
    top_k_into(out, rows, k, ties)
    return out[0]


@kernel
def top_k_into(out: Float[Array, "R V"], logits: Float[Array, "R V"], k: int, ties: str = "first") -> None:
    """Keep the k best tokens of each row, and with ties="all" all that equal the last; 0 keeps all."""
    rows, V = logits.shape
    device.launch(top_k_kernel(named(logits), ties), rows, threads_for(V), out, logits, min(k or V, V))


@op
def top_p(logits: Float[Array, " V"], p: float) -> Float[Array, " V"]:
    """As ``top_k``, with weights in place of counts: int64, made before by a thread an element, with exp in float64."""
    require(0 <= p <= 1, "C3", f"top-p keeps a mass in [0, 1], got {p}")
    rows, best = _best(logits)
    if p == 1:
        return rows[0]
    out, weights = device.empty(rows.shape, rows.dtype), device.empty(rows.shape, np.int64)
    top_p_into(out, rows, best, p, weights)
    return out[0]


@kernel
def top_p_into(
    out: Float[Array, "R V"], logits: Float[Array, "R V"], best: Int[Array, " R"], p: float, weights: Int[Array, "R V"]
) -> None:
    """Keep the smallest set of each row's best tokens whose mass reaches p; ``weights`` is scratch, int64."""
    if p == 1:
        return top_k_into(out, logits, 0)
    dtype, (rows, V), share = named(logits), logits.shape, int(float(p) * 2**53)
    weights_into(weights, logits, best)
    device.launch(top_p_kernel(dtype), rows, threads_for(V), out, logits, weights, share)


@kernel
def weights_into(weights: Int[Array, "R V"], logits: Float[Array, "R V"], best: Int[Array, " R"]) -> None:
    """Write exp(l - max l) of each row in units of 2^-40, int64: a thread an element."""
    device.launch(top_p_weights_kernel(named(logits)), *_elements(logits), weights, logits, best)


@op
def min_p(logits: Float[Array, " V"], p: float) -> Float[Array, " V"]:
    """A thread an element, after ``best_into``. Float64, as the specification subtracts."""
    require(0 <= p <= 1, "C3", f"min-p is a ratio in [0, 1], got {p}")
    rows, best = _best(logits)
    out = device.empty(rows.shape, rows.dtype)
    min_p_into(out, rows, best, p)
    return out[0]


@kernel
def min_p_into(out: Float[Array, "R V"], logits: Float[Array, "R V"], best: Int[Array, " R"], p: float) -> None:
    """Keep the tokens of each row that are at least p times as likely as its best; ``out`` may be ``logits``."""
    least = math.log(p) if p else -math.inf
    device.launch(min_p_kernel(named(logits)), *_elements(logits), out, logits, best, least)


def _best(logits: Array) -> tuple[Array, Array]:
    """Return logits as a row of a matrix, and its best token."""
    require(logits.ndim == 1, "C2", f"logits are one row, got shape {logits.shape}")
    named(logits)
    rows, best = device.array(logits)[None], device.empty(1, np.int32)
    if logits.size:
        best_into(best, rows)
    found = int(device.to_host(best)[0]) if logits.size else NONE
    require(found != NAN, "C1", "a logit is NaN")
    require(found != NONE, "C2", "a token is left to choose, and the largest logit is finite")
    return rows, best


def _elements(logits: Array) -> tuple[tuple[int, int], int]:
    """Return grid and block of a thread an element."""
    rows, V = logits.shape
    return (blocks_for(V, _THREADS), rows), _THREADS


def _workload() -> dict[str, Array]:
    return {"logits": np.random.default_rng(0).standard_normal(32000).astype(np.float32)}


def _variant(op: Any, **setting: float) -> Variant:
    def takes(logits: Array, *_: Any, **__: Any) -> bool:
        return str(logits.dtype) in DTYPES

    return Variant("numba", op.__name__, op, takes, lambda: _workload() | setting)


VARIANTS = (
    _variant(greedy),
    _variant(temperature, t=0.7),
    _variant(top_k, k=40),
    _variant(top_p, p=0.95),
    _variant(min_p, p=0.05),
)
