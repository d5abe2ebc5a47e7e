"""Positions: rotary embedding with its scalings, and the learned table of GPT-2.

RoPE turns pair i of a head by the angle position * inv_freq[i]; a dot product of two turned vectors then depends
on the difference of their positions alone. A scaling changes the frequencies, so that positions beyond the trained
length get angles that were seen in training. It runs in three steps: frequencies (per model, or per length), a table
of cosines and sines (per step, shared by all layers), the turning of q and k (per layer).
"""

import math
from typing import Any

import numpy as np

from refimpl.contract import Array, Float, Int, host, op, require, widen

__all__ = ["learned_position", "rope_frequencies", "rope_table", "rope"]


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
def rope_frequencies(
    dim: int, theta: float = 10000.0, *, scaling: str = "none", seq_len: int | None = None, **params: Any
) -> tuple[Float[Array, " J"], float]:
    """Return how far each of the dim / 2 pairs turns per position, and the factor on cosines and sines.

    ``params`` carry the names of a Hugging Face config (``None`` counts as absent). ``seq_len`` is the length of the
    sequence so far; dynamic and longrope depend on it, and each call stands alone: a long one leaves nothing behind.

    Math: inv_freq[i] = theta^(-2i / dim), then
        linear    inv_freq / factor
        dynamic   theta (factor s / m - factor + 1)^(dim / (dim - 2)) in place of theta, where m is the trained
                  length, max_position_embeddings, and s = max(seq_len, m)
        yarn      fast pairs stay, slow ones / factor, a linear ramp over i between; the table times 1 + 0.1 ln factor
        llama3    fast pairs stay, slow ones / factor, a linear ramp over inv_freq between
        longrope  inv_freq / short_factor[i], or / long_factor[i] once seq_len passes the original length
    Numerics: float64 throughout.
    Constraints:
        (C1) dim is even and positive, and above 2 for dynamic.
        (C2) scaling is one of none, linear, dynamic, yarn, llama3, longrope.
        (C3) params have known names, and hold those that the scaling needs.
        (C4) longrope's lists hold dim / 2 factors.
        (C5) theta is finite and above 1.
        (C6) factors and lengths are finite and positive; longrope was trained on more than one position, and llama3's
            low_freq_factor lies below its high_freq_factor.
    Source: Su et al., RoFormer, 2021; Peng et al., YaRN, 2023; Ding et al., LongRoPE, 2024;
        transformers, modeling_rope_utils.py, whose names and defaults these are.

    >>> rope_frequencies(4, 10000.0, scaling="linear", factor=2.0)
    (array([0.5  , 0.005]), 1.0)
    """
    smallest = 4 if scaling == "dynamic" else 2
    require(dim >= smallest and dim % 2 == 0, "C1", f"a rotated width of {dim}, not even and at least {smallest}")
    require(scaling in _NEEDS, "C2", f"unknown rope scaling {scaling!r}, not one of {', '.join(_NEEDS)}")
    given = {name: value for name, value in params.items() if value is not None}
    unknown, absent = given.keys() - _NAMES, _NEEDS[scaling] - given.keys()
    require(not unknown, "C3", f"unknown rope parameters {', '.join(sorted(unknown))}")
    require(not absent, "C3", f"rope scaling {scaling} needs {', '.join(sorted(absent))}")
    require(1 < theta < math.inf, "C5", f"theta is finite and above 1, got {theta}")
    _check_values(scaling, given)
    if scaling == "dynamic":
        theta = _dynamic_theta(dim, theta, seq_len, given)
    inv_freq = theta ** -(np.arange(0, dim, 2) / dim)
    match scaling:
        case "linear":
            return inv_freq / given["factor"], 1.0
        case "yarn":
            return _yarn(inv_freq, theta, given)
        case "llama3":
            return _llama3(inv_freq, given)
        case "longrope":
            return _longrope(inv_freq, seq_len, given)
    return inv_freq, 1.0


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


