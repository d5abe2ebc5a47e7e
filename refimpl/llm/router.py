"""Routers: to which experts of a mixture each token goes, and with what weight.

A router reads logits, a linear map of the tokens, and chooses k of E experts for each token: the largest, of equals the
lower index, NaN before all others (as in PyTorch). Ids come in the order of the choice, int32. Scores and weights are
float32, or float64 for float64 logits: a router does not round to 16 bits what it compares.
"""

from typing import TypeAlias

import numpy as np

from refimpl.basics.activation import sigmoid, softmax, softplus
from refimpl.contract import Array, Float, Int, op, require, whole, widen, within

__all__ = [
    "Routed", "hash_route", "sigmoid_group_top_k", "softmax_top_k", "sqrt_softplus_top_k", "top_k_sigmoid",
    "top_k_softmax",
]  # fmt: skip

Routed: TypeAlias = tuple[Int[Array, "T A"], Float[Array, "T A"]]  # the experts of each token, and their weights


@op
def softmax_top_k(logits: Float[Array, "T E"], k: int, *, renormalise: bool = True) -> Routed:
    """Choose the k likeliest experts (Mixtral, Qwen3-MoE; Qwen2-MoE without renormalisation).

    Math: p = softmax(l); ids = the k largest; w_a = p[ids_a], divided by their sum if ``renormalise``.
    Cost: about 4 T E flop and T E exp, k comparisons an expert; T E logits read: latency in decode.
    Numerics: chosen on the logits, in whose order the probabilities are, also where they underflow.
    Constraints:
        (C1) logits are rows of at least k experts, and k is at least 1.
    Source: Shazeer et al., Outrageously large neural networks: the sparsely-gated mixture-of-experts layer, 2017.

    >>> softmax_top_k(np.log([[0.1, 0.6, 0.3]]), 2)[1].round(3), softmax_top_k(np.log([[0.1, 0.6, 0.3]]), 2)[0]
    (array([[0.667, 0.333]]), array([[1, 2]], dtype=int32))
    >>> softmax_top_k(np.log([[0.1, 0.6, 0.3]]), 2, renormalise=False)[1].round(3)
    array([[0.6, 0.3]])
    """
    ids = _choose(_checked(logits, k), k)
    weights = np.take_along_axis(softmax(widen(logits)), ids, 1)
    return ids, weights / weights.sum(1, keepdims=True) if renormalise else weights


@op
def top_k_softmax(logits: Float[Array, "T E"], k: int) -> Routed:
    """Choose the k largest logits, and take the softmax of these (gpt-oss, Mixtral's paper).

    Math: ids = the k largest; w = softmax(l[ids]): what softmax_top_k renormalises to.
    Cost: T k exp, k comparisons an expert; T E logits read: latency in decode.
    Numerics: as softmax.
    Constraints:
        (C1) logits are rows of at least k experts, and k is at least 1.
    Source: Jiang et al., Mixtral of experts, 2024.

    >>> top_k_softmax(np.log([[0.1, 0.6, 0.3]]), 2)[1].round(3)
    array([[0.667, 0.333]])
    """
    ids = _choose(_checked(logits, k), k)
    return ids, softmax(np.take_along_axis(widen(logits), ids, 1))


@op
def sigmoid_group_top_k(
    logits: Float[Array, "T E"], k: int, bias: Float[Array, " E"] | None = None, *, groups: int = 1,
    top_groups: int = 1, scale: float = 1.0, renormalise: bool = True,
) -> Routed:
    """Choose experts from the best groups, by sigmoid scores and a bias that only chooses (DeepSeek-V3).

    Math: s = sigmoid(l); c = s + bias; a group's score is the sum of its two largest c; c = -inf outside the best
        groups; ids = the k largest c; w_a = scale s[ids_a] / (sum_a s[ids_a] + 1e-20), or undivided.
    Cost: T E sigmoids, k comparisons an expert; T E logits read: latency in decode.
    Numerics: the weight is the score itself, never what is left of c without the bias, which has lost its digits.
    Constraints:
        (C1) logits are rows of at least k experts, and k is at least 1.
        (C2) bias holds one number for each expert.
        (C3) groups divide the experts, and the ``top_groups`` best of them hold k.
    Source: DeepSeek-AI, DeepSeek-V3 technical report, 2024, section 2.1.2.

    >>> ids, weights = sigmoid_group_top_k(np.zeros((1, 4)), 2, np.array([0.0, 0.0, 2.0, 1.0]), groups=2, scale=2.5)
    >>> ids, weights
    (array([[2, 3]], dtype=int32), array([[1.25, 1.25]]))
    """
    scores = sigmoid(_checked(logits, k))
    (T, E), width = scores.shape, scores.shape[1] // max(whole("groups", groups), 1)
    fits = groups * width == E and 1 <= whole("top_groups", top_groups) <= groups and k <= top_groups * width
    require(fits, "C3", f"{groups} groups of {E} experts, the best {top_groups} for {k}")
    chosen_by = _biased(scores, bias).reshape(T, groups, width)
    best = _choose(np.sort(chosen_by, 2)[:, :, -2:].sum(2), top_groups)
    is_open = (best[:, None] == np.arange(groups)[:, None]).any(2, keepdims=True)
    ids = _choose(np.where(is_open, chosen_by, -np.inf).reshape(T, E), k)
    return ids, _weights(scores, ids, scale, renormalise)


