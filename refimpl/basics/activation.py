"""Activations: softmax and its kin over one axis, and the elementwise functions of gates and feed-forward blocks.

Sigmoid and GELU are written so that neither tail overflows or cancels:
sigmoid(x) = e^min(x, 0) / (1 + e^-|x|),  (1 + tanh u) / 2 = sigmoid(2u),  (1 + erf u) / 2 = erfc(-u) / 2.
"""

import math

import numpy as np

from refimpl.contract import Array, Float, op, require, whole, widen

__all__ = [
    "gelu_erf", "gelu_quick", "gelu_tanh", "log_softmax", "logsumexp", "relu", "sigmoid", "silu", "softmax", "softplus",
]


@op
def softmax(x: Float[Array, "..."], axis: int = -1) -> Float[Array, "..."]:
    """Turn scores into probabilities along an axis.

    Math: p_i = exp(x_i - m) / sum_j exp(x_j - m), m = max_j x_j.
    Cost: about 4 flop and one exp an element, one read and one write: bound by memory.
    Numerics: the largest exponent is 0, so nothing overflows; -inf gives exactly 0. A slice that holds NaN or
        +inf, or nothing but -inf, has no softmax and gives NaN.
    Constraints:
        (C1) x has the axis, and it is not empty.
    Source: Blanchard, Higham, Higham, Accurately computing the log-sum-exp and softmax functions, 2021.

    >>> softmax(np.array([1000.0, 1000.0, -np.inf]))
    array([0.5, 0.5, 0. ])
    """
    _check_axis(x, axis)
    wide = widen(x)
    with np.errstate(invalid="ignore"):  # inf - inf is the NaN that Numerics promises
        weights = np.exp(wide - wide.max(axis, keepdims=True))
    return (weights / weights.sum(axis, keepdims=True)).astype(x.dtype, copy=False)


@op
def logsumexp(x: Float[Array, "..."], axis: int = -1) -> Float[Array, "..."]:
    """Sum exponentials along an axis, and return the natural logarithm of the sums; the axis is gone.

    Math: m + log sum_j exp(x_j - m), m = max_j x_j.
    Cost: about 3 flop and one exp an element, one read: bound by memory.
    Numerics: as softmax; m is 0 where the largest value is infinite, so all -inf gives -inf and one +inf gives +inf.
    Constraints:
        (C1) x has the axis, and it is not empty.
    Source: Blanchard, Higham, Higham, 2021.

    >>> float(logsumexp(np.array([1000.0, 1000.0]))) == 1000.0 + math.log(2.0)
    True
    """
    _check_axis(x, axis)
    wide = widen(x)
    largest = wide.max(axis, keepdims=True)
    shift = np.where(np.isinf(largest), 0, largest)
    with np.errstate(divide="ignore", over="ignore"):  # log 0 = -inf and exp inf = inf are meant
        total = np.log(np.exp(wide - shift).sum(axis)) + shift.squeeze(axis)
    return total.astype(x.dtype, copy=False)


@op
def log_softmax(x: Float[Array, "..."], axis: int = -1) -> Float[Array, "..."]:
    """Compute the logarithm of softmax without forming the probabilities, which may underflow.

    Math: x_i - m - log sum_j exp(x_j - m), m = max_j x_j.
    Cost: about 4 flop and one exp an element: bound by memory.
    Numerics: finite wherever x is finite, although softmax may be 0 there. NaN where softmax has NaN.
    Constraints:
        (C1) x has the axis, and it is not empty.
    Source: Blanchard, Higham, Higham, 2021.

    >>> log_softmax(np.array([0.0, -1000.0]))
    array([    0., -1000.])
    """
    _check_axis(x, axis)
    wide = widen(x)
    with np.errstate(invalid="ignore"):
        shifted = wide - wide.max(axis, keepdims=True)
    return (shifted - np.log(np.exp(shifted).sum(axis, keepdims=True))).astype(x.dtype, copy=False)


