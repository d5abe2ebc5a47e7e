"""Faults of mixtures of experts."""

from typing import Any

import numpy as np

from golden.derive import moe
from golden.values import Array

__all__ = [
    "bias_of_the_first", "choices_reversed", "ends_for_offsets", "first_matrix_for_all", "inputs_not_weighed",
    "limit_ignored", "not_put_back", "output_weighed_twice", "share_ignored", "unchosen_times_zero", "unstable",
    "weights_ignored", "y_forgotten",
]  # fmt: skip


def unstable(ids: Array, num_experts: int) -> tuple[Array, Array]:
    """An expert's tokens come in the reverse order."""
    order, offsets = moe.expert_permutation(ids.reshape(-1)[::-1], num_experts)
    return ids.size - 1 - order, offsets


def ends_for_offsets(ids: Array, num_experts: int) -> tuple[Array, Array]:
    """Where experts end, and no first 0."""
    order, offsets = moe.expert_permutation(ids, num_experts)
    return order, np.append(offsets[1:], ids.size + 1)


def first_matrix_for_all(w: Array, **named: Any) -> Array:
    """Every row meets the first matrix."""
    return _map(w=np.broadcast_to(w[:1], w.shape), **named)


def bias_of_the_first(b: Array, **named: Any) -> Array:
    """Every row gets the first bias."""
    return _map(b=np.broadcast_to(b[:1], b.shape), **named)


def _map(**named: Any) -> Array:
    return (moe.grouped_linear if "offsets" in named else moe.indexed_linear)(**named)


def choices_reversed(x: Array, w: Array, ids: Array, b: Array | None = None) -> Array:
    """Of a token's experts the last comes first."""
    return moe.indexed_linear(x, w, ids[:, ::-1], b)


def not_put_back(x: Array, ids: Array, weights: Array, **named: Any) -> Array:
    """Rows stay sorted by expert when they are summed."""
    order, _ = moe.expert_permutation(ids, len(named["w_gate"]))
    tokens = order // ids.shape[1]
    return moe.moe(x[tokens], ids.reshape(-1, 1)[order], weights.reshape(-1, 1), **named).reshape(*ids.shape, -1).sum(1)


def weights_ignored(x: Array, ids: Array, weights: Array, **named: Any) -> Array:
    """Every chosen expert counts alike."""
    return moe.moe(x, ids, np.full(weights.shape, 1 / weights.shape[1]), **named)


def output_weighed_twice(x: Array, ids: Array, weights: Array, **named: Any) -> Array:
    """Weights are squared."""
    return moe.moe(x, ids, weights * weights, **named)


def inputs_not_weighed(x: Array, ids: Array, weights: Array, weight_inputs: bool, **named: Any) -> Array:
    """The weight multiplies what the expert gives, not what it reads."""
    return moe.moe(x, ids, weights, **named)


def unchosen_times_zero(x: Array, ids: Array, weights: Array, w_gate: Array, **named: Any) -> Array:
    """What is not chosen is multiplied by 0, and NaN stays."""
    y = moe.moe(x, ids, weights, w_gate=w_gate, **named)
    for e in range(len(w_gate)):
        y += 0 * moe.moe(x, np.full_like(ids, e), weights, w_gate=w_gate, **named)
    return y


def limit_ignored(x: Array, ids: Array, weights: Array, limit: float, **named: Any) -> Array:
    """The bound of gpt-oss whatever is asked."""
    return moe.moe(x, ids, weights, **named)


def share_ignored(y: Array, x: Array, w_share: Array, **named: Any) -> Array:
    """The shared expert counts in full."""
    return moe.add_shared_expert(y, x, **named)


def y_forgotten(y: Array, x: Array, **named: Any) -> Array:
    """The shared expert alone."""
    return moe.add_shared_expert(np.zeros(y.shape), x, **named)
