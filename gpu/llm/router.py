"""Routers: one warp a token, an expert a lane; k passes over the experts of a token choose k of them."""

from typing import Any

import numpy as np

from gpu import device
from gpu.grid import blocks_for
from gpu.llm.router_kernels import WARPS, choose, close_groups, look_up
from gpu.number import named
from gpu.registry import Variant
from refimpl.contract import Array, Float, Int, kernel, op, require, whole, within
from refimpl.llm.router import Routed

__all__ = [
    "VARIANTS", "hash_route", "hash_route_into", "sigmoid_group_top_k", "sigmoid_group_top_k_into", "softmax_top_k",
    "softmax_top_k_into", "sqrt_softplus_top_k", "sqrt_softplus_top_k_into", "top_k_sigmoid", "top_k_sigmoid_into",
    "top_k_softmax", "top_k_softmax_into",
]  # fmt: skip

_THREADS = 128


@op
def softmax_top_k(logits: Float[Array, "T E"], k: int, *, renormalise: bool = True) -> Routed:
    """One warp a token, eight a block; the sum over all experts only where it is asked for."""
    ids, weights = _empty(logits, k)
    softmax_top_k_into(ids, weights, device.array(logits), renormalise=renormalise)
    return ids, weights


@kernel
def softmax_top_k_into(
    ids: Int[Array, "T A"], weights: Float[Array, "T A"], logits: Float[Array, "T E"], *, renormalise: bool = True
) -> None:
    """Write the likeliest experts, int32, and their probabilities, float32."""
    _launch("exponential", "the chosen" if renormalise else "all", ids, weights, logits)


@op
def top_k_softmax(logits: Float[Array, "T E"], k: int) -> Routed:
    """As softmax_top_k, renormalised: the same kernel."""
    ids, weights = _empty(logits, k)
    top_k_softmax_into(ids, weights, device.array(logits))
    return ids, weights


@kernel
def top_k_softmax_into(ids: Int[Array, "T A"], weights: Float[Array, "T A"], logits: Float[Array, "T E"]) -> None:
    """Write the experts of the largest logits, int32, and the softmax of these, float32."""
    _launch("exponential", "the chosen", ids, weights, logits)


@op
def sigmoid_group_top_k(
    logits: Float[Array, "T E"], k: int, bias: Float[Array, " E"] | None = None, *, groups: int = 1,
    top_groups: int = 1, scale: float = 1.0, renormalise: bool = True,
) -> Routed:
    """Two launches: a warp a token with a group a lane, and a warp a token with an expert a lane."""
    ids, weights = _empty(logits, k)
    E, width = logits.shape[1], logits.shape[1] // max(whole("groups", groups), 1)
    fits = groups * width == E and 1 <= whole("top_groups", top_groups) <= groups and k <= top_groups * width
    require(fits, "C3", f"{groups} groups of {E} experts, the best {top_groups} for {k}")
    settings = {"groups": groups, "top_groups": top_groups, "scale": scale, "renormalise": renormalise}
    sigmoid_group_top_k_into(ids, weights, device.array(logits), _bias(logits, bias), **settings)
    return ids, weights


@kernel
def sigmoid_group_top_k_into(
    ids: Int[Array, "T A"], weights: Float[Array, "T A"], logits: Float[Array, "T E"],
    bias: Float[Array, " E"] | None = None, *, groups: int = 1, top_groups: int = 1, scale: float = 1.0,
    renormalise: bool = True, room: tuple[Array, Array] | None = None,
) -> None:
    """Write the experts of the best groups, int32, and their weights, float32.

    ``room`` is for which groups are closed, int32, and their scores, float32: a number for each token and group.
    """
    closed = None
    if groups > 1:
        shape = len(logits), groups
        closed, sums = room or (device.empty(shape, np.int32), device.empty(shape, np.float32))
        biases = logits.reshape(-1)[:0] if bias is None else bias
        made, grid = close_groups(named(logits), named(biases)), blocks_for(len(logits), WARPS)
        device.launch(made, grid, 32 * WARPS, closed, sums, logits, biases, top_groups)
    _launch("sigmoid", "the chosen" if renormalise else "nothing", ids, weights, logits, bias, closed, scale)


@op
def sqrt_softplus_top_k(
    logits: Float[Array, "T E"], k: int, bias: Float[Array, " E"] | None = None, *, scale: float = 1.0
) -> Routed:
    """One warp a token, eight a block; a score is computed anew in every pass."""
    ids, weights = _empty(logits, k)
    sqrt_softplus_top_k_into(ids, weights, device.array(logits), _bias(logits, bias), scale=scale)
    return ids, weights


@kernel
def sqrt_softplus_top_k_into(
    ids: Int[Array, "T A"], weights: Float[Array, "T A"], logits: Float[Array, "T E"],
    bias: Float[Array, " E"] | None = None, *, scale: float = 1.0,
) -> None:
    """Write the experts of the best biased scores, int32, and their weights, float32."""
    _launch("sqrt_softplus", "the chosen", ids, weights, logits, bias, None, scale)