@op
def relu(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """Replace negative values by 0.

    Math: max(x, 0).
    Cost: 1 flop an element: bound by memory.
    Numerics: exact in every dtype; NaN stays NaN.
    Source: Nair, Hinton, Rectified linear units improve restricted Boltzmann machines, 2010.

    >>> relu(np.array([-1.0, 2.0]))
    array([0., 2.])
    """
    return np.maximum(widen(x), 0).astype(x.dtype, copy=False)


@op
def sigmoid(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """Map each value to a share between 0 and 1: the gate that is open or shut.

    Math: 1 / (1 + exp(-x)).
    Cost: about 5 flop and two exp an element: bound by memory.
    Numerics: neither tail overflows, and the lower one keeps its relative accuracy; -inf gives 0, +inf 1, NaN NaN.
    Source: Ackley, Hinton, Sejnowski, A learning algorithm for Boltzmann machines, 1985.

    >>> sigmoid(np.array([-1000.0, 0.0, 1000.0]))
    array([0. , 0.5, 1. ])
    """
    return _sigmoid(widen(x)).astype(x.dtype, copy=False)


@op
def softplus(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """Smooth relu: positive everywhere, and near x for large x (Mamba's step size, DeepSeek-V4's router).

    Math: log(1 + exp(x)) = max(x, 0) + log1p(exp(-|x|)).
    Cost: about 4 flop, one exp and one log1p an element: bound by memory.
    Numerics: neither tail overflows, and the lower one keeps its relative accuracy; -inf gives 0, +inf +inf, NaN NaN.
        PyTorch gives x itself from 20 on, which is 2e-9 less.
    Source: Dugas, Bengio, Belisle, Nadeau, Garcia, Incorporating second-order functional knowledge, 2001.

    >>> softplus(np.array([-1000.0, 0.0, 1000.0])).round(3).tolist()
    [0.0, 0.693, 1000.0]
    """
    wide = widen(x)
    return (np.maximum(wide, 0) + np.log1p(np.exp(-np.abs(wide)))).astype(x.dtype, copy=False)


@op
def silu(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """Multiply each value by its own sigmoid (also called swish).

    Math: x sigmoid(x).
    Cost: about 6 flop and two exp an element: bound by memory.
    Numerics: neither tail overflows. x = -inf gives NaN, as -inf times 0 does.
    Source: Elfwing, Uchibe, Doya, Sigmoid-weighted linear units, 2017.

    >>> silu(np.array([0.0, 1000.0]))
    array([   0., 1000.])
    """
    wide = widen(x)
    return (wide * _sigmoid(wide)).astype(x.dtype, copy=False)


@op
def gelu_erf(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """Multiply each value by its normal distribution function: the exact GELU (BERT, torch's default).

    Math: x Phi(x) = x erfc(-x / sqrt 2) / 2.
    Cost: one erfc an element.
    Numerics: erfc in float64 by the C library, so the negative tail keeps its relative accuracy.
    Source: Hendrycks, Gimpel, Gaussian error linear units, 2016.

    >>> gelu_erf(np.array([0.0, 1.0])).round(6)
    array([0.      , 0.841345])
    """
    wide = widen(x)
    phi = 0.5 * _erfc(wide * -math.sqrt(0.5)).astype(wide.dtype)
    return (wide * phi).astype(x.dtype, copy=False)


@op
def gelu_tanh(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """Approximate GELU with a hyperbolic tangent (GPT-2, Gemma, T5 v1.1).

    Math: x (1 + tanh u) / 2 = x sigmoid(2u), u = sqrt(2 / pi) (x + 0.044715 x^3).
    Cost: about 10 flop and two exp an element: bound by memory.
    Numerics: at most 4.73e-4 from gelu_erf, near |x| = 2.70. Overflow of u saturates the sigmoid, as it should.
    Source: Hendrycks, Gimpel, 2016, section 2.

    >>> gelu_tanh(np.array([0.0, 1.0])).round(6)
    array([0.      , 0.841192])
    """
    wide = widen(x)
    with np.errstate(over="ignore"):
        u = math.sqrt(2 / math.pi) * (wide + 0.044715 * wide * wide * wide)
        return (wide * _sigmoid(2 * u)).astype(x.dtype, copy=False)


@op
def gelu_quick(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """Approximate GELU with a sigmoid (CLIP, gpt-oss).

    Math: x sigmoid(1.702 x).
    Cost: about 7 flop and two exp an element: bound by memory.
    Numerics: at most 2.03e-2 from gelu_erf, near |x| = 2.27. Overflow as in gelu_tanh.
    Source: Hendrycks, Gimpel, 2016, section 2.

    >>> gelu_quick(np.array([0.0, 1.0])).round(6)
    array([0.      , 0.845796])
    """
    wide = widen(x)
    with np.errstate(over="ignore"):
        return (wide * _sigmoid(1.702 * wide)).astype(x.dtype, copy=False)


def _check_axis(x: Array, axis: int) -> None:
    there = -x.ndim <= whole("axis", axis) < x.ndim and x.shape[axis] > 0
    require(there, "C1", f"axis {axis} of shape {x.shape} is empty or is not there")


_erfc = np.vectorize(math.erfc, otypes=[np.float64])  # NumPy has none


def _sigmoid(x: Array) -> Array:
    return np.exp(np.minimum(x, 0)) / (1 + np.exp(-np.abs(x)))
