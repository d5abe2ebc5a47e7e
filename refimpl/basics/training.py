"""The training cycle: forward, loss, backward, step; and why a network needs more than linear maps.

However many linear maps stand in a row, one matrix does the same:

>>> from refimpl.basics.activation import relu
>>> from refimpl.basics.linear import linear
>>> first, second = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]), np.array([[1.0, -1.0, 2.0]])
>>> x = np.array([[1.0, 0.0], [0.5, -2.0]])
>>> bool((linear(linear(x, first), second) == linear(x, second @ first)).all())
True

With a relu between them, two maps bend: here they make |x|, which no linear map is, since |1| + |-1| is not |1 - 1|:

>>> both_signs, together = np.array([[1.0], [-1.0]]), np.array([[1.0, 1.0]])
>>> linear(relu(linear(np.array([[1.0], [-1.0], [0.0]]), both_signs)), together).ravel()
array([1., 1., 0.])
"""

from typing import Any

import numpy as np

from refimpl.basics.activation import log_softmax, softmax
from refimpl.contract import Array, Float, Int, composed, op, require, widen

__all__ = ["cross_entropy", "cross_entropy_backward", "linear_backward", "relu_backward", "sgd_step", "training_step"]


@op
def cross_entropy(
    logits: Float[Array, "T V"], targets: Int[Array, " T"], *, ignore_index: int = -100
) -> Float[Array, " T"]:
    """Measure how surprised each row of logits is by the token that came: the loss of a language model, token by token.

    Math: loss[t] = -log softmax(logits[t])[targets[t]] = logsumexp(logits[t]) - logits[t, targets[t]].
    Cost: about 3 flop and one exp a logit, one read of them: bound by memory.
    Numerics: as log_softmax. A target of ignore_index (PyTorch's -100: padding, prompts) costs 0, whatever its logits.
    Constraints:
        (C1) targets are integers, one for each row of logits, which has at least one.
        (C2) each target is ignore_index, or a token of the vocabulary.
    Source: Rumelhart, Hinton, Williams, 1986; PyTorch ``torch.nn.functional.cross_entropy``.

    >>> cross_entropy(np.zeros((2, 4)), np.array([3, -100])).round(6)  # log 4: nothing is known
    array([1.386294, 0.      ])
    """
    counted = _check_targets(logits, targets, ignore_index)
    losses = -log_softmax(widen(logits))[np.arange(len(logits)), np.where(counted, targets, 0)]
    return np.where(counted, losses, 0).astype(logits.dtype)


@op
def cross_entropy_backward(
    logits: Float[Array, "T V"], targets: Int[Array, " T"], *, scale: float = 1.0, ignore_index: int = -100
) -> Float[Array, "T V"]:
    """Give the gradient of cross-entropy by the logits: what was predicted less what came.

    Math: dlogits[t, v] = scale (softmax(logits[t])[v] - [v = targets[t]]).
    Cost: about 5 flop and one exp a logit, one read and one write: bound by memory.
    Numerics: as softmax, one cast at the end; a row sums to 0, and is 0 where the target is ignore_index.
        ``scale`` is the gradient that comes from above: 1 / T where the losses are averaged.
    Constraints:
        (C1) targets are integers, one for each row of logits, which has at least one.
        (C2) each target is ignore_index, or a token of the vocabulary.
    Source: Rumelhart, Hinton, Williams, 1986; PyTorch ``torch.nn.functional.cross_entropy``.

    >>> cross_entropy_backward(np.zeros((1, 4)), np.array([3]))
    array([[ 0.25,  0.25,  0.25, -0.75]])
    """
    counted = _check_targets(logits, targets, ignore_index)
    gradient = softmax(widen(logits)) - (np.arange(logits.shape[1]) == targets[:, None])
    return np.where(counted[:, None], scale * gradient, 0).astype(logits.dtype)


@op
def linear_backward(
    dy: Float[Array, "T O"], x: Float[Array, "T D"], w: Float[Array, "O D"]
) -> tuple[Float[Array, "T D"], Float[Array, "O D"], Float[Array, " O"]]:
    """Give the gradients of a linear map by its input, its weights and its bias, from the gradient by its output.

    Math: dx = dy w,  dw = dy^T x,  db[o] = sum_t dy[t, o].
    Cost: 4 T D O flop, twice those of the forward pass: bound by arithmetic once T is large.
    Numerics: sums as in linear; each gradient is cast once, to the dtype of what it is the gradient of, and db to that
        of w.
    Constraints:
        (C1) dy [T, O], x [T, D] and w [O, D] agree on T, O and D.
    Source: Rumelhart, Hinton, Williams, Learning representations by back-propagating errors, 1986.

    >>> dx, dw, db = linear_backward(np.array([[1.0, 2.0]]), np.array([[3.0]]), np.array([[10.0], [100.0]]))
    >>> dx.tolist(), dw.tolist(), db.tolist()
    ([[210.0]], [[3.0], [6.0]], [1.0, 2.0])
    """
    fits = dy.ndim == x.ndim == w.ndim == 2 and (len(x), len(w)) == dy.shape and x.shape[1] == w.shape[1]
    require(fits, "C1", f"dy [T, O], x [T, D] and w [O, D] have shapes {dy.shape}, {x.shape} and {w.shape}")
    wide = widen(dy)
    return (wide @ widen(w)).astype(x.dtype), (wide.T @ widen(x)).astype(w.dtype), wide.sum(0).astype(w.dtype)


