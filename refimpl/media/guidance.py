"""Guidance: away from what the model says without a prompt, or with another one."""

import numpy as np

from refimpl.contract import Array, Float, host, op, require, widen

__all__ = ["guide", "is_guided", "rescale_guidance"]


@op
def guide(
    cond: Float[Array, "*image"], uncond: Float[Array, "*image"], guidance_scale: float
) -> Float[Array, "*image"]:
    """Lead a model's output away from what it says without the prompt, or with a negative one.

    Math: uncond + s (cond - uncond). s = 1 is cond, bit for bit; s = 0 is uncond. The paper's w is s - 1.
    Cost: 3 image flop over 3 image elements: bound by memory; s other than 1 and 0 costs a second pass of the model.
    Numerics: float32 or wider, one cast.
    Constraints:
        (C1) both outputs have one shape.
    Source: Ho, Salimans, Classifier-free diffusion guidance, 2022; Saharia et al., Imagen, 2022 (s).

    >>> guide(np.array([3.0]), np.array([1.0]), 2.0)
    array([5.])
    """
    require(cond.shape == uncond.shape, "C1", f"outputs {cond.shape} and {uncond.shape} do not have one shape")
    if guidance_scale in (0, 1):
        return cond if guidance_scale == 1 else uncond
    return np.asarray(widen(uncond) + guidance_scale * (widen(cond) - widen(uncond))).astype(cond.dtype, copy=False)


@op
def rescale_guidance(
    guided: Float[Array, "*image"], cond: Float[Array, "*image"], rescale: float
) -> Float[Array, "*image"]:
    """Take back the contrast that guidance adds, or a part of it.

    Math: guided (1 - rescale + rescale std(cond) / std(guided)), spreads over all values; as it is where that is 0.
    Cost: 8 image flop over 3 image elements: bound by memory.
    Numerics: means and spreads in float32 or wider, about the mean; one cast.
    Constraints:
        (C1) both have one shape, and at least one value.
    Source: Lin et al., Common diffusion noise schedules and sample steps are flawed, 2023, section 3.4.

    >>> rescale_guidance(np.array([0.0, 4.0]), np.array([1.0, 2.0]), 0.5)
    array([0. , 2.5])
    """
    require(cond.shape == guided.shape and cond.size > 0, "C1", f"guided {guided.shape} and cond {cond.shape}")
    wide, prompt = widen(guided), np.std(widen(cond), dtype=np.float64)
    spread = np.std(wide, dtype=np.float64)
    factor = 1 - rescale + rescale * prompt / spread if spread != 0 else 1.0
    return np.asarray(wide * wide.dtype.type(factor)).astype(guided.dtype, copy=False)


@host
def is_guided(guidance_scale: float, sigma: float, interval: tuple[float, float] = (0.0, np.inf)) -> bool:
    """Tell whether a step needs the second pass: guidance is on, and the noise level lies in the interval.

    Source: Kynkäänniemi et al., Applying guidance in a limited interval, 2024.

    >>> is_guided(1.0, 0.5), is_guided(4.0, 0.5), is_guided(4.0, 0.9, (0.0, 0.8))
    (False, True, False)
    """
    return guidance_scale != 1 and interval[0] < sigma <= interval[1]
