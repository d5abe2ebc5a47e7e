"""The training cycle, token by token: the loss by its definition, its gradients by the chain rule written out."""

import math

import numpy as np

from golden.values import Array

__all__ = ["cross_entropy", "cross_entropy_backward", "linear_backward", "relu_backward", "sgd_step"]


def _shares(row: list[float]) -> list[float]:
    weights = [math.exp(value - max(row)) for value in row]
    return [weight / math.fsum(weights) for weight in weights]


def cross_entropy(logits: Array, targets: Array, *, ignore_index: int = -100) -> Array:
    losses = []
    for row, target in zip(logits.tolist(), targets.tolist(), strict=True):
        others = math.fsum(math.exp(value - max(row)) for value in row)
        losses.append(0.0 if target == ignore_index else math.log(others) + max(row) - row[target])
    return np.array(losses)


def cross_entropy_backward(
    logits: Array, targets: Array, *, scale: float = 1.0, ignore_index: int = -100
) -> Array:
    rows = []
    for row, target in zip(logits.tolist(), targets.tolist(), strict=True):
        gradient = [share - (v == target) for v, share in enumerate(_shares(row))]
        rows.append([0.0 if target == ignore_index else scale * value for value in gradient])
    return np.array(rows)


def linear_backward(dy: Array, x: Array, w: Array) -> tuple[Array, Array, Array]:
    (tokens, outputs), width = dy.shape, x.shape[1]
    dx = [[math.fsum(dy[t, o] * w[o, d] for o in range(outputs)) for d in range(width)] for t in range(tokens)]
    dw = [[math.fsum(dy[t, o] * x[t, d] for t in range(tokens)) for d in range(width)] for o in range(outputs)]
    return np.array(dx), np.array(dw), np.array([math.fsum(dy[:, o]) for o in range(outputs)])


def relu_backward(dy: Array, x: Array) -> Array:
    return np.array([0.0 if b <= 0 else a for a, b in zip(dy.ravel(), x.ravel(), strict=True)]).reshape(dy.shape)


def sgd_step(
    w: Array, dw: Array, velocity: Array, *, learning_rate: float, momentum: float = 0.0
) -> tuple[Array, Array]:
    moving = [momentum * v + d for v, d in zip(velocity.ravel(), dw.ravel(), strict=True)]
    stepped = [at - learning_rate * v for at, v in zip(w.ravel(), moving, strict=True)]
    return np.array(stepped).reshape(w.shape), np.array(moving).reshape(w.shape)