@op
def relu_backward(dy: Float[Array, "..."], x: Float[Array, "..."]) -> Float[Array, "..."]:
    """Let the gradient pass where relu let its input pass.

    Math: dx = dy where x > 0, else 0.
    Cost: 1 flop an element, two reads and one write: bound by memory.
    Numerics: exact. The gradient at 0, where relu has none, is 0; where x is NaN the gradient passes, as in PyTorch.
    Constraints:
        (C1) dy and x have one shape.
    Source: Nair, Hinton, 2010; PyTorch.

    >>> relu_backward(np.array([5.0, 6.0, 7.0]), np.array([-1.0, 0.0, 2.0]))
    array([0., 0., 7.])
    """
    require(dy.shape == x.shape, "C1", f"dy has shape {dy.shape}, x {x.shape}")
    return np.where(widen(x) <= 0, 0, widen(dy)).astype(dy.dtype, copy=False)


@op
def sgd_step(
    w: Float[Array, "..."], dw: Float[Array, "..."], velocity: Float[Array, "..."], *, learning_rate: float,
    momentum: float = 0.0,
) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    """Move weights against their gradient, and a share of the way they moved before: return weights and velocity.

    Math: velocity' = momentum velocity + dw,  w' = w - learning_rate velocity'.
    Cost: 4 flop an element, three reads and two writes: bound by memory.
    Numerics: one cast of each; a 16-bit weight does not move by less than half its last place, which is why
        training keeps float32 weights.
    Constraints:
        (C1) w, dw and velocity have one shape.
    Source: Robbins, Monro, A stochastic approximation method, 1951; Polyak, 1964; PyTorch ``torch.optim.SGD``.

    >>> sgd_step(np.array([1.0]), np.array([2.0]), np.array([4.0]), learning_rate=0.25, momentum=0.5)
    (array([0.]), array([4.]))
    """
    require(w.shape == dw.shape == velocity.shape, "C1", f"shapes {w.shape}, {dw.shape} and {velocity.shape}")
    moving = momentum * widen(velocity) + widen(dw)
    return (widen(w) - learning_rate * moving).astype(w.dtype), moving.astype(velocity.dtype, copy=False)


@composed
def training_step(
    x: Float[Array, "T D"], targets: Int[Array, " T"], weights: dict[str, Array], velocities: dict[str, Array],
    ops: Any, **rate: float,
) -> tuple[Float[Array, " T"], dict[str, Array], dict[str, Array]]:
    """Train an MLP of two layers on a batch, once: return the losses before the step, the weights and velocities after.

    ``weights`` are w_up, b_up, w_down and b_down; ``velocities`` has an array for each, of zeros at first;
    ``ops`` holds the operations by name; ``rate`` is the learning_rate, and the momentum, of sgd_step.

    Math: forward, loss, backward from the last layer to the first by the chain rule, step.
    Cost: 6 T flop a weight: 2 forward, 4 backward.
    Source: Rumelhart, Hinton, Williams, 1986.

    >>> from types import SimpleNamespace
    >>> from refimpl.basics import activation
    >>> from refimpl.basics.linear import linear
    >>> ops = SimpleNamespace(**vars(activation) | globals())
    >>> x, is_odd = np.array([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]]), np.array([0, 1, 1, 0])
    >>> draw = np.random.default_rng(0).standard_normal
    >>> weights = {"w_up": draw((8, 2)), "b_up": draw(8), "w_down": draw((2, 8)), "b_down": draw(2)}
    >>> velocities = {name: np.zeros_like(w) for name, w in weights.items()}
    >>> for _ in range(100):
    ...     losses, weights, velocities = training_step(x, is_odd, weights, velocities, ops, learning_rate=0.5)
    >>> bool((losses < 0.1).all())  # exclusive or, which no linear map computes
    True
    """
    hidden = ops.linear(x, weights["w_up"], weights["b_up"])
    active = ops.relu(hidden)
    logits = ops.linear(active, weights["w_down"], weights["b_down"])
    losses = ops.cross_entropy(logits, targets)
    d_logits = ops.cross_entropy_backward(logits, targets, scale=1 / len(x))
    d_active, d_w_down, d_b_down = ops.linear_backward(d_logits, active, weights["w_down"])
    _, d_w_up, d_b_up = ops.linear_backward(ops.relu_backward(d_active, hidden), x, weights["w_up"])
    gradients = {"w_up": d_w_up, "b_up": d_b_up, "w_down": d_w_down, "b_down": d_b_down}
    moved = {name: ops.sgd_step(weights[name], d, velocities[name], **rate) for name, d in gradients.items()}
    return losses, {name: w for name, (w, _) in moved.items()}, {name: v for name, (_, v) in moved.items()}


def _check_targets(logits: Array, targets: Array, ignore_index: int) -> Array:
    """Return which targets count."""
    fits = logits.ndim == 2 and logits.shape[1] > 0 and targets.shape == logits.shape[:1]
    require(fits and targets.dtype.kind in "iu", "C1", f"logits have shape {logits.shape}, targets {targets.shape}")
    known = (targets == ignore_index) | (targets >= 0) & (targets < logits.shape[1])
    require(bool(known.all()), "C2", f"targets are {ignore_index} or tokens 0..{logits.shape[1] - 1}")
    return targets != ignore_index
