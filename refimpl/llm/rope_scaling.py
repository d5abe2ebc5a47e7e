"""How far RoPE turns: the frequencies of its pairs, and the scalings that stretch them.

RoPE turns pair i of a head by the angle position * inv_freq[i]; a dot product of two turned vectors then depends
on the difference of their positions alone. A scaling changes the frequencies, so that positions beyond the trained
length get angles that were seen in training.
"""

import math
from typing import Any

import numpy as np

from refimpl.contract import Array, Float, host, require

__all__ = ["rope_frequencies"]


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
            low_freq_factor is at most its high_freq_factor.
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
        trained, factor = given["max_position_embeddings"], given["factor"]
        theta *= (factor * max(seq_len or 0, trained) / trained - (factor - 1)) ** (dim / (dim - 2))
    inv_freq = theta ** -(np.arange(0, dim, 2) / dim) / (given["factor"] if scaling == "linear" else 1.0)
    scale = {"yarn": _yarn, "llama3": _llama3, "longrope": _longrope}.get(scaling)
    return scale(inv_freq, theta, seq_len, given) if scale else (inv_freq, 1.0)


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
        require(low <= high, "C6", f"low_freq_factor is at most high_freq_factor, got {low} and {high}")


def _yarn(inv_freq: Array, theta: float, seq_len: int | None, given: dict[str, Any]) -> tuple[Array, float]:
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

    mscale, all_dim = given.get("mscale"), given.get("mscale_all_dim")
    grown = growth(mscale) / growth(all_dim) if mscale and all_dim else growth(1.0)
    mixed = inv_freq * (1 - ramp) + inv_freq / factor * ramp
    return mixed, float(given.get("attention_factor", grown))  # a given one is final


def _llama3(inv_freq: Array, theta: float, seq_len: int | None, given: dict[str, Any]) -> tuple[Array, float]:
    turns = given["original_max_position_embeddings"] * inv_freq / (2 * math.pi)  # within the original length
    low, high = given["low_freq_factor"], given["high_freq_factor"]
    keep = np.clip((turns - low) / (high - low), 0, 1) if low < high else np.where(turns < low, 0.0, 1.0)
    return inv_freq * keep + inv_freq / given["factor"] * (1 - keep), 1.0


def _longrope(inv_freq: Array, theta: float, seq_len: int | None, given: dict[str, Any]) -> tuple[Array, float]:
    original, factor = given["original_max_position_embeddings"], _factor(given)
    name = "long_factor" if (seq_len or 0) > original else "short_factor"
    J, stretch = len(inv_freq), np.asarray(given[name], np.float64)
    require(stretch.shape == (J,), "C4", f"{name} holds {stretch.size} values for {J} pairs")
    grown = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    return inv_freq / stretch, float(given.get("attention_factor", grown))


def _factor(given: dict[str, Any]) -> float:
    """Return the factor; a config may state two lengths instead."""
    longest, original = given.get("max_position_embeddings", 0), given["original_max_position_embeddings"]
    factor = float(given.get("factor", longest / original))
    require(factor > 0, "C3", "the rope scaling needs factor or max_position_embeddings")
    return factor
