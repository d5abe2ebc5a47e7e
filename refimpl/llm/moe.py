"""Mixtures of experts: each token passes through the few feed-forward networks that its router chose.

``moe`` is the definition. ``grouped_moe`` (prefill) sorts the tokens by expert, so that each expert is one matrix
product; ``indexed_moe`` (decode) reads for each token only what its own experts hold. All three take what a router
gives, and give the same.
"""

from collections.abc import Callable, Mapping

import numpy as np

from refimpl.basics.activation import sigmoid
from refimpl.basics.gated import geglu, swiglu, swiglu_clamped
from refimpl.contract import Array, Float, Int, op, require, widen, within
from refimpl.llm.experts import expert_permutation, grouped_linear, indexed_linear
from refimpl.llm.mlp import gated_mlp

__all__ = ["add_shared_expert", "grouped_moe", "indexed_moe", "moe"]

_GATED: Mapping[str, Callable[..., Array]] = {"gelu_tanh": geglu, "silu": swiglu, "swiglu_clamped": swiglu_clamped}


@op
def moe(
    x: Float[Array, "T D"], ids: Int[Array, "T A"], weights: Float[Array, "T A"], w_gate: Float[Array, "E F D"],
    w_up: Float[Array, "E F D"], w_down: Float[Array, "E D F"], b_gate: Float[Array, "E F"] | None = None,
    b_up: Float[Array, "E F"] | None = None, b_down: Float[Array, "E D"] | None = None, *, activation: str = "silu",
    limit: float = 7.0, weight_inputs: bool = False,
) -> Float[Array, "T D"]:
    """Mix the experts of each token: every expert reads every token, and the chosen are picked and weighed.

    Math: y[t] = sum_a weights[t, a] f_e(x[t]), e = ids[t, a], f_e the gated_mlp of expert e;
        with ``weight_inputs`` (Llama 4) sum_a f_e(weights[t, a] x[t]).
    Cost: 6 T A D F flop for what is picked, E times that as it is written here; 3 E D F weights.
    Numerics: float32 or wider from end to end, one cast; the sum runs over a in order. What is not chosen is left out,
        not multiplied by 0: it may be infinite.
    Constraints:
        (C1) the activation is gelu_tanh, silu or swiglu_clamped.
        (C2) x, the matrices and the biases have the shapes that the signature states.
        (C3) ids and weights have one shape, a row for each token, and the ids are integers in 0..E-1.
        (C4) limit, which swiglu_clamped alone reads, is positive.
    Source: Shazeer et al., Outrageously large neural networks, 2017, equation 1.

    >>> x, w = np.array([[1.0, 2.0]]), np.stack([np.eye(2), 2 * np.eye(2)])
    >>> moe(x, np.array([[1]]), np.array([[0.5]]), w, w, w).round(3) == gated_mlp(x, w[1], w[1], w[1]).round(3) / 2
    array([[ True,  True]])
    """
    stacks = (w_gate, w_up, w_down, b_gate, b_up, b_down)
    rows = _rows(x, ids, weights, activation, limit, weight_inputs, *stacks)
    experts = ([None if stack is None else stack[e] for stack in stacks] for e in range(len(w_gate)))
    every = np.array([gated_mlp(rows, *expert, activation=activation, limit=limit) for expert in experts])
    return _mixed(every[ids.reshape(-1), np.arange(len(rows))], weights, weight_inputs, x)


@op
def grouped_moe(
    x: Float[Array, "T D"], ids: Int[Array, "T A"], weights: Float[Array, "T A"], w_gate: Float[Array, "E F D"],
    w_up: Float[Array, "E F D"], w_down: Float[Array, "E D F"], b_gate: Float[Array, "E F"] | None = None,
    b_up: Float[Array, "E F"] | None = None, b_down: Float[Array, "E D"] | None = None, *, activation: str = "silu",
    limit: float = 7.0, weight_inputs: bool = False,
) -> Float[Array, "T D"]:
    """Mix the experts of each token, sorted by expert: one matrix product an expert and a map (prefill).

    Math: as moe.
    Cost: 6 T A D F flop over 3 D F weights of each expert that has tokens; rows are copied there and back.
    Numerics: as moe. Rows go back to their choices before they are summed: a token's sum has one order, whatever its
        neighbours chose.
    Constraints:
        (C1) the activation is gelu_tanh, silu or swiglu_clamped.
        (C2) x, the matrices and the biases have the shapes that the signature states.
        (C3) ids and weights have one shape, a row for each token, and the ids are integers in 0..E-1.
        (C4) limit, which swiglu_clamped alone reads, is positive.
    Source: Gale et al., MegaBlocks, 2022.

    >>> w = np.stack([np.eye(2), 2 * np.eye(2)])
    >>> mixture = np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([[1, 0], [0, 1]]), np.full((2, 2), 0.5), w, w, w
    >>> bool(np.allclose(grouped_moe(*mixture), moe(*mixture)))
    True
    """
    rows = _rows(x, ids, weights, activation, limit, weight_inputs, w_gate, w_up, w_down, b_gate, b_up, b_down)
    order, offsets = expert_permutation(ids, len(w_gate))
    gate, up = (grouped_linear(rows[order], w, offsets, b) for w, b in ((w_gate, b_gate), (w_up, b_up)))
    down = grouped_linear(_gated(activation, gate, up, limit), w_down, offsets, b_down)
    return _mixed(down[np.argsort(order)], weights, weight_inputs, x)