@op
def hash_route(
    logits: Float[Array, "T E"], token_ids: Int[Array, " T"], table: Int[Array, "V A"], *, scale: float = 1.0
) -> Routed:
    """One thread a token. Ids and table are checked on the host."""
    shapes = logits.shape, token_ids.shape, table.shape
    require(logits.ndim == table.ndim == 2 and shapes[1] == shapes[0][:1], "C1", f"logits, ids, table: shapes {shapes}")
    require(within(token_ids, len(table)), "C2", f"token ids are integers in 0..{len(table) - 1}")
    require(within(table, logits.shape[1]), "C3", f"the table holds integers in 0..{logits.shape[1] - 1}")
    ids, weights = (device.empty((len(logits), table.shape[1]), dtype) for dtype in (np.int32, np.float32))
    rows = device.array(token_ids, np.int32), device.array(table, np.int32)
    hash_route_into(ids, weights, device.array(logits), *rows, scale=scale)
    return ids, weights


@kernel
def hash_route_into(
    ids: Int[Array, "T A"], weights: Float[Array, "T A"], logits: Float[Array, "T E"], token_ids: Int[Array, " T"],
    table: Int[Array, "V A"], *, scale: float = 1.0,
) -> None:
    """Write the experts of token ids, all int32 and within their bounds, and their weights, float32."""
    grid = blocks_for(len(logits), _THREADS)
    device.launch(look_up(named(logits)), grid, _THREADS, ids, weights, logits, token_ids, table, float(scale))


@op
def top_k_sigmoid(logits: Float[Array, "T E"], k: int) -> Routed:
    """One warp a token, eight a block."""
    ids, weights = _empty(logits, k)
    top_k_sigmoid_into(ids, weights, device.array(logits))
    return ids, weights


@kernel
def top_k_sigmoid_into(ids: Int[Array, "T A"], weights: Float[Array, "T A"], logits: Float[Array, "T E"]) -> None:
    """Write the experts of the largest logits, int32, and the sigmoid of each, float32."""
    _launch("plain", "nothing", ids, weights, logits)


def _empty(logits: Array, k: int) -> tuple[Array, Array]:
    fits = logits.ndim == 2 and 1 <= whole("k", k) <= logits.shape[1]
    require(fits, "C1", f"k = {k} of the experts of each row, logits of shape {logits.shape}")
    return device.empty((len(logits), k), np.int32), device.empty((len(logits), k), np.float32)


def _bias(logits: Array, bias: Array | None) -> Array | None:
    fits = bias is None or bias.shape == logits.shape[1:]
    require(fits, "C2", f"bias has shape {bias is not None and bias.shape}, not {logits.shape[1:]}")
    return None if bias is None else device.array(bias)


def _launch(
    form: str, share_of: str, ids: Array, weights: Array, logits: Array, bias: Array | None = None,
    closed: Array | None = None, scale: float = 1.0,
) -> None:
    bias = logits.reshape(-1)[:0] if bias is None else bias
    closed = ids[:0] if closed is None else closed
    made, grid = choose(form, share_of, named(logits), named(bias)), blocks_for(len(logits), WARPS)
    device.launch(made, grid, 32 * WARPS, ids, weights, logits, bias, closed, float(scale))


def _workload(**settings: Any) -> dict[str, Any]:
    draw = np.random.default_rng(0)
    given: dict[str, Any] = {"logits": draw.standard_normal((64, 128), np.float32), "k": 8}
    if settings.pop("biased", False):
        given["bias"] = draw.standard_normal(128, np.float32)
    return given | settings


def _hashed() -> dict[str, Any]:
    draw = np.random.default_rng(0)
    ids, table = draw.integers(0, 1024, 64), draw.integers(0, 128, (1024, 8))
    return {"logits": draw.standard_normal((64, 128), np.float32), "token_ids": ids, "table": table}


def _all(*_: Any, **__: Any) -> bool:
    return True


VARIANTS = (
    Variant("numba", "softmax_top_k", softmax_top_k, _all, lambda: _workload(renormalise=False)),
    Variant("numba", "top_k_softmax", top_k_softmax, _all, _workload),
    Variant("numba", "sigmoid_group_top_k", sigmoid_group_top_k, _all,
            lambda: _workload(biased=True, groups=8, top_groups=4, scale=2.5)),
    Variant("numba", "sqrt_softplus_top_k", sqrt_softplus_top_k, _all, lambda: _workload(biased=True, scale=1.5)),
    Variant("numba", "hash_route", hash_route, _all, _hashed),
    Variant("numba", "top_k_sigmoid", top_k_sigmoid, _all, lambda: _workload(k=1)),
)  # fmt: skip