_NEEDS = {
    "none": set(),
    "linear": {"factor"},
    "dynamic": {"factor", "max_position_embeddings"},
    "yarn": {"original_max_position_embeddings"},
    "llama3": {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"},
    "longrope": {"short_factor", "long_factor", "original_max_position_embeddings"},
}
_NAMES = set().union(*_NEEDS.values()) | {
    "attention_factor", "beta_fast", "beta_slow", "truncate", "mscale", "mscale_all_dim",
}


def _check_values(scaling: str, given: dict[str, Any]) -> None:
    for name in given.keys() - {"truncate", "mscale", "mscale_all_dim"}:
        values = np.asarray(given[name], np.float64)
        positive = bool(((values > 0) & (values < np.inf)).all())
        require(positive, "C6", f"{name} is finite and positive, got {given[name]}")
    if scaling == "longrope":
        trained = given["original_max_position_embeddings"]
        require(trained > 1, "C6", f"longrope was trained on more than one position, got {trained}")
    if scaling == "llama3":
        low, high = given["low_freq_factor"], given["high_freq_factor"]
        require(low < high, "C6", f"low_freq_factor lies below high_freq_factor, got {low} and {high}")


def _dynamic_theta(dim: int, theta: float, seq_len: int | None, given: dict[str, Any]) -> float:
    trained, factor = given["max_position_embeddings"], given["factor"]
    stretch = factor * max(seq_len or 0, trained) / trained - (factor - 1)
    return float(theta * stretch ** (dim / (dim - 2)))


def _yarn(inv_freq: Array, theta: float, given: dict[str, Any]) -> tuple[Array, float]:
    original, factor, J = given["original_max_position_embeddings"], _factor(given), len(inv_freq)

    def pair_that_turns(times: float) -> float:  # within the original length; solves for i
        return J * math.log(original / (times * 2 * math.pi)) / math.log(theta)

    low, high = pair_that_turns(given.get("beta_fast") or 32.0), pair_that_turns(given.get("beta_slow") or 1.0)
    if given.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, 2 * J - 1)
    ramp = np.clip((np.arange(J) - low) / (high - low or 0.001), 0, 1)

    def growth(mscale: float) -> float:
        return 1 + 0.1 * mscale * math.log(factor) if factor > 1 else 1.0

    attention_factor = given.get("attention_factor")  # final where given
    if attention_factor is None and given.get("mscale") and given.get("mscale_all_dim"):
        attention_factor = growth(given["mscale"]) / growth(given["mscale_all_dim"])
    elif attention_factor is None:
        attention_factor = growth(1.0)
    return inv_freq * (1 - ramp) + inv_freq / factor * ramp, float(attention_factor)


def _llama3(inv_freq: Array, given: dict[str, Any]) -> tuple[Array, float]:
    turns = given["original_max_position_embeddings"] * inv_freq / (2 * math.pi)  # within the original length
    low, high = given["low_freq_factor"], given["high_freq_factor"]
    keep = np.clip((turns - low) / (high - low), 0, 1)
    return inv_freq * keep + inv_freq / given["factor"] * (1 - keep), 1.0


def _longrope(inv_freq: Array, seq_len: int | None, given: dict[str, Any]) -> tuple[Array, float]:
    original, factor = given["original_max_position_embeddings"], _factor(given)
    name = "long_factor" if (seq_len or 0) > original else "short_factor"
    J, stretch = len(inv_freq), np.asarray(given[name], np.float64)
    require(stretch.shape == (J,), "C4", f"{name} holds {stretch.size} values for {J} pairs")
    attention_factor = given.get("attention_factor")
    if attention_factor is None:
        attention_factor = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    return inv_freq / stretch, float(attention_factor)


def _factor(given: dict[str, Any]) -> float:
    """Return the factor; a config may state two lengths instead."""
    stated = "factor" in given or "max_position_embeddings" in given
    require(stated, "C3", "the rope scaling needs factor or max_position_embeddings")
    if "factor" in given:
        return float(given["factor"])
    return float(given["max_position_embeddings"]) / float(given["original_max_position_embeddings"])
