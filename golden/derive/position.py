"""Rotary embedding: frequencies pair by pair, and each turn as a multiplication of complex numbers."""

import cmath
import math
from typing import Any

import numpy as np

from golden.values import Array

__all__ = ["mrope_table", "rope", "rope_frequencies", "rope_table", "sinusoidal_table"]


def rope(x: Array, cos: Array, sin: Array, *, interleaved: bool = False, trailing: bool = False) -> Array:
    y, R = x.copy(), cos.shape[-1]
    start = x.shape[-1] - 2 * R if trailing else 0
    for t, n, r in np.ndindex(x.shape[0], x.shape[1], R):
        a, b = (start + 2 * r, start + 2 * r + 1) if interleaved else (start + r, start + r + R)
        turned = complex(x[t, n, a], x[t, n, b]) * complex(cos[t, r], sin[t, r])
        y[t, n, a], y[t, n, b] = turned.real, turned.imag
    return y


def rope_table(positions: Array, inv_freq: Array, factor: float = 1.0, dtype: Any = None) -> tuple[Array, Array]:
    turns = [[factor * cmath.exp(1j * int(p) * float(f)) for f in inv_freq] for p in positions]
    return np.real(turns), np.imag(turns)


def mrope_table(
    positions: Array, inv_freq: Array, sections: tuple[int, int, int], factor: float = 1.0, dtype: Any = None, *,
    interleaved: bool = False,
) -> tuple[Array, Array]:
    turns = np.zeros((len(positions[0]), len(inv_freq)), complex)
    for t, j in np.ndindex(turns.shape):
        if interleaved:
            axis = j % 3 if j < 3 * sections[j % 3] else 0
        else:
            axis = 0 if j < sections[0] else 1 if j < sections[0] + sections[1] else 2
        turns[t, j] = factor * cmath.exp(1j * int(positions[axis][t]) * float(inv_freq[j]))
    return turns.real, turns.imag


def sinusoidal_table(
    positions: Array, dim: int, *, theta: float = 10000.0, interleaved: bool = True, freq_shift: int = 0
) -> Array:
    table = np.zeros((len(positions), dim))
    for t, i in np.ndindex(len(positions), dim // 2):
        angle = int(positions[t]) / theta ** (i / (dim / 2 - freq_shift))
        sine, cosine = (2 * i, 2 * i + 1) if interleaved else (i, dim // 2 + i)
        table[t, sine], table[t, cosine] = math.sin(angle), math.cos(angle)
    return table


def rope_frequencies(
    dim: int, theta: float = 10000.0, *, scaling: str = "none", seq_len: int | None = None, **params: Any
) -> tuple[Array, float]:
    if scaling == "dynamic":
        trained = params["max_position_embeddings"]
        length = max(seq_len or 0, trained)
        theta *= (params["factor"] * length / trained - (params["factor"] - 1)) ** (dim / (dim - 2))
    plain = [theta ** (-2 * i / dim) for i in range(dim // 2)]
    if scaling == "linear":
        plain = [f / params["factor"] for f in plain]
    if scaling == "llama3":
        plain = [_llama3(f, **params) for f in plain]
    if scaling == "yarn":
        return _yarn(plain, theta, **params)
    if scaling == "longrope":
        return _longrope(plain, seq_len or 0, **params)
    return np.array(plain), 1.0


def _llama3(f: float, **p: float) -> float:
    original, low, high = p["original_max_position_embeddings"], p["low_freq_factor"], p["high_freq_factor"]
    wavelength = 2 * math.pi / f
    if wavelength < original / high:
        return f
    if wavelength > original / low:
        return f / p["factor"]
    smooth = (original / wavelength - low) / (high - low)
    return (1 - smooth) * f / p["factor"] + smooth * f


def _yarn(plain: list[float], theta: float, **p: Any) -> tuple[Array, float]:
    R, s = len(plain), p["factor"]

    def at(turns: float) -> float:
        return 2 * R * math.log(p["original_max_position_embeddings"] / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = at(p.get("beta_fast", 32)), at(p.get("beta_slow", 1))
    if p.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, 2 * R - 1)
    high = high + 0.001 if low == high else high
    ramp = [min(max((i - low) / (high - low), 0), 1) for i in range(R)]
    mixed = [f / s * r + f * (1 - r) for f, r in zip(plain, ramp, strict=True)]

    def mscale(m: float) -> float:
        return 0.1 * m * math.log(s) + 1 if s > 1 else 1.0

    factor = p.get("attention_factor")
    if factor is None:
        m, all_dim = p.get("mscale") or 0, p.get("mscale_all_dim") or 0
        factor = mscale(m) / mscale(all_dim) if m and all_dim else mscale(1)
    return np.array(mixed), factor


def _longrope(plain: list[float], seq_len: int, **p: Any) -> tuple[Array, float]:
    original = p["original_max_position_embeddings"]
    stretch = p["long_factor"] if seq_len > original else p["short_factor"]
    s = p["factor"] if "factor" in p else p["max_position_embeddings"] / original
    factor = p.get("attention_factor") or (math.sqrt(1 + math.log(s) / math.log(original)) if s > 1 else 1.0)
    return np.array([f / by for f, by in zip(plain, stretch, strict=True)]), factor
