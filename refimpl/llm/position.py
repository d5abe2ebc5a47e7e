"""Positions: rotary embedding, and the tables that are added to tokens: GPT-2's learned one, sines and cosines.

RoPE runs in three steps: frequencies (llm/rope_scaling.py: per model, or per length), a table of cosines and sines
(per step, shared by all layers), the turning of q and k (per layer).
"""

from typing import Any

import numpy as np

from refimpl.contract import Array, Float, Int, host, op, require, rows, widen, within

__all__ = ["learned_position", "sinusoidal_table", "rope_table", "mrope_table", "rope"]


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
    require(within(positions, rows(table)), "C1", f"positions are integers in the table 0..{rows(table) - 1}")
    fits = positions.ndim == 1 and table.ndim == 2 and x.shape == (len(positions), table.shape[1])
    require(fits, "C2", f"x {x.shape} is not {positions.shape} rows of the width of the table {table.shape}")
    return (widen(x) + widen(table[positions])).astype(x.dtype, copy=False)


@host
def sinusoidal_table(
    positions: Int[Array, " T"], dim: int, *, theta: float = 10000.0, interleaved: bool = True, freq_shift: int = 0
) -> Float[Array, "T D"]:
    """Tabulate the sines and cosines that stand for positions; ``learned_position`` adds them to tokens.

    Math: with w[i] = theta^(-i / (D / 2 - freq_shift)) for the pairs i < D / 2,
        (y[2i], y[2i + 1]) = (sin(p w[i]), cos(p w[i])), or (y[i], y[i + D / 2]) where not interleaved.
    Cost: T D evaluations, once for all sequences.
    Numerics: angles and functions in float64, one cast to float32.
    Constraints:
        (C1) dim is even and positive, and half of it exceeds freq_shift.
    Source: Vaswani et al., 2017: interleaved. Not interleaved: Marian; with freq_shift=1: tensor2tensor, fairseq.

    >>> sinusoidal_table(np.array([0, 1]), 2).round(3)
    array([[0.   , 1.   ],
           [0.841, 0.54 ]], dtype=float32)
    """
    half, good = dim // 2, dim > 0 and dim % 2 == 0 and dim // 2 > freq_shift
    require(good, "C1", f"a width of {dim}, not even and positive, or its half not above {freq_shift}")
    angles = np.asarray(positions)[:, None] * theta ** (-np.arange(half) / (half - freq_shift))
    pairs = np.stack((np.sin(angles), np.cos(angles)), axis=-1 if interleaved else 1)
    return pairs.reshape(len(angles), dim).astype(np.float32)


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

    >>> cos, sin = rope_table(np.array([0, 1]), np.array([np.pi / 2]))
    >>> cos.round(6), sin.round(6)
    (array([[1.], [0.]], dtype=float32), array([[0.], [1.]], dtype=float32))
    """
    return _cos_and_sin(np.asarray(positions)[:, None] * np.asarray(inv_freq, np.float64), factor, dtype)


@host
def mrope_table(
    positions: Int[Array, "3 T"], inv_freq: Float[Array, " J"], sections: tuple[int, int, int], factor: float = 1.0,
    dtype: Any = np.float32, *, interleaved: bool = False,
) -> tuple[Float[Array, "T J"], Float[Array, "T J"]]:
    """Tabulate the cosines and sines of tokens that stand in time, height and width, for ``rope`` to turn by.

    Each pair reads one of the three positions of a token. Text has three equal ones, and is turned as by rope_table.

    Math: as rope_table, pair j at positions[c(j)]: the first sections[0] pairs read time (c = 0), the next sections[1]
        height (1), the others width (2). If interleaved, c(j) = j mod 3 while j < 3 sections[c], and time after that.
        It is the sections that are interleaved; how values pair is rope's own keyword.
    Cost: 2 T J evaluations, once a step for all layers and heads.
    Numerics: as rope_table.
    Constraints:
        (C1) the table is float32 or float64.
        (C2) there are 3 sections, none negative, of all J pairs together.
        (C3) there are 3 positions a token.
    Source: Wang et al., Qwen2-VL, 2024: sections. Interleaved: Qwen3-VL in transformers, apply_interleaved_mrope.

    >>> cos, _ = mrope_table(np.array([[0], [1], [2]]), np.ones(3), (1, 1, 1))
    >>> cos.round(3)
    array([[ 1.   ,  0.54 , -0.416]], dtype=float32)
    """
    J = len(inv_freq)
    good = len(sections) == 3 and min(sections) >= 0 and sum(sections) == J
    require(good, "C2", f"sections {sections} are not 3 that hold {J} pairs together")
    positions = np.asarray(positions)
    require(positions.ndim == 2 and len(positions) == 3, "C3", f"positions {positions.shape} are not 3 a token")
    reads = np.repeat(np.arange(3), sections)
    if interleaved:
        turn = np.arange(J) % 3
        reads = np.where(np.arange(J) < 3 * np.asarray(sections)[turn], turn, 0)
    return _cos_and_sin(positions[reads].T * np.asarray(inv_freq, np.float64), factor, dtype)


@op
def rope(
    x: Float[Array, "T N H"], cos: Float[Array, "T J"], sin: Float[Array, "T J"], *, interleaved: bool = False,
    trailing: bool = False,
) -> Float[Array, "T N H"]:
    """Turn the first 2J values of every head, or the last if trailing, by the angles of the token's position.

    Math: (a, b) -> (a cos - b sin, b cos + a sin), where pair i is (x[i], x[i + J]), or (x[2i], x[2i + 1]) if
        interleaved. If trailing, x stands for the last 2J values. The other values pass unchanged.
    Cost: 6 flop a pair, one read and one write: bound by memory, and fused with its neighbours on a GPU.
    Numerics: float32 or wider, one cast. A table without factor keeps norms.
    Constraints:
        (C1) 2J <= H.
        (C2) cos and sin are float32 or float64.
        (C3) cos and sin have a row for each of the T tokens.
    Source: Su et al., 2021. Halves: GPT-NeoX, Hugging Face. Interleaved: Meta's Llama, GPT-J. Trailing: DeepSeek-V4.

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
    y = x.copy()
    turned = y[..., y.shape[-1] - 2 * J :] if trailing else y
    a, b = widen(turned[..., first]), widen(turned[..., second])
    cos, sin = cos[:, None, :], sin[:, None, :]  # one angle for all heads
    turned[..., first], turned[..., second] = a * cos - b * sin, b * cos + a * sin
    return y


def _cos_and_sin(angles: Array, factor: float, dtype: Any) -> tuple[Array, Array]:
    require(dtype in (np.float32, np.float64), "C1", f"a rope table in {np.dtype(dtype).name}, not float32 or float64")
    return (factor * np.cos(angles)).astype(dtype), (factor * np.sin(angles)).astype(dtype)
