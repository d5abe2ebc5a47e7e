"""Faults of rotary embedding: which values pair, how far they turn, and what a call leaves behind."""

from typing import Any

import ml_dtypes
import numpy as np

from golden.derive import position as derive
from golden.values import Array

__all__ = [
    "StaysStretched", "cosine_first", "factor_applied_twice", "factor_ignored", "factor_squared", "llama3_hard",
    "long_factor_never", "other_denominators", "other_layout", "other_pairs", "other_sections",
    "positions_in_bfloat16", "ramp_truncated", "rotates_leading", "rotates_trailing", "theta_ignored", "time_alone",
    "turns_backwards", "unscaled",
]  # fmt: skip


def other_pairs(x: Array, cos: Array, sin: Array, *, interleaved: bool = False, **rest: Any) -> Array:
    """Halves where pairs are interleaved, and the other way about."""
    return derive.rope(x.astype(np.float64), cos, sin, interleaved=not interleaved, **rest)


def turns_backwards(x: Array, cos: Array, sin: Array, **rest: Any) -> Array:
    """The sine has the wrong sign."""
    return derive.rope(x.astype(np.float64), cos, -sin, **rest)


def rotates_trailing(x: Array, cos: Array, sin: Array, *, interleaved: bool = False) -> Array:
    """The trailing values of a head turn (DeepSeek-V4), not the leading ones."""
    R = 2 * cos.shape[-1]
    turned = derive.rope(x[..., -R:].astype(np.float64), cos, sin, interleaved=interleaved)
    return np.concatenate([x[..., :-R], turned], -1)


def rotates_leading(x: Array, cos: Array, sin: Array, *, trailing: bool, interleaved: bool = False) -> Array:
    """The leading values turn, although the trailing ones are asked for."""
    return derive.rope(x.astype(np.float64), cos, sin, interleaved=interleaved)


def other_layout(positions: Array, dim: int, *, interleaved: bool = True, **rest: Any) -> Array:
    """Sines and cosines in turn where they are halves, and the other way about."""
    return derive.sinusoidal_table(positions, dim, interleaved=not interleaved, **rest)


def other_denominators(positions: Array, dim: int, *, freq_shift: int = 0, **rest: Any) -> Array:
    """The slowest pair turns by theta^-1 where it is theta^(2 / D - 1), and the other way about."""
    return derive.sinusoidal_table(positions, dim, freq_shift=1 - freq_shift, **rest)


def cosine_first(positions: Array, dim: int, **rest: Any) -> Array:
    """The cosine stands where the sine belongs."""
    table = derive.sinusoidal_table(positions, dim, **rest)
    swapped: Array = table.reshape(len(positions), -1, 2)[..., ::-1]
    return swapped.reshape(table.shape) if rest.get("interleaved", True) else np.roll(table, dim // 2, axis=-1)


def other_sections(
    positions: Array, inv_freq: Array, sections: Any, factor: float = 1.0, *, interleaved: bool = False
) -> tuple[Array, Array]:
    """Sections one after the other where they are interleaved, and the other way about."""
    return derive.mrope_table(positions, inv_freq, sections, factor, interleaved=not interleaved)


def time_alone(
    positions: Array, inv_freq: Array, sections: Any, factor: float = 1.0, **_: Any
) -> tuple[Array, Array]:
    """Every pair turns by the time of its token."""
    return derive.rope_table(positions[0], inv_freq, factor)


def positions_in_bfloat16(positions: Array, inv_freq: Array, factor: float = 1.0, **_: Any) -> tuple[Array, Array]:
    """Positions pass through bfloat16, which makes 15962 of it 15936."""
    return derive.rope_table(positions.astype(ml_dtypes.bfloat16).astype(np.int64), inv_freq, factor)


def factor_squared(positions: Array, inv_freq: Array, factor: float = 1.0, **_: Any) -> tuple[Array, Array]:
    """The factor meets cosines and sines twice."""
    return derive.rope_table(positions, inv_freq, factor**2)


def unscaled(dim: int, theta: float = 10000.0, **_: Any) -> tuple[Array, float]:
    """The scaling is not read."""
    return derive.rope_frequencies(dim, theta)


class StaysStretched:
    """The table of the longest call so far serves all later ones."""

    longest = 0

    def __call__(self, dim: int, theta: float, *, seq_len: int, **rest: Any) -> tuple[Array, float]:
        self.longest = max(self.longest, seq_len)
        return derive.rope_frequencies(dim, theta, seq_len=self.longest, **rest)


def factor_applied_twice(dim: int, theta: float = 10000.0, **params: Any) -> tuple[Array, float]:
    """A given attention_factor is multiplied by the computed one."""
    given = params.pop("attention_factor")
    inv_freq, computed = derive.rope_frequencies(dim, theta, **params)
    return inv_freq, computed * given


def factor_ignored(dim: int, theta: float = 10000.0, **params: Any) -> tuple[Array, float]:
    """Cosines and sines are not multiplied at all."""
    return derive.rope_frequencies(dim, theta, **params)[0], 1.0


def ramp_truncated(dim: int, theta: float = 10000.0, **params: Any) -> tuple[Array, float]:
    """The ends of the ramp are rounded the other way: truncate is not read."""
    return derive.rope_frequencies(dim, theta, **params | {"truncate": not params.get("truncate", True)})


def long_factor_never(dim: int, theta: float = 10000.0, **params: Any) -> tuple[Array, float]:
    """The short factors serve long sequences too."""
    return derive.rope_frequencies(dim, theta, **params | {"long_factor": params["short_factor"]})


def theta_ignored(dim: int, theta: float = 10000.0, **params: Any) -> tuple[Array, float]:
    """The base is 10000 for everyone."""
    return derive.rope_frequencies(dim, **params)


def llama3_hard(dim: int, theta: float = 10000.0, **params: Any) -> tuple[Array, float]:
    """No mixture between the frequencies that stay and those that are divided."""
    inv_freq, factor = derive.rope_frequencies(dim, theta, **params)
    plain, _ = derive.rope_frequencies(dim, theta)
    return np.where(inv_freq < plain, plain / params["factor"], plain), factor
