"""Noise levels as a network reads them: sines and cosines of the timestep."""

from typing import Any

import numpy as np

from refimpl.contract import Array, Float, composed, host, op, require, whole, widen

__all__ = ["guidance_embedding", "timestep_embedding", "timestep_frequencies"]


@host
def timestep_frequencies(
    dim: int, downscale_freq_shift: float = 1.0, scale: float = 1.0, max_period: float = 10000.0
) -> Float[Array, " pairs"]:
    """Return how far each pair of an embedding turns in a timestep of 1, in float64.

    >>> timestep_frequencies(4, max_period=100.0)
    array([1.  , 0.01])
    """
    half = dim // 2
    return float(scale) * float(max_period) ** (-np.arange(half) / (half - float(downscale_freq_shift)))


@op
def timestep_embedding(
    timesteps: Float[Array, " T"], dim: int, *, flip_sin_to_cos: bool = False, downscale_freq_shift: float = 1.0,
    scale: float = 1.0, max_period: float = 10000.0,
) -> Float[Array, "T dim"]:
    """Turn each timestep into the sines and cosines that a denoiser reads it from.

    A picture has one timestep; frames of a video may have one each. Timesteps in 0..1 take ``scale=1000`` where the
    network was trained on 0..1000.

    Math: with w[i] = scale max_period^(-i / (dim / 2 - downscale_freq_shift)) for i < dim / 2, rounded down:
        (y[i], y[i + dim / 2]) = (sin(t w[i]), cos(t w[i])), or (cos, sin) if flip_sin_to_cos. An odd dim ends in 0.
    Cost: T dim evaluations, or 2 T dim flop over (T + T dim) elements: small beside all else.
    Numerics: angles in float64, for t is up to 1000 and float32 would cost three of its seven digits; one cast.
    Constraints:
        (C1) dim is a whole number from 2, its half above downscale_freq_shift, and max_period is positive.
        (C2) timesteps are a row.
    Source: Ho et al., Denoising diffusion probabilistic models, 2020: sines first, dim / 2 - 1. Peebles, Xie, DiT,
        2022: cosines first.

    >>> timestep_embedding(np.array([0.0, np.pi / 2]), 4, max_period=3.0).round(6)
    array([[0.      , 0.      , 1.      , 1.      ],
           [1.      , 0.5     , 0.      , 0.866025]])
    """
    dim = whole("dim", dim)
    good = dim >= 2 and dim // 2 > downscale_freq_shift and max_period > 0
    require(good, "C1", f"dim {dim}, its half not above {downscale_freq_shift}, or a max_period of {max_period}")
    require(timesteps.ndim == 1, "C2", f"timesteps are a row, got the shape {timesteps.shape}")
    w = timestep_frequencies(dim, downscale_freq_shift, scale, max_period)
    with np.errstate(invalid="ignore"):  # sin(inf) is NaN, as it should be
        angles = widen(timesteps).astype(np.float64)[:, None] * w
        pair = (np.cos(angles), np.sin(angles)) if flip_sin_to_cos else (np.sin(angles), np.cos(angles))
    rest = np.zeros((len(timesteps), dim % 2))
    return np.concatenate([*pair, rest], axis=1).astype(timesteps.dtype)


@composed
def guidance_embedding(guidance_scale: float, dim: int, ops: Any) -> Float[Array, " dim"]:
    """Say a guidance scale to a student that has guidance in it: as a timestep of 1000 (s - 1), sines first.

    Such a model is asked once a step. LCM's scale s is that of Imagen, and w = s - 1 is what it was taught by.

    Source: Meng et al., On distillation of guided diffusion models, 2022; Luo et al., LCM, 2023, section 4.2.

    >>> from refimpl.media import operations
    >>> guidance_embedding(1.0, 4, operations)
    array([0., 0., 1., 1.])
    """
    told = np.array([1000.0 * (guidance_scale - 1.0)])
    embedded: Array = ops.timestep_embedding(told, dim, downscale_freq_shift=1.0)
    return embedded[0]
