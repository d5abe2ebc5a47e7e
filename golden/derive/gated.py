"""Sigmoid, softplus and the clamped gate, number by number, by the functions of Python's math."""

import math

import numpy as np

from golden.values import Array

__all__ = ["sigmoid", "softplus", "swiglu_clamped"]


def _open(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))


def _softplus(x: float) -> float:
    return x + math.log1p(math.exp(-x)) if x > 0 else math.log1p(math.exp(x))


def sigmoid(x: Array) -> Array:
    return np.array([_open(value) for value in x.ravel().tolist()]).reshape(x.shape)


def softplus(x: Array) -> Array:
    return np.array([_softplus(value) for value in x.ravel().tolist()]).reshape(x.shape)


def swiglu_clamped(gate: Array, up: Array, *, alpha: float = 1.702, limit: float = 7.0) -> Array:
    passed = []
    for g, u in zip(gate.ravel().tolist(), up.ravel().tolist(), strict=True):
        g = g if math.isnan(g) or g < limit else limit
        u = u if math.isnan(u) else sorted((-limit, u, limit))[1]
        passed.append(g * _open(alpha * g) * (u + 1))
    return np.array(passed).reshape(gate.shape)
