"""Normalisation: of each token over its last axis, and of an image over groups of its channels."""

import numpy as np

from refimpl.basics.activation import sigmoid, silu
from refimpl.contract import Array, Float, op, require, whole, widen

__all__ = ["add_rms_norm", "gated_rms_norm", "group_norm", "l2_norm", "layer_norm", "rms_norm"]


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
    _check(x, gain, eps, bias)
    y = _standardised(widen(x), eps) * widen(gain) + (0 if bias is None else widen(bias))
    return y.astype(x.dtype, copy=False)


@op
def group_norm(
    x: Float[Array, "C ..."], gain: Float[Array, " C"], bias: Float[Array, " C"] | None = None, *, groups: int,
    eps: float = 1e-5,
) -> Float[Array, "C ..."]:
    """Give each group of neighbouring channels mean 0 and variance 1, then scale and shift each channel.

    One group takes the whole image together, and C groups each channel by itself (diffusion models and their VAEs).

    Math: y = (x - mean) / sqrt(mean((x - mean)^2) + eps) gain + bias, means over C / groups channels and all places.
    Cost: about 8 flop an element, one read and one write: bound by memory.
    Numerics: as layer_norm: centred twice, one cast at the end.
    Constraints:
        (C1) gain, and bias if given, hold C values.
        (C2) eps is not negative.
        (C3) groups divides C.
    Source: Wu, He, Group normalization, 2018; ONNX GroupNormalization.

    >>> group_norm(np.array([[1.0, 3.0], [5.0, 7.0]]), np.ones(2), groups=2, eps=0.0)
    array([[-1.,  1.],
           [-1.,  1.]])
    """
    _check(x, gain, eps, bias, axis=0)
    require(whole("groups", groups) > 0 and len(gain) % groups == 0, "C3", f"{groups} groups of {len(gain)} channels")
    rows = _standardised(widen(x).reshape(int(groups), -1), eps).reshape(len(gain), -1) * widen(gain)[:, None]
    y = rows + (0 if bias is None else widen(bias)[:, None])
    return y.reshape(x.shape).astype(x.dtype, copy=False)


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


@op
def add_rms_norm(
    x: Float[Array, "... D"], residual: Float[Array, "... D"], gain: Float[Array, " D"], eps: float = 1e-6, *,
    gain_offset: float = 0.0,
) -> tuple[Float[Array, "... D"], Float[Array, "... D"]]:
    """Add a layer's output to the residual stream, and normalise the sum for the next: return both, the sum last.

    Math: s = x + residual, y = rms_norm(s).
    Cost: about 6 flop an element, two reads and two writes, one read less than apart: bound by memory.
    Numerics: the sum is cast to the dtype of x, and what is normalised is the sum as it was cast.
    Constraints:
        (C1) gain holds D values.
        (C2) eps is not negative.
        (C3) x and residual have one shape.
    Source: Zhang, Sennrich, 2019; fused as in Kwon et al., vLLM, 2023.

    >>> add_rms_norm(np.array([[1.0, 1.0]]), np.array([[2.0, -4.0]]), np.ones(2), 0.0)
    (array([[ 1., -1.]]), array([[ 3., -3.]]))
    """
    _check(x, gain, eps)
    require(x.shape == residual.shape, "C3", f"x has shape {x.shape}, residual {residual.shape}")
    total = (widen(x) + widen(residual)).astype(x.dtype, copy=False)
    return rms_norm(total, gain, eps, gain_offset=gain_offset), total


