"""Mixtures of experts, one choice at a time: each chosen expert is a feed-forward network of one token."""

import numpy as np

from golden.derive import gated
from golden.derive.layers import gated_mlp, linear
from golden.values import Array

__all__ = [
    "add_shared_expert", "expert_permutation", "grouped_linear", "grouped_moe", "indexed_linear", "indexed_moe", "moe",
]  # fmt: skip


def expert_permutation(ids: Array, num_experts: int) -> tuple[Array, Array]:
    choices = ids.ravel().tolist()
    order = [c for e in range(num_experts) for c, chosen in enumerate(choices) if chosen == e]
    return np.array(order, np.int64), np.array([sum(c < e for c in choices) for e in range(num_experts + 1)])


def grouped_linear(x: Array, w: Array, offsets: Array, b: Array | None = None) -> Array:
    owner = [max(e for e in range(len(w)) if offsets[e] <= r) for r in range(len(x))]
    rows = [linear(x[r : r + 1], w[e], None if b is None else b[e])[0] for r, e in enumerate(owner)]
    return np.array(rows).reshape(len(x), w.shape[1])


def indexed_linear(x: Array, w: Array, ids: Array, b: Array | None = None) -> Array:
    rows = [linear(x[t : t + 1], w[e], None if b is None else b[e]) for t, mine in enumerate(ids) for e in mine]
    return np.array(rows).reshape(*ids.shape, w.shape[1])


def _expert(x: Array, w: tuple[Array, ...], b: tuple[Array | None, ...], name: str, limit: float = 7.0) -> Array:
    """Return one token's feed-forward network."""
    if name != "swiglu_clamped":
        return gated_mlp(x[None], *w, *b, activation=name)[0]
    gate, up = linear(x[None], w[0], b[0]), linear(x[None], w[1], b[1])
    return linear(gated.swiglu_clamped(gate, up, limit=limit), w[2], b[2])[0]


def moe(
    x: Array, ids: Array, weights: Array, w_gate: Array, w_up: Array, w_down: Array, b_gate: Array | None = None,
    b_up: Array | None = None, b_down: Array | None = None, *, activation: str = "silu", limit: float = 7.0,
    weight_inputs: bool = False,
) -> Array:  # fmt: skip
    y = np.zeros(x.shape)
    for t, a in np.ndindex(*ids.shape):
        e, weight = int(ids[t, a]), float(weights[t, a])
        w, b = (w_gate[e], w_up[e], w_down[e]), tuple(None if s is None else s[e] for s in (b_gate, b_up, b_down))
        if weight_inputs:
            y[t] += _expert(weight * x[t], w, b, activation, limit)
        else:
            y[t] += weight * _expert(x[t], w, b, activation, limit)
    return y


grouped_moe = indexed_moe = moe


def add_shared_expert(
    y: Array, x: Array, w_gate: Array, w_up: Array, w_down: Array, w_share: Array | None = None, *,
    activation: str = "silu",
) -> Array:  # fmt: skip
    share = np.ones((len(x), 1)) if w_share is None else gated.sigmoid(linear(x, w_share))
    rows = [_expert(token, (w_gate, w_up, w_down), (None,) * 3, activation) for token in x]
    return y + share * np.array(rows).reshape(x.shape)


