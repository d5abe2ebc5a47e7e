"""Routers: to which experts of a mixture each token goes, and with what weight.

A router reads logits, a linear map of the tokens, and chooses k of E experts for each token: the largest, of equals the
lower index, NaN before all others (as in PyTorch). Ids come in the order of the choice, int32. Scores and weights are
float32, or float64 for float64 logits: a router does not round to 16 bits what it compares.
"""

import numpy as np

from refimpl.basics.activation import sigmoid, softmax, softplus
from refimpl.contract import Array, Float, Int, host, op, require, widen, within

__all__ = [
    "balance_loss", "expert_load", "hash_route", "load_imbalance", "sigmoid_group_top_k", "softmax_top_k",
    "sqrt_softplus_top_k", "top_k_sigmoid", "top_k_softmax",
]  # fmt: skip

_LEAST = 1e-20  # what keeps a sum of scores off 0 where all underflow


@op
def softmax_top_k(
    logits: Float[Array, "T E"], k: int, *, renormalise: bool = True
) -> tuple[Int[Array, "T A"], Float[Array, "T A"]]:
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
    ids, wide = _choose(_checked(logits, k), k), widen(logits)
    weights = np.take_along_axis(softmax(wide), ids, 1)
    return ids, weights / weights.sum(1, keepdims=True) if renormalise else weights


@op
def top_k_softmax(logits: Float[Array, "T E"], k: int) -> tuple[Int[Array, "T A"], Float[Array, "T A"]]:
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
    wide = _checked(logits, k)
    ids = _choose(wide, k)
    return ids, softmax(np.take_along_axis(wide, ids, 1))


@op
def sigmoid_group_top_k(
    logits: Float[Array, "T E"], k: int, bias: Float[Array, " E"] | None = None, *, groups: int = 1,
    top_groups: int = 1, scale: float = 1.0, renormalise: bool = True,
) -> tuple[Int[Array, "T A"], Float[Array, "T A"]]:
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
    (T, E), fits = scores.shape, groups >= 1 and scores.shape[1] % groups == 0 and 1 <= top_groups <= groups
    told = f"{groups} groups of {E} experts, the best {top_groups} for {k}"
    require(fits and k <= top_groups * (E // groups), "C3", told)
    chosen_by = _biased(scores, bias).reshape(T, groups, E // groups)
    best = _choose(np.sort(chosen_by, 2)[:, :, -2:].sum(2), top_groups)
    is_closed = np.ones((T, groups), bool)
    np.put_along_axis(is_closed, best, False, 1)
    ids = _choose(np.where(is_closed[:, :, None], -np.inf, chosen_by).reshape(T, E), k)
    return ids, _weights(scores, ids, scale, renormalise)


@op
def sqrt_softplus_top_k(
    logits: Float[Array, "T E"], k: int, bias: Float[Array, " E"] | None = None, *, scale: float = 1.0
) -> tuple[Int[Array, "T A"], Float[Array, "T A"]]:
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
) -> tuple[Int[Array, "T A"], Float[Array, "T A"]]:
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
    fits = logits.ndim == table.ndim == 2 and token_ids.shape == logits.shape[:1]
    require(fits, "C1", f"logits, ids and table of shapes {logits.shape}, {token_ids.shape}, {table.shape}")
    require(within(token_ids, len(table)), "C2", f"token ids are integers in 0..{len(table) - 1}")
    E = logits.shape[1]
    require(within(table, E), "C3", f"the table holds integers in 0..{E - 1}")
    ids = table[token_ids].astype(np.int32)
    return ids, _weights(np.sqrt(softplus(widen(logits))), ids, scale)


@op
def top_k_sigmoid(logits: Float[Array, "T E"], k: int) -> tuple[Int[Array, "T A"], Float[Array, "T A"]]:
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
    wide = _checked(logits, k)
    ids = _choose(wide, k)
    return ids, sigmoid(np.take_along_axis(wide, ids, 1))


@host
def expert_load(ids: Int[Array, "T A"], num_experts: int) -> Int[Array, " E"]:
    """Count the tokens that each expert gets.

    >>> expert_load(np.array([[0, 2], [2, 1]]), 4)
    array([1, 1, 2, 0])
    """
    return np.bincount(ids.reshape(-1), minlength=num_experts)


@host
def load_imbalance(load: Int[Array, " E"]) -> float:
    """Return how many times the mean load the largest is: 1 is balance, and the slowest expert sets the pace.

    >>> load_imbalance(np.array([1, 1, 2, 0]))
    2.0
    """
    return float(load.max() / load.mean())


@host
def balance_loss(logits: Float[Array, "T E"], ids: Int[Array, "T A"]) -> float:
    """Return what training adds to its loss so that experts are used evenly: E sum_e load_e / T mean_t p[t, e].

    Fedus, Zoph, Shazeer, Switch transformers, 2021, equations 4 to 6; A when all are even.

    >>> balance_loss(np.zeros((2, 4)), np.array([[0, 1], [2, 3]]))
    2.0
    """
    T, E = logits.shape
    return float(E * (expert_load(ids, E) / T * softmax(logits.astype(np.float64)).mean(0)).sum())


def _checked(logits: Array, k: int) -> Array:
    fits = logits.ndim == 2 and 1 <= k <= logits.shape[1]
    require(fits, "C1", f"k = {k} of the experts of each row, logits of shape {logits.shape}")
    return widen(logits)


def _choose(scores: Array, k: int) -> Array:
    """Return the places of the k largest of each row: sorted from the right, so that of equals the first is first."""
    ascending = np.argsort(scores[:, ::-1], axis=1, kind="stable")
    return (scores.shape[1] - 1 - ascending[:, ::-1][:, :k]).astype(np.int32)


def _biased(scores: Array, bias: Array | None) -> Array:
    fits = bias is None or bias.shape == scores.shape[1:]
    require(fits, "C2", f"bias has shape {bias is not None and bias.shape}, not {scores.shape[1:]}")
    return scores if bias is None else scores + widen(bias)


def _weights(scores: Array, ids: Array, scale: float, renormalise: bool = True) -> Array:
    picked = np.take_along_axis(scores, ids, 1)
    with np.errstate(invalid="ignore"):  # inf / inf is NaN, as the sum of infinite scores has no shares
        return scale * (picked / (picked.sum(1, keepdims=True) + _LEAST) if renormalise else picked)
