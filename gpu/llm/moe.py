"""Mixtures of experts, grouped by expert or indexed: a token's result has the same bits in either, in any batch."""

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from gpu import device
from gpu.basics.gated import gated_into
from gpu.basics.linear import linear_into
from gpu.grid import blocks_for
from gpu.llm.experts import expert_permutation_into, grouped_linear_into, indexed_linear_into
from gpu.llm.moe_kernels import mix, share, spread
from gpu.number import named
from gpu.registry import Variant
from refimpl.contract import Array, Float, Int, kernel, op, require, within

__all__ = [
    "VARIANTS", "add_shared_expert", "add_shared_expert_into", "grouped_moe", "grouped_moe_into", "indexed_moe",
    "indexed_moe_into", "mix_into", "moe", "moe_into", "share_into", "spread_into",
]  # fmt: skip

_GATED = ("gelu_tanh", "silu", "swiglu_clamped")
_FEW = 8  # tokens up to which every choice reads its matrices by itself
_THREADS = 256


@op
def moe(
    x: Float[Array, "T D"], ids: Int[Array, "T A"], weights: Float[Array, "T A"], w_gate: Float[Array, "E F D"],
    w_up: Float[Array, "E F D"], w_down: Float[Array, "E D F"], b_gate: Float[Array, "E F"] | None = None,
    b_up: Float[Array, "E F"] | None = None, b_down: Float[Array, "E D"] | None = None, *, activation: str = "silu",
    limit: float = 7.0, weight_inputs: bool = False,
) -> Float[Array, "T D"]:
    """Indexed up to 8 tokens, else grouped: no expert reads a token that did not choose it."""
    stacks = (w_gate, w_up, w_down, b_gate, b_up, b_down)
    settings = {"activation": activation, "limit": limit, "weight_inputs": weight_inputs}
    return _mixture(moe_into, x, ids, weights, *stacks, **settings)


@kernel
def moe_into(
    y: Float[Array, "T D"], x: Float[Array, "T D"], ids: Int[Array, "T A"], weights: Float[Array, "T A"],
    *stacks: Float[Array, "..."] | None, activation: str = "silu", limit: float = 7.0, weight_inputs: bool = False,
) -> None:
    """Write the mixture of ``x`` into ``y``, by the kernels that suit its number of tokens."""
    into = indexed_moe_into if len(x) <= _FEW else grouped_moe_into
    into(y, x, ids, weights, *stacks, activation=activation, limit=limit, weight_inputs=weight_inputs)


@op
def grouped_moe(
    x: Float[Array, "T D"], ids: Int[Array, "T A"], weights: Float[Array, "T A"], w_gate: Float[Array, "E F D"],
    w_up: Float[Array, "E F D"], w_down: Float[Array, "E D F"], b_gate: Float[Array, "E F"] | None = None,
    b_up: Float[Array, "E F"] | None = None, b_down: Float[Array, "E D"] | None = None, *, activation: str = "silu",
    limit: float = 7.0, weight_inputs: bool = False,
) -> Float[Array, "T D"]:
    """Nine launches: the sort (3), rows to their experts, two grouped maps, the gate, the third map, the sum."""
    stacks = (w_gate, w_up, w_down, b_gate, b_up, b_down)
    settings = {"activation": activation, "limit": limit, "weight_inputs": weight_inputs}
    return _mixture(grouped_moe_into, x, ids, weights, *stacks, **settings)


@kernel
def grouped_moe_into(
    y: Float[Array, "T D"], x: Float[Array, "T D"], ids: Int[Array, "T A"], weights: Float[Array, "T A"],
    w_gate: Float[Array, "E F D"], w_up: Float[Array, "E F D"], w_down: Float[Array, "E D F"],
    b_gate: Float[Array, "E F"] | None = None, b_up: Float[Array, "E F"] | None = None,
    b_down: Float[Array, "E D"] | None = None, *, activation: str = "silu", limit: float = 7.0,
    weight_inputs: bool = False,
) -> None:
    """Write the mixture of ``x`` into ``y``; the ids are int32 and within the stacks. Buffers are made here."""
    if x.size == 0:
        return
    order, places = device.empty((2, ids.size), np.int32)
    offsets = device.empty(len(w_gate) + 1, np.int32)
    expert_permutation_into(order, offsets, ids, places)
    rows = _spread(x, weights, weight_inputs, places)
    gate, up = device.empty((2, ids.size, w_gate.shape[1]), np.float32)
    grouped_linear_into(gate, rows, w_gate, offsets, b_gate)
    grouped_linear_into(up, rows, w_up, offsets, b_up)
    gated_into(gate, gate, up, activation, limit=limit)
    down = device.empty((ids.size, y.shape[1]), np.float32)
    grouped_linear_into(down, gate, w_down, offsets, b_down)
    mix_into(y, down, weights, places, is_weighed=not weight_inputs)


