"""Cuts that judge a token by the whole distribution, over rows of logits: one block a row, after ``best_into``.

Exp and what is made of it are float64, as in the specification: rounded to integers, whose sums have no order.
"""

import math
from typing import Any

import numpy as np

from gpu import device
from gpu.grid import threads_for
from gpu.llm.cuts import best_into, top_k_into, weights_into
from gpu.llm.row_kernels import NAN, NONE
from gpu.llm.tail_kernels import cutoff_kernel, top_n_sigma_kernel
from gpu.llm.tail_order_kernels import top_h_kernel, typical_kernel
from gpu.number import DTYPES, named
from gpu.registry import Variant
from refimpl.contract import Array, Float, Int, kernel, op, require

__all__ = [
    "VARIANTS", "epsilon_cutoff", "epsilon_cutoff_into", "eta_cutoff", "eta_cutoff_into", "top_h", "top_h_into",
    "top_n_sigma", "top_n_sigma_into", "typical", "typical_into",
]


@op
def typical(logits: Float[Array, " V"], p: float) -> Float[Array, " V"]:
    """As ``top_p``, by the distance to the mean of the logits in place of the logit: keys of 64 bits, eight passes."""
    require(0 <= p <= 1, "C3", f"typical keeps a mass in [0, 1], got {p}")
    rows, best = _best(logits)
    out, weights = device.empty(rows.shape, rows.dtype), device.empty(rows.shape, np.int64)
    typical_into(out, rows, best, p, weights)
    return out[0]


@kernel
def typical_into(
    out: Float[Array, "R V"], logits: Float[Array, "R V"], best: Int[Array, " R"], p: float, weights: Int[Array, "R V"]
) -> None:
    """Keep the smallest set of each row's most typical tokens whose mass reaches p; ``weights`` is scratch, int64."""
    if p == 1:
        return top_k_into(out, logits, 0)
    weights_into(weights, logits, best)
    _launch(typical_kernel(named(logits)), out, logits, best, int(float(p) * 2**53), weights)


@op
def epsilon_cutoff(logits: Float[Array, " V"], epsilon: float) -> Float[Array, " V"]:
    """One block a row sums exp, in units of 2^-40; then each thread compares its tokens, made anew."""
    require(0 <= epsilon <= 1, "C3", f"epsilon is a probability in [0, 1], got {epsilon}")
    rows, best = _best(logits)
    out = device.empty(rows.shape, rows.dtype)
    epsilon_cutoff_into(out, rows, best, epsilon)
    return out[0]


@kernel
def epsilon_cutoff_into(
    out: Float[Array, "R V"], logits: Float[Array, "R V"], best: Int[Array, " R"], epsilon: float
) -> None:
    """Keep the tokens of each row whose probability is epsilon or more, and its best; ``out`` is not ``logits``."""
    _launch(cutoff_kernel(named(logits), False), out, logits, best, int(float(epsilon) * 2**53), 0.0)


@op
def eta_cutoff(logits: Float[Array, " V"], epsilon: float) -> Float[Array, " V"]:
    """As ``epsilon_cutoff``; beside exp the block sums what gives the entropy."""
    require(0 <= epsilon <= 1, "C3", f"epsilon is a probability in [0, 1], got {epsilon}")
    rows, best = _best(logits)
    out = device.empty(rows.shape, rows.dtype)
    eta_cutoff_into(out, rows, best, epsilon)
    return out[0]


@kernel
def eta_cutoff_into(
    out: Float[Array, "R V"], logits: Float[Array, "R V"], best: Int[Array, " R"], epsilon: float
) -> None:
    """Keep the tokens of each row whose probability reaches its threshold, and its best; ``out`` is not ``logits``."""
    _launch(cutoff_kernel(named(logits), True), out, logits, best, int(float(epsilon) * 2**53), math.sqrt(epsilon))


@op
def top_n_sigma(logits: Float[Array, " V"], n: float) -> Float[Array, " V"]:
    """One block a row, which reads it four times: the widest distance, the mean, the deviation, the cut."""
    require(0 <= n < np.inf, "C3", f"n is not negative, and finite, got {n}")
    rows, best = _best(logits)
    out = device.empty(rows.shape, rows.dtype)
    top_n_sigma_into(out, rows, best, n)
    return out[0]


@kernel
def top_n_sigma_into(out: Float[Array, "R V"], logits: Float[Array, "R V"], best: Int[Array, " R"], n: float) -> None:
    """Keep the tokens of each row within n standard deviations of its best; 0 keeps all."""
    if n == 0:
        return top_k_into(out, logits, 0)
    _launch(top_n_sigma_kernel(named(logits)), out, logits, best, n)


@op
def top_h(logits: Float[Array, " V"], h: float) -> Float[Array, " V"]:
    """As ``top_p``, with parts of the entropy in place of weights, which the block makes after it has summed exp."""
    require(0 <= h <= 1, "C3", f"top-h keeps a part of the entropy in [0, 1], got {h}")
    rows, best = _best(logits)
    out, terms = device.empty(rows.shape, rows.dtype), device.empty(rows.shape, np.int64)
    top_h_into(out, rows, best, h, terms)
    return out[0]


@kernel
def top_h_into(
    out: Float[Array, "R V"], logits: Float[Array, "R V"], best: Int[Array, " R"], h: float, terms: Int[Array, "R V"]
) -> None:
    """Keep each row's best tokens as long as their entropy is at most h of the row's; ``terms`` is scratch, int64."""
    if h == 1:
        return top_k_into(out, logits, 0)
    _launch(top_h_kernel(named(logits)), out, logits, best, int(float(h) * 2**53), terms)


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


def _launch(made: Any, out: Array, logits: Array, best: Array, *settings: Any) -> None:
    rows, V = logits.shape
    device.launch(made, rows, threads_for(V), out, logits, best, *settings)


def _variant(op: Any, **setting: float) -> Variant:
    def takes(logits: Array, *_: Any, **__: Any) -> bool:
        return str(logits.dtype) in DTYPES

    def workload() -> dict[str, Any]:
        return {"logits": np.random.default_rng(0).standard_normal(32000).astype(np.float32)} | setting

    return Variant("numba", op.__name__, op, takes, workload)


VARIANTS = (
    _variant(typical, p=0.9),
    _variant(epsilon_cutoff, epsilon=3e-4),
    _variant(eta_cutoff, epsilon=3e-4),
    _variant(top_n_sigma, n=1.0),
    _variant(top_h, h=0.4),
)
