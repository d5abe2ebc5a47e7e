"""Positions: rotary embedding, and the learned table of GPT-2.

RoPE runs in three steps: frequencies (llm/rope_scaling.py: per model, or per length), a table of cosines and sines
(per step, shared by all layers), the turning of q and k (per layer).
"""

import math
from typing import Any

import numpy as np

from refimpl.contract import Array, Float, Int, host, op, require, widen

__all__ = ["learned_position", "rope_table", "rope"]


@op
def learned_position(
    x: Float[Array, "T D"], positions: Int[Array, " T"], table: Float[Array, "max_positions D"]
) -> Float[Array, "T D"]:
    """Add the learned vector of its position to every token.

    Math: y[t] = x[t] + table[positions[t]].
    Cost: T D flop, 3 T D elements moved: bound by memory.
    Numerics: one sum in float32 or wider, one cast.
    Constraints:
        (C1) every position is an integer and lies in the table.
        (C2) x has a row for each position, as wide as the table's.
    Source: Radford et al., Language models are unsupervised multitask learners (GPT-2), 2019.

    >>> learned_position(np.zeros((1, 2)), np.array([1]), np.array([[0.0, 1.0], [2.0, 3.0]]))
    array([[2., 3.]])
    """
    inside = positions.dtype.kind in "iu" and bool(((positions >= 0) & (positions < len(table))).all())
    require(inside, "C1", f"positions are integers in the table 0..{len(table) - 1}")
    fits = positions.ndim == 1 and table.ndim == 2 and x.shape == (len(positions), table.shape[1])
    require(fits, "C2", f"x {x.shape} is not {positions.shape} rows of the width of the table {table.shape}")
    return (widen(x) + widen(table[positions])).astype(x.dtype, copy=False)


@host
def rope_table(
    positions: Int[Array, " T"], inv_freq: Float[Array, " J"], factor: float = 1.0, dtype: Any = np.float32
) -> tuple[Float[Array, "T J"], Float[Array, "T J"]]:
    """Tabulate the cosines and sines of the angles at every position.

    Math: factor cos(positions[t] inv_freq[j]), factor sin(...).
    Cost: 2 T J evaluations, once a step for all layers and heads.
    Numerics: angles and functions in float64, one cast; bfloat16 could not even hold position 15962.
    Constraints:
        (C1) the table is float32 or float64.
    Source: Su et al., 2021.

    >>> cos, sin = rope_table(np.array([0, 1]), np.array([math.pi / 2]))
    >>> cos.round(6), sin.round(6)
    (array([[1.], [0.]], dtype=float32), array([[0.], [1.]], dtype=float32))
    """
    require(dtype in (np.float32, np.float64), "C1", f"a rope table in {np.dtype(dtype).name}, not float32 or float64")
    angles = np.asarray(positions)[:, None] * np.asarray(inv_freq, np.float64)
    return (factor * np.cos(angles)).astype(dtype), (factor * np.sin(angles)).astype(dtype)


@op
def rope(
    x: Float[Array, "T N H"], cos: Float[Array, "T J"], sin: Float[Array, "T J"], *, interleaved: bool = False
) -> Float[Array, "T N H"]:
    """Turn the first 2J values of every head, pair by pair, by the angles of the token's position.

    Math: (a, b) -> (a cos - b sin, b cos + a sin), where pair i is (x[i], x[i + J]), or (x[2i], x[2i + 1]) if
        interleaved. Values from 2J on pass unchanged.
    Cost: 6 flop a pair, one read and one write: bound by memory, and fused with its neighbours on a GPU.
    Numerics: float32 or wider, one cast. A table without factor keeps norms.
    Constraints:
        (C1) 2J <= H.
        (C2) cos and sin are float32 or float64.
        (C3) cos and sin have a row for each of the T tokens.
    Source: Su et al., 2021. Halves: GPT-NeoX, Hugging Face. Interleaved: Meta's Llama, GPT-J.

    >>> cos, sin = np.array([[0.0]]), np.array([[1.0]])
    >>> rope(np.array([[[1.0, 2.0, 3.0]]]), cos, sin)
    array([[[-2.,  1.,  3.]]])
    """
    fits = x.ndim == 3 and cos.ndim == 2 and cos.shape == sin.shape and len(cos) == len(x)
    require(fits, "C3", f"cos {cos.shape} and sin {sin.shape} do not fit x {x.shape}")
    J = cos.shape[-1]
    require(x.shape[-1] >= 2 * J, "C1", f"{J} pairs do not fit into a head of width {x.shape[-1]}")
    narrow = [t.dtype.name for t in (cos, sin) if t.dtype not in (np.float32, np.float64)]
    require(not narrow, "C2", f"a rope table in {', '.join(narrow)}, not float32 or float64")
    first, second = (slice(0, 2 * J, 2), slice(1, 2 * J, 2)) if interleaved else (slice(0, J), slice(J, 2 * J))
    a, b = widen(x[..., first]), widen(x[..., second])
    cos, sin = cos[:, None, :], sin[:, None, :]  # one angle for all heads
    y = x.copy()
    y[..., first] = a * cos - b * sin
    y[..., second] = b * cos + a * sin
    return y
