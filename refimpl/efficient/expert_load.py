"""How evenly a router uses its experts: the one with the most tokens sets the pace of all."""

import numpy as np

from refimpl.basics.activation import softmax
from refimpl.contract import Array, Float, Int, UsageError, host, whole, within

__all__ = ["balance_loss", "expert_load", "load_imbalance"]


@host
def expert_load(ids: Int[Array, "T A"], num_experts: int) -> Int[Array, " E"]:
    """Count the tokens that each expert gets.

    >>> expert_load(np.array([[0, 2], [2, 1]]), 4)
    array([1, 1, 2, 0])
    """
    if not within(ids, whole("num_experts", num_experts)):
        raise UsageError(f"experts are integers in 0..{num_experts - 1}, got {ids.dtype} {ids.shape}")
    return np.bincount(ids.reshape(-1).astype(np.int64), minlength=num_experts)


@host
def load_imbalance(load: Int[Array, " E"]) -> float:
    """Return how many times the mean load the largest is: 1 is balance, and the slowest expert sets the pace.

    >>> load_imbalance(np.array([1, 1, 2, 0]))
    2.0
    """
    if load.size == 0 or load.max() <= 0:
        raise UsageError("no expert has a token")
    return float(load.max() / load.mean())


@host
def balance_loss(logits: Float[Array, "T E"], ids: Int[Array, "T A"]) -> float:
    """Return what training adds to its loss so that experts are used evenly: E sum_e load_e / T mean_t p[t, e].

    Fedus, Zoph, Shazeer, Switch transformers, 2021, equations 4 to 6; A when all are even.

    >>> balance_loss(np.zeros((2, 4)), np.array([[0, 1], [2, 3]]))
    2.0
    """
    if logits.ndim != 2 or logits.size == 0 or ids.shape[:1] != logits.shape[:1]:
        raise UsageError(f"logits {logits.shape} and the experts of their tokens {ids.shape}")
    T, E = logits.shape
    return float(E * (expert_load(ids, E) / T * softmax(logits.astype(np.float64)).mean(0)).sum())
