"""Routers, one token at a time: experts sorted by score and index, weights by Python's math."""

import math
from collections.abc import Callable

import numpy as np

from golden.values import Array

__all__ = [
    "balance_loss", "hash_route", "sigmoid_group_top_k", "softmax_top_k", "sqrt_softplus_top_k", "top_k_sigmoid",
    "top_k_softmax",
]  # fmt: skip

Routed = tuple[Array, Array]


def _first(scores: list[float], k: int) -> list[int]:
    return sorted(range(len(scores)), key=lambda e: (-scores[e], e))[:k]


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))


def _sqrt_softplus(x: float) -> float:
    return math.sqrt(max(x, 0.0) + math.log1p(math.exp(-abs(x))))


def _each(logits: Array, k: int, route: Callable[[list[float]], tuple[list[int], list[float]]]) -> Routed:
    routed = [route(row.tolist()) for row in logits]
    ids, weights = ([each[i] for each in routed] for i in (0, 1))
    return np.array(ids, np.int64).reshape(-1, k), np.array(weights, np.float64).reshape(-1, k)


def _shares(scores: list[float], scale: float = 1.0) -> list[float]:
    return [scale * score / (math.fsum(scores) + 1e-20) for score in scores]


def _softmax(row: list[float]) -> list[float]:
    return _shares([math.exp(x - max(row)) for x in row])


def softmax_top_k(logits: Array, k: int, *, renormalise: bool = True) -> Routed:
    def route(row: list[float]) -> tuple[list[int], list[float]]:
        ids, probs = _first(row, k), _softmax(row)
        picked = [probs[e] for e in ids]
        return ids, _shares(picked) if renormalise else picked

    return _each(logits, k, route)


def top_k_softmax(logits: Array, k: int) -> Routed:
    def route(row: list[float]) -> tuple[list[int], list[float]]:
        ids = _first(row, k)
        return ids, _softmax([row[e] for e in ids])

    return _each(logits, k, route)


def top_k_sigmoid(logits: Array, k: int) -> Routed:
    def route(row: list[float]) -> tuple[list[int], list[float]]:
        ids = _first(row, k)
        return ids, [_sigmoid(row[e]) for e in ids]

    return _each(logits, k, route)


def sigmoid_group_top_k(
    logits: Array, k: int, bias: Array | None = None, *, groups: int = 1, top_groups: int = 1, scale: float = 1.0,
    renormalise: bool = True,
) -> Routed:  # fmt: skip
    width = logits.shape[1] // groups

    def route(row: list[float]) -> tuple[list[int], list[float]]:
        scores = [_sigmoid(x) for x in row]
        wanted = [score + (0.0 if bias is None else float(bias[e])) for e, score in enumerate(scores)]
        sums = [math.fsum(sorted(wanted[g * width : (g + 1) * width])[-2:]) for g in range(groups)]
        best = _first(sums, top_groups)
        ids = _first([x if e // width in best else -math.inf for e, x in enumerate(wanted)], k)
        picked = [scores[e] for e in ids]
        return ids, _shares(picked, scale) if renormalise else [scale * score for score in picked]

    return _each(logits, k, route)


def sqrt_softplus_top_k(logits: Array, k: int, bias: Array | None = None, *, scale: float = 1.0) -> Routed:
    def route(row: list[float]) -> tuple[list[int], list[float]]:
        scores = [_sqrt_softplus(x) for x in row]
        ids = _first([score + (0.0 if bias is None else float(bias[e])) for e, score in enumerate(scores)], k)
        return ids, _shares([scores[e] for e in ids], scale)

    return _each(logits, k, route)


def hash_route(logits: Array, token_ids: Array, table: Array, *, scale: float = 1.0) -> Routed:
    ids = [[int(e) for e in table[token]] for token in token_ids]
    scores = [[_sqrt_softplus(float(logits[t, e])) for e in mine] for t, mine in enumerate(ids)]
    shares = np.array([_shares(mine, scale) for mine in scores])
    return np.array(ids).reshape(-1, table.shape[1]), shares.reshape(-1, table.shape[1])


def balance_loss(logits: Array, ids: Array) -> Array:
    T, E = logits.shape
    loads = [sum(int(e) == expert for e in ids.ravel()) / T for expert in range(E)]
    means = [math.fsum(_softmax(row.tolist())[expert] for row in logits) / T for expert in range(E)]
    return np.array(E * math.fsum(load * mean for load, mean in zip(loads, means, strict=True)))