@op
def gated_rms_norm(
    x: Float[Array, "... D"], gate: Float[Array, "... D"], gain: Float[Array, " D"], eps: float = 1e-6, *,
    norm_before_gate: bool = True, activation: str = "silu",
) -> Float[Array, "... D"]:
    """Normalise what a linear-attention head gives, and let a gate pass a part of it (Qwen3-Next, Kimi, Mamba-2).

    Math: y = rms_norm(x) act(gate); with norm_before_gate=False, y = rms_norm(x act(gate)).
    Cost: about 12 flop and two exp an element, two reads and one write: bound by memory.
    Numerics: float32 or wider from end to end, one cast. Squares overflow as in rms_norm.
        Qwen3-Next gates after the norm with silu, Kimi Linear with sigmoid; Mamba-2 gates before it, with silu.
    Constraints:
        (C1) gain holds D values.
        (C2) eps is not negative.
        (C3) x and gate have one shape.
        (C4) the activation is silu or sigmoid.
    Source: Dao, Gu, Transformers are SSMs, 2024; Kimi Team, Kimi Linear, 2025.

    >>> x, gate = np.array([[3.0, -3.0]]), np.array([[0.0, 1000.0]])
    >>> gated_rms_norm(x, gate, np.ones(2), 0.0, activation="sigmoid")
    array([[ 0.5, -1. ]])
    """
    _check(x, gain, eps)
    require(x.shape == gate.shape, "C3", f"x has shape {x.shape}, gate {gate.shape}")
    require(activation in ("silu", "sigmoid"), "C4", f"activation {activation!r}, not one of silu, sigmoid")
    wide, opening = widen(x), {"silu": silu, "sigmoid": sigmoid}[activation](widen(gate))
    y = rms_norm(wide, gain, eps) * opening if norm_before_gate else rms_norm(wide * opening, gain, eps)
    return y.astype(x.dtype, copy=False)


@op
def l2_norm(x: Float[Array, "... D"], eps: float = 1e-6, *, eps_is_floor: bool = False) -> Float[Array, "... D"]:
    """Give every vector length 1: the queries and keys of the delta rule (Qwen3-Next, Kimi), embeddings to compare.

    Math: y = x / sqrt(sum(x^2) + eps), the sum over D; with eps_is_floor=True, y = x / max(sqrt(sum(x^2)), eps).
    Cost: about 3 flop an element, one read and one write: bound by memory.
    Numerics: squares and sum in float32 or wider, one cast at the end. Squares overflow from |x| = 1.8e19 on in
        float32, and the row becomes 0; 0 stays 0 unless eps is 0. Under the root, eps shortens small vectors;
        as a floor (PyTorch's normalize, whose eps is 1e-12) it changes those shorter than eps alone.
    Constraints:
        (C1) x has an axis.
        (C2) eps is not negative.
    Source: Yang et al., Gated delta networks, 2024; PyTorch ``torch.nn.functional.normalize``.

    >>> l2_norm(np.array([[3.0, 4.0]]), 0.0)
    array([[0.6, 0.8]])
    >>> l2_norm(np.array([[0.0, 0.5]]), 1.0, eps_is_floor=True)
    array([[0. , 0.5]])
    """
    require(x.ndim > 0, "C1", "x is a number, not an array with an axis")
    require(eps >= 0, "C2", f"eps is {eps}, not 0 or more")
    wide = widen(x)
    with np.errstate(over="ignore", invalid="ignore"):  # 0 / 0 is NaN, as it should be
        squares = (wide * wide).sum(-1, keepdims=True)
        length = np.maximum(np.sqrt(squares), eps) if eps_is_floor else np.sqrt(squares + eps)
        return (wide / length).astype(x.dtype, copy=False)


def _standardised(wide: Array, eps: float) -> Array:
    """Return rows of mean 0 and variance 1."""
    with np.errstate(over="ignore", invalid="ignore"):
        centred = wide - wide.mean(-1, keepdims=True)
        centred = centred - centred.mean(-1, keepdims=True)  # the rounding of a large mean
        variance = (centred * centred).mean(-1, keepdims=True)
    return centred / np.sqrt(variance + eps)


def _check(x: Array, gain: Array, eps: float, bias: Array | None = None, axis: int = -1) -> None:
    fits = gain.ndim == 1 and gain.shape == x.shape[axis:][:1]
    require(fits, "C1", f"gain has shape {gain.shape}, x has shape {x.shape}")
    require(bias is None or bias.shape == gain.shape, "C1", f"bias does not have the shape {gain.shape} of gain")
    require(eps >= 0, "C2", f"eps is {eps}, not 0 or more")
