"""The executor's kernels of gates, routers and mixtures as operations on NumPy arrays: a part of ``operations``."""

from collections.abc import Callable
from typing import Any

import numba
import numpy as np

from gpu.executor.elementary import GATED, activate_gated
from gpu.executor.jit import compile_now, jit
from gpu.executor.layers import layer_fields
from gpu.executor.memory import aligned
from gpu.executor.network import run_network
from gpu.executor.plan import CHUNK, Plan
from gpu.executor.program import LAYER
from gpu.executor.router import route_row, router_bytes
from gpu.executor.step import PHASES_PER_LAYER
from gpu.executor.team import pointer
from gpu.executor.threads import Pool
from gpu.executor.vector import LANES, load_part, store_part
from gpu.executor.weights import Weights
from gpu.executor.workspace import Workspace, scratch_bytes
from refimpl.contract import Array, host
from refimpl.models.spec import AttentionSpec, LayerSpec, ModelSpec, MoeSpec
from refimpl.models.tensor import Tensor

__all__ = ["gate", "mix_experts", "route", "takes_gate"]

_ATTENTION = AttentionSpec(1, 1, 1)  # of a layer whose network alone is asked for


@jit
def _gate_row(x, up, out, count, code, limit):
    for i in range(0, count, LANES):
        left = count - i
        value = activate_gated(load_part(x + 4 * i, left), load_part(up + 4 * i, left), code, limit)
        store_part(out + 4 * i, value, left)


@host
def gate(activation: str) -> Callable[..., Array]:
    """Return the gated activation of a name in GATED."""

    def apply(gate: Array, up: Array, *, alpha: float = 1.702, limit: float = 7.0) -> Array:
        x, other = (np.ascontiguousarray(each, np.float32) for each in (gate, up))
        out = np.empty_like(x)
        _gate_row(*(each.ctypes.data for each in (x, other, out)), x.size, GATED.index(activation), float(limit))
        return out.astype(gate.dtype)

    return apply


@host
def takes_gate(gate: Array, up: Array, *, alpha: float = 1.702, limit: float = 7.0) -> bool:
    """Say whether the kernel takes a gate: of one shape with what it gates, and of gpt-oss's steepness."""
    return gate.shape == up.shape and alpha == 1.702 and limit > 0


@jit
def _route_rows(layer, logits, tokens, ids, shares, scratch):
    record = numba.carray(pointer(layer), 1, LAYER)[0]
    for t in range(tokens):
        places = ids + 8 * t * record.active, shares + 4 * t * record.active
        route_row(record, logits + 4 * t * record.experts, *places, scratch)


@host
def route(router: str) -> Callable[..., tuple[Array, Array]]:
    """Return the router of that name."""

    def apply(logits: Array, k: int, bias: Array | None = None, **routing: Any) -> tuple[Array, Array]:
        rows, (tokens, experts) = np.ascontiguousarray(logits, np.float32), logits.shape
        moe = MoeSpec(experts, k, 1, router=router, routing=tuple(routing.items()), correction=bias is not None)
        record, held = np.zeros(1, LAYER), None if bias is None else np.ascontiguousarray(bias, np.float32)
        for name, value in layer_fields(LayerSpec(_ATTENTION, moe)).items():
            record[name] = value
        record["correction"] = 0 if held is None else held.ctypes.data
        ids, shares = np.empty((tokens, k), np.int64), np.empty((tokens, k), np.float32)
        scratch = aligned(router_bytes.py_func(experts))
        places = (each.ctypes.data for each in (ids, shares, scratch))
        _route_rows(record.ctypes.data, rows.ctypes.data, tokens, *places)
        return ids.astype(np.int32), shares

    return apply


@host
def mix_experts(
    x: Array, ids: Array, weights: Array, w_gate: Array, w_up: Array, w_down: Array, b_gate: Array | None = None,
    b_up: Array | None = None, b_down: Array | None = None, *, activation: str = "silu", weight_inputs: bool = False,
    limit: float = 7.0,
) -> Array:  # fmt: skip
    """Mix the experts of each token."""
    moe = MoeSpec(len(w_gate), ids.shape[1], w_gate.shape[1], activation, limit, weight_inputs=weight_inputs)
    names = [f"layers.0.experts.{kind}_{name}" for kind in "wb" for name in ("gate", "up", "down")]
    arrays = zip(names, (w_gate, w_up, w_down, b_gate, b_up, b_down), strict=True)
    tensors = {name: Tensor(each.dtype.name, each.shape, each) for name, each in arrays if each is not None}
    chunks = [slice(i, i + CHUNK) for i in range(0, len(x), CHUNK)]
    parts = [_mix_chunk(moe, tensors, x[chunk], ids[chunk], weights[chunk]) for chunk in chunks]
    return np.concatenate([x[:0], *parts]).astype(x.dtype)


def _mix_chunk(moe: MoeSpec, tensors: dict[str, Tensor], x: Array, ids: Array, shares: Array) -> Array:
    spec = ModelSpec("", 1, x.shape[1], (LayerSpec(_ATTENTION, moe),), CHUNK, tied_embeddings=True)
    plan, pool, held = Plan(1, 1, 1, CHUNK), Pool(1, PHASES_PER_LAYER, scratch_bytes(spec)), Weights(spec, tensors)
    work, tokens = Workspace(spec, held, plan, pool.teams, False), len(x)
    work.set(tokens=tokens)
    x_rows, read = (work.memory[name].view(np.float32).reshape(CHUNK, -1)[:tokens] for name in ("x", "normed"))
    read[:, : x.shape[1]] = x
    work.memory["ids"].view(np.int64)[: ids.size] = ids.ravel()
    work.memory["shares"].view(np.float32)[: ids.size] = shares.ravel()
    compile_now(run_network)
    pool.run(run_network, work.address)
    pool.close()
    return x_rows[:, : x.shape[1]].copy()
