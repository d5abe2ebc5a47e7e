"""Guidance: one thread an element; the spreads that rescaling needs are one block's work."""

from typing import Any

import numpy as np

from gpu import device
from gpu.basics.flat import applied, launch_flat
from gpu.grid import threads_for
from gpu.media.step_kernels import guide_kernel, scale_kernel, spread_kernel
from gpu.number import named
from gpu.registry import Variant
from refimpl.contract import Array, Float, kernel, op, require

__all__ = ["VARIANTS", "guide", "guide_into", "rescale_guidance", "rescale_guidance_into"]


@op
def guide(
    cond: Float[Array, "*image"], uncond: Float[Array, "*image"], guidance_scale: float
) -> Float[Array, "*image"]:
    """One thread an element, blocks of 256; at 1 and 0 there is nothing to compute, and nothing is launched."""
    require(cond.shape == uncond.shape, "C1", f"outputs {cond.shape} and {uncond.shape} do not have one shape")
    if guidance_scale in (0, 1):
        return device.array(cond if guidance_scale == 1 else uncond)
    return applied(lambda out, *inputs: guide_into(out, *inputs, guidance_scale), cond, uncond)


@kernel
def guide_into(
    out: Float[Array, "*image"], cond: Float[Array, "*image"], uncond: Float[Array, "*image"], guidance_scale: float
) -> None:
    """Write the guided output into ``out``, which may be one of the two."""
    launch_flat(guide_kernel(named(cond), named(uncond)), out, cond, uncond, float(guidance_scale))


@op
def rescale_guidance(
    guided: Float[Array, "*image"], cond: Float[Array, "*image"], rescale: float
) -> Float[Array, "*image"]:
    """Two launches: one block for both spreads, then one thread an element; the factor never leaves the device."""
    require(cond.shape == guided.shape and cond.size > 0, "C1", f"guided {guided.shape} and cond {cond.shape}")
    return applied(lambda out, *inputs: rescale_guidance_into(out, *inputs, rescale), guided, cond)


@kernel
def rescale_guidance_into(
    out: Float[Array, "*image"], guided: Float[Array, "*image"], cond: Float[Array, "*image"], rescale: float
) -> None:
    """Write the rescaled output into ``out``, which may be ``guided``."""
    numbers, made = device.empty(2, np.dtype(np.float32)), spread_kernel(named(guided), named(cond))
    given = (numbers, guided.reshape(-1), cond.reshape(-1), float(rescale))
    device.launch(made, 1, threads_for(guided.size), *given)
    launch_flat(scale_kernel(named(guided)), out, guided, numbers)


def _outputs() -> dict[str, Any]:
    cond, uncond = np.random.default_rng(0).standard_normal((2, 16, 64, 64), np.float32)
    return {"cond": cond, "uncond": uncond, "guidance_scale": 4.0}


def _contrast() -> dict[str, Any]:
    cond, guided = np.random.default_rng(0).standard_normal((2, 16, 64, 64), np.float32)
    return {"guided": guided, "cond": cond, "rescale": 0.7}


VARIANTS = tuple(
    Variant("numba", f.__name__, f, lambda *_, **__: True, workload)
    for f, workload in ((guide, _outputs), (rescale_guidance, _contrast))
)
