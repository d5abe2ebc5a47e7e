"""Faults of routers."""

from typing import Any

import numpy as np

from golden.derive import router
from golden.values import Array

__all__ = [
    "all_groups_open", "bias_in_weights", "bias_subtracted", "groups_by_their_best", "hash_by_scores",
    "later_of_equals", "logits_not_shifted", "loss_without_experts", "masked_at_zero", "not_renormalised",
    "renormalised_always", "root_forgotten", "scale_forgotten", "shares_of_sigmoids", "softmax_of_all",
    "weight_is_one",
]  # fmt: skip

Routed = tuple[Array, Array]


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x.astype(np.float64)))


def _pick(scores: Array, k: int) -> Array:
    return np.argsort(-scores.astype(np.float64), axis=1, kind="stable")[:, :k]


def not_renormalised(logits: Array, k: int, **_: Any) -> Routed:
    """Probabilities of all experts, as they are."""
    return router.softmax_top_k(logits, k, renormalise=False)


def renormalised_always(logits: Array, k: int, **_: Any) -> Routed:
    """The keyword is not read."""
    return router.softmax_top_k(logits, k)


def softmax_of_all(logits: Array, k: int) -> Routed:
    """Softmax before the choice, and no sum after it."""
    return router.softmax_top_k(logits, k, renormalise=False)


def logits_not_shifted(logits: Array, k: int, **_: Any) -> Routed:
    """exp of the logits themselves, in float32."""
    ids = _pick(logits, k)
    picked = np.exp(np.take_along_axis(logits.astype(np.float32), ids, 1))
    return ids, picked / picked.sum(1, keepdims=True)


def later_of_equals(logits: Array, k: int, *rest: Any, **named: Any) -> Routed:
    """Of equal scores the last."""
    function = router.sigmoid_group_top_k if "groups" in named else router.softmax_top_k
    ids, weights = function(logits[:, ::-1], k, *rest, **named)
    return logits.shape[1] - 1 - ids, weights


def masked_at_zero(
    logits: Array, k: int, bias: Array, *, groups: int, top_groups: int, scale: float = 1.0, renormalise: bool = True
) -> Routed:
    """Experts outside the best groups get the score 0, which a negative bias falls below."""
    scores = _sigmoid(logits)
    wanted = (scores + bias).reshape(len(logits), groups, -1)
    best = _pick(np.sort(wanted, 2)[:, :, -2:].sum(2), top_groups)
    is_open = np.zeros((len(logits), groups, 1), bool)
    np.put_along_axis(is_open[:, :, 0], best, True, 1)
    ids = _pick(np.where(is_open, wanted, 0).reshape(logits.shape), k)
    picked = np.take_along_axis(scores, ids, 1)
    return ids, scale * picked / picked.sum(1, keepdims=True)


def groups_by_their_best(
    logits: Array, k: int, bias: Array, *, groups: int, top_groups: int, scale: float = 1.0, renormalise: bool = True
) -> Routed:
    """A group's score is its best expert's."""
    scores = _sigmoid(logits)
    wanted = (scores + bias).reshape(len(logits), groups, -1)
    best = _pick(wanted.max(2), top_groups)
    is_open = np.zeros((len(logits), groups, 1), bool)
    np.put_along_axis(is_open[:, :, 0], best, True, 1)
    ids = _pick(np.where(is_open, wanted, -np.inf).reshape(logits.shape), k)
    picked = np.take_along_axis(scores, ids, 1)
    return ids, scale * picked / picked.sum(1, keepdims=True)


def all_groups_open(logits: Array, k: int, *bias: Array, groups: int, top_groups: int, **named: Any) -> Routed:
    """Groups are not looked at."""
    return router.sigmoid_group_top_k(logits, k, *bias, **named)


def bias_in_weights(logits: Array, k: int, bias: Array, *, scale: float = 1.0, **named: Any) -> Routed:
    """The weights come from the biased scores."""
    is_sigmoid = "groups" in named or "renormalise" in named
    ids, _ = (router.sigmoid_group_top_k if is_sigmoid else router.sqrt_softplus_top_k)(logits, k, bias, **named)
    scores = _sigmoid(logits) if is_sigmoid else np.sqrt(np.logaddexp(0, logits.astype(np.float64)))
    picked = np.take_along_axis(scores + bias, ids, 1)
    return ids, scale * picked / picked.sum(1, keepdims=True)


def bias_subtracted(logits: Array, k: int, bias: Array, *, scale: float = 1.0, **named: Any) -> Routed:
    """Score + bias - bias in float32: a large bias has taken the digits of a small score."""
    ids, _ = router.sigmoid_group_top_k(logits, k, bias, **named)
    biased = _sigmoid(logits).astype(np.float32) + bias.astype(np.float32)
    picked = np.take_along_axis(biased - bias.astype(np.float32), ids, 1)
    return ids, scale * picked / (picked.sum(1, keepdims=True) + 1e-20)


def scale_forgotten(logits: Array, *rest: Any, scale: float, **named: Any) -> Routed:
    """The routed scaling factor is not read."""
    if "table" in named:
        return router.hash_route(logits, *rest, **named)
    return (router.sigmoid_group_top_k if "groups" in named else router.sqrt_softplus_top_k)(logits, *rest, **named)


def root_forgotten(logits: Array, k: int, bias: Array | None = None, *, scale: float = 1.0) -> Routed:
    """Softplus without its root."""
    scores = np.logaddexp(0, logits.astype(np.float64))
    ids = _pick(scores if bias is None else scores + bias, k)
    picked = np.take_along_axis(scores, ids, 1)
    return ids, scale * picked / picked.sum(1, keepdims=True)


def hash_by_scores(logits: Array, token_ids: Array, table: Array, *, scale: float = 1.0) -> Routed:
    """The scores choose, as in the later layers."""
    return router.sqrt_softplus_top_k(logits, table.shape[1], scale=scale)


def shares_of_sigmoids(logits: Array, k: int) -> Routed:
    """Sigmoids divided by their sum."""
    return router.sigmoid_group_top_k(logits, k)


def weight_is_one(logits: Array, k: int) -> Routed:
    """A softmax of one number."""
    return router.top_k_softmax(logits, k)


def loss_without_experts(logits: Array, ids: Array) -> Array:
    """Not multiplied by the number of experts."""
    return router.balance_loss(logits, ids) / logits.shape[1]
