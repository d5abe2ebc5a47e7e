"""Gated activations: two projections of a token, one of which decides how much of the other passes."""

import numpy as np

from refimpl.basics.activation import gelu_tanh, sigmoid, silu
from refimpl.contract import Array, Float, op, require, widen

__all__ = ["geglu", "swiglu", "swiglu_clamped"]


@op
def swiglu(gate: Float[Array, "..."], up: Float[Array, "..."]) -> Float[Array, "..."]:
    """Multiply one projection by the SiLU of another (Llama, Qwen).

    Math: gate sigmoid(gate) up.
    Cost: about 7 flop and two exp an element: bound by memory.
    Numerics: one cast at the end, none between the SiLU and the product.
    Constraints:
        (C1) gate and up have one shape.
    Source: Shazeer, GLU variants improve transformer, 2020.

    >>> swiglu(np.array([1000.0]), np.array([2.0]))
    array([2000.])
    """
    _check(gate, up)
    return (silu(widen(gate)) * widen(up)).astype(gate.dtype, copy=False)


@op
def geglu(gate: Float[Array, "..."], up: Float[Array, "..."]) -> Float[Array, "..."]:
    """Multiply one projection by the tanh GELU of another (Gemma, T5 v1.1).

    Math: gelu_tanh(gate) up.
    Cost: about 11 flop and two exp an element: bound by memory.
    Numerics: one cast at the end, none between the GELU and the product.
    Constraints:
        (C1) gate and up have one shape.
    Source: Shazeer, 2020.

    >>> geglu(np.array([1000.0]), np.array([2.0]))
    array([2000.])
    """
    _check(gate, up)
    return (gelu_tanh(widen(gate)) * widen(up)).astype(gate.dtype, copy=False)


@op
def swiglu_clamped(
    gate: Float[Array, "..."], up: Float[Array, "..."], *, alpha: float = 1.702, limit: float = 7.0
) -> Float[Array, "..."]:
    """Multiply one projection, plus 1, by a steeper SiLU of another, both kept in bounds (gpt-oss).

    Math: g = min(gate, limit), u = max(-limit, min(up, limit)), y = (u + 1) g sigmoid(alpha g).
    Cost: about 11 flop and two exp an element: bound by memory.
    Numerics: one cast at the end. The gate has no lower bound: its tail vanishes by itself, as silu's does,
        and -inf gives NaN. NaN passes both bounds.
    Constraints:
        (C1) gate and up have one shape.
        (C2) limit is positive.
    Source: OpenAI, gpt-oss-120b and gpt-oss-20b model card, 2025.

    >>> swiglu_clamped(np.array([1000.0, 1000.0, -1000.0]), np.array([2.0, -1000.0, 2.0])).round(3)
    array([ 21., -42.,  -0.])
    """
    _check(gate, up)
    require(limit > 0, "C2", f"limit is {limit}, not positive")
    g, u = np.minimum(widen(gate), limit), np.clip(widen(up), -limit, limit)
    with np.errstate(over="ignore", invalid="ignore"):
        return ((u + 1) * (g * sigmoid(alpha * g))).astype(gate.dtype, copy=False)


def _check(gate: Array, up: Array) -> None:
    require(gate.shape == up.shape, "C1", f"gate has shape {gate.shape}, up {up.shape}")
