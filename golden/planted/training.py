"""Faults of the training cycle."""

from typing import Any

import numpy as np

from golden.derive import training
from golden.values import Array

__all__ = [
    "bias_gradient_averaged", "climbed", "gradient_at_zero", "ignored_counted", "ignored_pushed", "inputs_swapped",
    "logit_of_target", "loss_base_2", "loss_of_next_target", "loss_unshifted", "momentum_ignored", "nan_stopped",
    "negative_scaled", "old_velocity_used", "scale_ignored", "target_not_subtracted", "weights_gradient_transposed",
]  # fmt: skip


def loss_base_2(logits: Array, targets: Array, **named: int) -> Array:
    """The loss in bits."""
    return training.cross_entropy(logits, targets, **named) / np.log(2)


def loss_unshifted(logits: Array, targets: Array, **_: int) -> Array:
    """The logarithm of softmax, which overflows or underflows."""
    weights = np.exp(logits.astype(np.float32))
    return -np.log(weights[np.arange(len(targets)), targets] / weights.sum(-1))


def loss_of_next_target(logits: Array, targets: Array, **_: int) -> Array:
    """The targets are shifted once more."""
    return training.cross_entropy(logits, np.roll(targets, -1))


def logit_of_target(logits: Array, targets: Array, **_: int) -> Array:
    """Logits taken for logarithms of probabilities."""
    return -logits[np.arange(len(targets)), targets]


def ignored_counted(logits: Array, targets: Array, **_: int) -> Array:
    """A target of -100 counts from the end, as Python has it."""
    return training.cross_entropy(logits, targets % logits.shape[1], ignore_index=-1)


def ignored_pushed(logits: Array, targets: Array, *, scale: float = 1.0, **_: int) -> Array:
    """A row whose target is ignored is pushed down as a whole."""
    return training.cross_entropy_backward(logits, targets, scale=scale, ignore_index=-1)


def target_not_subtracted(logits: Array, targets: Array, *, scale: float = 1.0, **_: int) -> Array:
    """The probabilities alone."""
    return training.cross_entropy_backward(logits, np.full(len(targets), -1), scale=scale)


def scale_ignored(logits: Array, targets: Array, **_: float) -> Array:
    """The gradient of the sum where that of the mean is meant."""
    return training.cross_entropy_backward(logits, targets)


def weights_gradient_transposed(dy: Array, x: Array, w: Array) -> tuple[Array, Array, Array]:
    """x^T dy: shapes tell only where w is not square."""
    dx, dw, db = training.linear_backward(dy, x, w)
    return dx, dw.T, db


def inputs_swapped(dy: Array, x: Array, w: Array) -> tuple[Array, Array, Array]:
    """The gradients of input and weights change places."""
    dx, dw, db = training.linear_backward(dy, x, w)
    return dw, dx, db


def bias_gradient_averaged(dy: Array, x: Array, w: Array) -> tuple[Array, Array, Array]:
    """The bias gets the mean over tokens."""
    dx, dw, db = training.linear_backward(dy, x, w)
    return dx, dw, db / len(dy)


def gradient_at_zero(dy: Array, x: Array) -> Array:
    """The gradient passes where the input is 0."""
    return np.where(x < 0, 0, dy)


def nan_stopped(dy: Array, x: Array) -> Array:
    """x > 0 ? dy : 0 stops NaN."""
    return np.where(x > 0, dy, 0)


def negative_scaled(dy: Array, x: Array) -> Array:
    """The gradient of leaky relu."""
    return np.where(x < 0, 0.01 * dy, dy)


def climbed(w: Array, dw: Array, velocity: Array, *, learning_rate: float, **named: float) -> tuple[Array, Array]:
    """Along the gradient, not against it."""
    return training.sgd_step(w, dw, velocity, learning_rate=-learning_rate, **named)


def momentum_ignored(w: Array, dw: Array, velocity: Array, *, learning_rate: float, **_: Any) -> tuple[Array, Array]:
    """No momentum."""
    return training.sgd_step(w, dw, velocity, learning_rate=learning_rate)


def old_velocity_used(w: Array, dw: Array, velocity: Array, *, learning_rate: float, **named: float) -> Any:
    """The step goes by the velocity of before."""
    moving = training.sgd_step(w, dw, velocity, learning_rate=learning_rate, **named)[1]
    return w - learning_rate * velocity.astype(np.float64), moving