@op
def indexed_moe(
    x: Float[Array, "T D"], ids: Int[Array, "T A"], weights: Float[Array, "T A"], w_gate: Float[Array, "E F D"],
    w_up: Float[Array, "E F D"], w_down: Float[Array, "E D F"], b_gate: Float[Array, "E F"] | None = None,
    b_up: Float[Array, "E F"] | None = None, b_down: Float[Array, "E D"] | None = None, *, activation: str = "silu",
    limit: float = 7.0, weight_inputs: bool = False,
) -> Float[Array, "T D"]:
    """Mix the experts of each token, each reading the matrices of its own (decode).

    Math: as moe.
    Cost: 6 T A D F flop over as many weights: bound by the bytes of the active experts.
    Numerics: as moe.
    Constraints:
        (C1) the activation is gelu_tanh, silu or swiglu_clamped.
        (C2) x, the matrices and the biases have the shapes that the signature states.
        (C3) ids and weights have one shape, a row for each token, and the ids are integers in 0..E-1.
        (C4) limit, which swiglu_clamped alone reads, is positive.
    Source: the definition.

    >>> w = np.stack([np.eye(2), 2 * np.eye(2)])
    >>> mixture = np.array([[1.0, 2.0]]), np.array([[1, 0]]), np.array([[0.75, 0.25]]), w, w, w
    >>> bool(np.allclose(indexed_moe(*mixture), moe(*mixture)))
    True
    """
    rows = _rows(x, ids, weights, activation, limit, weight_inputs, w_gate, w_up, w_down, b_gate, b_up, b_down)
    each = ids.reshape(-1, 1)
    gate, up = (indexed_linear(rows, w, each, b)[:, 0] for w, b in ((w_gate, b_gate), (w_up, b_up)))
    down = indexed_linear(_gated(activation, gate, up, limit), w_down, each, b_down)
    return _mixed(down[:, 0], weights, weight_inputs, x)


@op
def add_shared_expert(
    y: Float[Array, "T D"], x: Float[Array, "T D"], w_gate: Float[Array, "F D"], w_up: Float[Array, "F D"],
    w_down: Float[Array, "D F"], w_share: Float[Array, "1 D"] | None = None, *, activation: str = "silu",
) -> Float[Array, "T D"]:
    """Add to a mixture the expert that every token passes through (DeepSeek, Llama 4; Qwen2-MoE gates it).

    Math: y[t] + g f(x[t]), f the gated_mlp, g = sigmoid(w_share x[t]), or 1 without w_share.
    Cost: 6 T D F flop over 3 D F weights, as gated_mlp.
    Numerics: float32 or wider from end to end, one cast to the dtype of y.
    Constraints:
        (C1) the activation is gelu_tanh, silu or swiglu_clamped.
        (C2) x, the matrices and the biases have the shapes that the signature states.
        (C3) y and x have one shape, and w_share, if there is one, is one row of their width.
    Source: Dai et al., DeepSeekMoE, 2024, section 3.2; Qwen Team, Qwen1.5-MoE, 2024.

    >>> x, w = np.array([[1.0, -2.0]]), np.eye(2)
    >>> add_shared_expert(x, x, w, w, w, np.zeros((1, 2))) == x + gated_mlp(x, w, w, w) / 2
    array([[ True,  True]])
    """
    _check_experts(x, activation, 2, w_gate, w_up, w_down)
    fits = y.shape == x.shape and (w_share is None or w_share.shape == (1, *x.shape[1:]))
    require(fits, "C3", f"y has shape {y.shape}, x {x.shape}, w_share {w_share is not None and w_share.shape}")
    share = 1.0 if w_share is None else sigmoid(widen(x) @ widen(w_share).T)
    shared = gated_mlp(widen(x), w_gate, w_up, w_down, activation=activation)
    return (widen(y) + share * shared).astype(y.dtype, copy=False)


def _check_experts(x: Array, activation: str, count: int, *stacks: Array) -> None:
    require(activation in _GATED, "C1", f"activation {activation!r}, not one of {', '.join(_GATED)}")
    shapes = [() if w is None else w.shape for w in stacks]
    wide, tall = shapes[0], (*shapes[0][:-2], *shapes[0][:-3:-1])
    stated = zip(stacks, shapes, (wide, wide, tall, wide[:-1], wide[:-1], tall[:-1]), strict=False)
    fits = x.shape[1:] == wide[-1:] and len(wide) == count and all(w is None or one == two for w, one, two in stated)
    require(fits, "C2", f"x {x.shape} and weights or biases do not fit, got shapes {shapes}")


def _gated(activation: str, gate: Array, up: Array, limit: float) -> Array:
    bound = {"limit": limit} if activation == "swiglu_clamped" else {}
    return _GATED[activation](gate, up, **bound)


def _rows(
    x: Array, ids: Array, weights: Array, activation: str, limit: float, weighed: bool, *stacks: Array
) -> Array:
    """Return what the expert of each choice reads."""
    _check_experts(x, activation, 3, *stacks)
    fits = ids.shape == weights.shape and ids.ndim == 2 and len(ids) == len(x) and within(ids, len(stacks[0]))
    require(fits, "C3", f"{len(x)} tokens have ids in 0..{len(stacks[0]) - 1}, weights: {ids.shape}, {weights.shape}")
    require(limit > 0, "C4", f"limit is {limit}, not positive")
    rows = np.repeat(widen(x), ids.shape[1], axis=0)
    return rows * widen(weights).reshape(-1, 1) if weighed else rows


def _mixed(rows: Array, weights: Array, weighed: bool, x: Array) -> Array:
    """Sum what the experts of each token gave."""
    parts = rows.reshape(*weights.shape, rows.shape[1])
    return (parts if weighed else parts * widen(weights)[:, :, None]).sum(1).astype(x.dtype, copy=False)