@op
def indexed_moe(
    x: Float[Array, "T D"], ids: Int[Array, "T A"], weights: Float[Array, "T A"], w_gate: Float[Array, "E F D"],
    w_up: Float[Array, "E F D"], w_down: Float[Array, "E D F"], b_gate: Float[Array, "E F"] | None = None,
    b_up: Float[Array, "E F"] | None = None, b_down: Float[Array, "E D"] | None = None, *, activation: str = "silu",
    limit: float = 7.0, weight_inputs: bool = False,
) -> Float[Array, "T D"]:
    """Five launches: two indexed maps, the gate, the third map, the sum; one more where the inputs are weighed."""
    stacks = (w_gate, w_up, w_down, b_gate, b_up, b_down)
    settings = {"activation": activation, "limit": limit, "weight_inputs": weight_inputs}
    return _mixture(indexed_moe_into, x, ids, weights, *stacks, **settings)


@kernel
def indexed_moe_into(
    y: Float[Array, "T D"], x: Float[Array, "T D"], ids: Int[Array, "T A"], weights: Float[Array, "T A"],
    w_gate: Float[Array, "E F D"], w_up: Float[Array, "E F D"], w_down: Float[Array, "E D F"],
    b_gate: Float[Array, "E F"] | None = None, b_up: Float[Array, "E F"] | None = None,
    b_down: Float[Array, "E D"] | None = None, *, activation: str = "silu", limit: float = 7.0,
    weight_inputs: bool = False,
) -> None:
    """Write the mixture of ``x`` into ``y``; the ids are int32 and within the stacks. Buffers are made here."""
    if x.size == 0:
        return
    each = ids.reshape(-1, 1)
    rows, chosen = (_spread(x, weights, True), each) if weight_inputs else (x, ids)
    gate, up = device.empty((2, ids.size, w_gate.shape[1]), np.float32)
    indexed_linear_into(gate, rows, w_gate, chosen, b_gate)
    indexed_linear_into(up, rows, w_up, chosen, b_up)
    gated_into(gate, gate, up, activation, limit=limit)
    down = device.empty((ids.size, y.shape[1]), np.float32)
    indexed_linear_into(down, gate, w_down, each, b_down)
    mix_into(y, down, weights, is_weighed=not weight_inputs)


@op
def add_shared_expert(
    y: Float[Array, "T D"], x: Float[Array, "T D"], w_gate: Float[Array, "F D"], w_up: Float[Array, "F D"],
    w_down: Float[Array, "D F"], w_share: Float[Array, "1 D"] | None = None, *, activation: str = "silu",
) -> Float[Array, "T D"]:
    """Four launches, as gated_mlp, y added by the last; with w_share two more, which weigh the wide layer's rows."""
    _check_experts(x, activation, 2, w_gate, w_up, w_down)
    fits = y.shape == x.shape and (w_share is None or w_share.shape == (1, *x.shape[1:]))
    require(fits, "C3", f"y has shape {y.shape}, x {x.shape}, w_share {w_share is not None and w_share.shape}")
    out = device.empty(y.shape, y.dtype)
    weights = (None if w is None else device.array(w) for w in (w_gate, w_up, w_down, w_share))
    add_shared_expert_into(out, device.array(y), device.array(x), *weights, activation=activation)
    return out


@kernel
def add_shared_expert_into(
    out: Float[Array, "T D"], y: Float[Array, "T D"], x: Float[Array, "T D"], w_gate: Float[Array, "F D"],
    w_up: Float[Array, "F D"], w_down: Float[Array, "D F"], w_share: Float[Array, "1 D"] | None = None, *,
    activation: str = "silu",
) -> None:
    """Write y and the shared expert of ``x`` into ``out``, which may be ``y``."""
    gate, up = device.empty((2, len(x), len(w_gate)), np.float32)
    linear_into(gate, x, w_gate)
    linear_into(up, x, w_up)
    gated_into(gate, gate, up, activation)
    if w_share is not None:
        shares = device.empty((len(x), 1), np.float32)
        linear_into(shares, x, w_share)
        share_into(gate, shares)
    linear_into(out, gate, w_down, None, y)


