"""Adaptive layer norm: what a denoiser is told (noise level, class) scales, shifts and gates its layers."""

import numpy as np

from refimpl.contract import Array, Float, op, require, widen

__all__ = ["adaln", "gated_residual"]


@op
def adaln(
    x: Float[Array, "T D"], shift: Float[Array, "*tokens D"], scale: Float[Array, "*tokens D"], eps: float = 1e-6
) -> Float[Array, "T D"]:
    """Give every token mean 0 and variance 1, then scale and shift it as the condition says.

    The layer norm has no gain of its own. ``shift`` and ``scale`` are one for all tokens, or one for each, as frames of
    a video have that are noised differently.

    Math: y = layer_norm(x) (1 + scale) + shift, the mean and the variance over D.
    Cost: about 10 flop an element, one read and one write: bound by memory; apart, two more of each.
    Numerics: as layer_norm, centred twice; float32 or wider from end to end, one cast. A scale of -1 leaves the shift.
    Constraints:
        (C1) x is [T D].
        (C2) shift and scale are both [D] or both [T D].
        (C3) eps is not negative.
    Source: Perez et al., FiLM, 2018; Peebles, Xie, DiT, 2022.

    >>> adaln(np.array([[1.0, 3.0]]), np.array([0.0, 10.0]), np.array([0.0, 1.0]), eps=0.0)
    array([[-1., 12.]])
    """
    require(x.ndim == 2, "C1", f"x is [T D], got the shape {x.shape}")
    fits = shift.shape == scale.shape and shift.shape in (x.shape, x.shape[1:])
    require(fits, "C2", f"shift {shift.shape} and scale {scale.shape} are not both {x.shape[1:]} or {x.shape}")
    require(eps >= 0, "C3", f"eps is {eps}, not 0 or more")
    wide = widen(x)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        centred = wide - wide.mean(-1, keepdims=True)
        centred = centred - centred.mean(-1, keepdims=True)  # the rounding of a large mean
        variance = (centred * centred).mean(-1, keepdims=True)
        y = centred / np.sqrt(variance + eps) * (1 + widen(scale)) + widen(shift)
    return np.asarray(y).astype(x.dtype, copy=False)


@op
def gated_residual(
    x: Float[Array, "T D"], y: Float[Array, "T D"], gate: Float[Array, "*tokens D"]
) -> Float[Array, "T D"]:
    """Add to the residual stream as much of a layer's output as the gate lets through.

    A gate of 0, with which adaLN-zero begins its training, makes the layer pass x on.

    Math: x + gate y, one gate for all tokens or one for each.
    Cost: 2 T D flop over (3 T D + tokens D) elements: bound by memory.
    Numerics: float32 or wider, one cast.
    Constraints:
        (C1) x and y are [T D], of one shape.
        (C2) the gate is [D] or [T D].
    Source: Peebles, Xie, DiT, 2022: adaLN-zero.

    >>> gated_residual(np.ones((1, 2)), np.array([[2.0, 3.0]]), np.array([0.0, 10.0]))
    array([[ 1., 31.]])
    """
    require(x.ndim == 2 and x.shape == y.shape, "C1", f"x {x.shape} and y {y.shape} are not [T D] of one shape")
    require(gate.shape in (x.shape, x.shape[1:]), "C2", f"the gate {gate.shape} is not {x.shape[1:]} or {x.shape}")
    return np.asarray(widen(x) + widen(gate) * widen(y)).astype(x.dtype, copy=False)
