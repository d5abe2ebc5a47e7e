"""Normalisation over the last axis."""

import numpy as np

from refimpl.contract import Array, Float, op, require, widen

__all__ = ["layer_norm", "rms_norm"]


@op
def layer_norm(
    x: Float[Array, "... D"], gain: Float[Array, " D"], bias: Float[Array, " D"] | None = None, eps: float = 1e-5
) -> Float[Array, "... D"]:
    """Give every token mean 0 and variance 1, then scale and shift it (GPT-2, BERT).

    Math: y = (x - mean) / sqrt(mean((x - mean)^2) + eps) gain + bias, means over D.
    Cost: about 8 flop an element, one read and one write: bound by memory.
    Numerics: centred twice, since a large common offset leaves the rounding of its mean behind, and the variance taken
        of the centred values, so that nothing cancels; one cast at the end. Squares overflow from |x| = 1.8e19 on in
        float32, and the row becomes 0 or NaN: such activations mark a broken model.
    Constraints:
        (C1) gain, and bias if given, hold D values.
        (C2) eps is not negative.
    Source: Ba, Kiros, Hinton, Layer normalization, 2016.

    >>> layer_norm(np.array([[1.0, 3.0]]), np.array([1.0, 2.0]), np.array([0.0, 10.0]), eps=0.0)
    array([[-1., 12.]])
    """
    _check(x, gain, eps)
    require(bias is None or bias.shape == gain.shape, "C1", f"bias does not have the shape {gain.shape} of gain")
    wide = widen(x)
    with np.errstate(over="ignore", invalid="ignore"):
        centred = wide - wide.mean(-1, keepdims=True)
        centred = centred - centred.mean(-1, keepdims=True)  # the rounding of a large mean
        variance = (centred * centred).mean(-1, keepdims=True)
    y = centred / np.sqrt(variance + eps) * widen(gain)
    if bias is not None:
        y = y + widen(bias)
    return y.astype(x.dtype, copy=False)


@op
def rms_norm(
    x: Float[Array, "... D"], gain: Float[Array, " D"], eps: float = 1e-6, *, gain_offset: float = 0.0
) -> Float[Array, "... D"]:
    """Give every token a root mean square of 1, then scale it (Llama, Qwen).

    Math: y = x / sqrt(mean(x^2) + eps) (gain_offset + gain), the mean over D.
    Cost: about 5 flop an element, one read and one write: bound by memory.
    Numerics: squares, mean and gain in float32 or wider, one cast at the end: float16 300 gives 1, not 0.
        Squares overflow from |x| = 1.8e19 on in float32, and the row becomes 0.
        gain_offset=1 is the form of Gemma, which stores its gain as the distance from 1.
    Constraints:
        (C1) gain holds D values.
        (C2) eps is not negative.
    Source: Zhang, Sennrich, Root mean square layer normalization, 2019.

    >>> rms_norm(np.full((1, 2), 300.0, np.float16), np.ones(2, np.float16)).tolist()
    [[1.0, 1.0]]
    """
    _check(x, gain, eps)
    wide = widen(x)
    with np.errstate(over="ignore"):
        mean_square = (wide * wide).mean(-1, keepdims=True)
    return (wide / np.sqrt(mean_square + eps) * (gain_offset + widen(gain))).astype(x.dtype, copy=False)


def _check(x: Array, gain: Array, eps: float) -> None:
    fits = gain.ndim == 1 and gain.shape == x.shape[-1:]
    require(fits, "C1", f"gain has shape {gain.shape}, x has shape {x.shape}")
    require(eps >= 0, "C2", f"eps is {eps}, not 0 or more")