@kernel
def spread_into(
    rows: Float[Array, "rows D"], x: Float[Array, "T D"], weights: Float[Array, "T A"],
    places: Int[Array, " rows"] | None = None, *, is_weighed: bool = False,
) -> None:
    """Write each token to the rows of its choices, ``places`` or these themselves, times their weights if asked."""
    made, flat = spread(named(rows), named(x), named(weights), is_weighed), weights.reshape(-1)
    places = device.empty(0, np.int32) if places is None else places
    device.launch(made, blocks_for(rows.size, _THREADS), _THREADS, rows, x, flat, places)


@kernel
def mix_into(
    y: Float[Array, "T D"], rows: Float[Array, "rows D"], weights: Float[Array, "T A"],
    places: Int[Array, " rows"] | None = None, *, is_weighed: bool = True,
) -> None:
    """Write the sum of the float32 rows of each token's choices into ``y``, times their weights if asked."""
    places = device.empty(0, np.int32) if places is None else places
    made = mix(named(y), named(weights), is_weighed)
    device.launch(made, blocks_for(y.size, _THREADS), _THREADS, y, rows, weights, places)


@kernel
def share_into(rows: Float[Array, "T F"], shares: Float[Array, "T 1"]) -> None:
    """Multiply each row by the sigmoid of its share; all float32."""
    device.launch(share(), blocks_for(rows.size, _THREADS), _THREADS, rows, shares)


def _check_experts(x: Array, activation: str, count: int, *stacks: Array) -> None:
    require(activation in _GATED, "C1", f"activation {activation!r}, not one of {', '.join(_GATED)}")
    shapes = [() if w is None else w.shape for w in stacks]
    wide, tall = shapes[0], (*shapes[0][:-2], *shapes[0][:-3:-1])
    stated = zip(stacks, shapes, (wide, wide, tall, wide[:-1], wide[:-1], tall[:-1]), strict=False)
    fits = x.shape[1:] == wide[-1:] and len(wide) == count and all(w is None or one == two for w, one, two in stated)
    require(fits, "C2", f"x {x.shape} and weights or biases do not fit, got shapes {shapes}")


def _mixture(
    into: Callable[..., None], x: Array, ids: Array, weights: Array, *stacks: Array | None, **settings: Any
) -> Array:
    """Check, allocate and launch; the ids are checked on the host."""
    _check_experts(x, settings["activation"], 3, *stacks)
    fits = ids.shape == weights.shape and ids.ndim == 2 and len(ids) == len(x) and within(ids, len(stacks[0]))
    require(fits, "C3", f"{len(x)} tokens have ids in 0..{len(stacks[0]) - 1}, weights: {ids.shape}, {weights.shape}")
    require(settings["limit"] > 0, "C4", f"limit is {settings['limit']}, not positive")
    y = device.empty(x.shape, x.dtype)
    there = (None if stack is None else device.array(stack) for stack in stacks)
    into(y, device.array(x), device.array(ids, np.int32), device.array(weights), *there, **settings)
    return y


def _spread(x: Array, weights: Array, is_weighed: bool, places: Array | None = None) -> Array:
    """Return the rows that the experts read: as they are stored, or weighed and in float32."""
    rows = device.empty((weights.size, x.shape[1]), np.float32 if is_weighed else x.dtype)
    spread_into(rows, x, weights, places, is_weighed=is_weighed)
    return rows


def _workload(T: int) -> dict[str, Any]:
    draw = np.random.default_rng(0)
    shapes = {"x": (T, 256), "w_gate": (8, 128, 256), "w_up": (8, 128, 256), "w_down": (8, 256, 128)}
    given = {name: draw.standard_normal(shape).astype(ml_dtypes.bfloat16) for name, shape in shapes.items()}
    ids = np.argsort(draw.random((T, 8)), axis=1)[:, :2]
    return given | {"ids": ids, "weights": np.full((T, 2), 0.5, np.float32)}


def _shared() -> dict[str, Any]:
    draw = np.random.default_rng(0).standard_normal
    shapes = {"y": (1, 256), "x": (1, 256), "w_gate": (512, 256), "w_up": (512, 256), "w_down": (256, 512)}
    return {name: draw(shape).astype(ml_dtypes.bfloat16) for name, shape in (shapes | {"w_share": (1, 256)}).items()}


VARIANTS = (
    Variant("grouped", "moe", grouped_moe, lambda *_, **__: True, lambda: _workload(64)),
    Variant("indexed", "moe", indexed_moe, lambda *_, **__: True, lambda: _workload(1)),
    Variant("numba", "grouped_moe", grouped_moe, lambda *_, **__: True, lambda: _workload(64)),
    Variant("numba", "indexed_moe", indexed_moe, lambda *_, **__: True, lambda: _workload(1)),
    Variant("numba", "add_shared_expert", add_shared_expert, lambda *_, **__: True, _shared),
)