@op
def sqrt_softplus_top_k(
    logits: Float[Array, "T E"], k: int, bias: Float[Array, " E"] | None = None, *, scale: float = 1.0
) -> Routed:
    """Choose experts by roots of softplus and a bias that only chooses (DeepSeek-V4).

    Math: s = sqrt(softplus(l)); ids = the k largest s + bias; w_a = scale s[ids_a] / (sum_a s[ids_a] + 1e-20).
    Cost: T E softplus, k comparisons an expert; T E logits read: latency in decode.
    Numerics: as sigmoid_group_top_k; the score has no upper bound.
    Constraints:
        (C1) logits are rows of at least k experts, and k is at least 1.
        (C2) bias holds one number for each expert.
    Source: DeepSeek-AI, DeepSeek-V4, 2026, section 2.1.

    >>> sqrt_softplus_top_k(np.array([[0.0, 100.0, -100.0]]), 2, np.array([0.0, 0.0, 9.5]))[0]
    array([[1, 2]], dtype=int32)
    """
    scores = np.sqrt(softplus(_checked(logits, k)))
    ids = _choose(_biased(scores, bias), k)
    return ids, _weights(scores, ids, scale)


@op
def hash_route(
    logits: Float[Array, "T E"], token_ids: Int[Array, " T"], table: Int[Array, "V A"], *, scale: float = 1.0
) -> Routed:
    """Look the experts of a token up by its id; only their weights are learned (first layers of DeepSeek-V4).

    Math: ids = table[token_ids]; s = sqrt(softplus(l)); w_a = scale s[ids_a] / (sum_a s[ids_a] + 1e-20).
    Cost: T A softplus; T A logits and ids read: latency.
    Numerics: as sqrt_softplus_top_k.
    Constraints:
        (C1) logits and table are matrices, and each token has an id.
        (C2) token ids are integers in 0..V-1.
        (C3) the experts in the table are integers in 0..E-1.
    Source: Roller et al., Hash layers for large sparse models, 2021; DeepSeek-AI, DeepSeek-V4, 2026, section 2.1.

    >>> hash_route(np.zeros((1, 4)), np.array([1]), np.array([[0, 1], [3, 0]]))
    (array([[3, 0]], dtype=int32), array([[0.5, 0.5]]))
    """
    shapes = logits.shape, token_ids.shape, table.shape
    require(logits.ndim == table.ndim == 2 and shapes[1] == shapes[0][:1], "C1", f"logits, ids, table: shapes {shapes}")
    require(within(token_ids, len(table)), "C2", f"token ids are integers in 0..{len(table) - 1}")
    require(within(table, logits.shape[1]), "C3", f"the table holds integers in 0..{logits.shape[1] - 1}")
    ids = table[token_ids].astype(np.int32)
    return ids, _weights(np.sqrt(softplus(widen(logits))), ids, scale)


@op
def top_k_sigmoid(logits: Float[Array, "T E"], k: int) -> Routed:
    """Choose the k largest logits, each weighed by its own sigmoid (Llama 4, where it multiplies the expert's input).

    Math: ids = the k largest; w_a = sigmoid(l[ids_a]).
    Cost: T k sigmoids, k comparisons an expert; T E logits read: latency in decode.
    Numerics: as sigmoid.
    Constraints:
        (C1) logits are rows of at least k experts, and k is at least 1.
    Source: Meta, Llama 4, 2025.

    >>> top_k_sigmoid(np.array([[0.0, 100.0]]), 1)
    (array([[1]], dtype=int32), array([[1.]]))
    """
    ids = _choose(_checked(logits, k), k)
    return ids, sigmoid(np.take_along_axis(widen(logits), ids, 1))


def _checked(logits: Array, k: int) -> Array:
    fits = logits.ndim == 2 and 1 <= whole("k", k) <= logits.shape[1]
    require(fits, "C1", f"k = {k} of the experts of each row, logits of shape {logits.shape}")
    return widen(logits)


def _choose(scores: Array, k: int) -> Array:
    """Return the places of the k largest of each row: sorted from the right, so that of equals the first is first."""
    ascending = np.argsort(scores[:, ::-1], axis=1, kind="stable")
    return (scores.shape[1] - 1 - ascending[:, ::-1][:, :k]).astype(np.int32)


def _biased(scores: Array, bias: Array | None) -> Array:
    bias = np.zeros(scores.shape[1], scores.dtype) if bias is None else widen(bias)
    require(bias.shape == scores.shape[1:], "C2", f"bias has shape {bias.shape}, not {scores.shape[1:]}")
    return scores + bias


def _weights(scores: Array, ids: Array, scale: float, renormalise: bool = True) -> Array:
    """Return the scores of the chosen, divided by their sum, which 1e-20 keeps off 0 where all underflow."""
    picked = np.take_along_axis(scores, ids, 1)
    with np.errstate(invalid="ignore"):  # infinite scores have no shares: inf / inf is NaN
        return float(scale) * (picked / (picked.sum(1, keepdims=True) + 1e-20) if renormalise else picked)
