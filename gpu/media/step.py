"""Steps of solvers: one thread an element reads all terms and writes the sum."""

from typing import Any

import numpy as np

from gpu import device
from gpu.basics.flat import THREADS, applied, launch_flat
from gpu.grid import blocks_for
from gpu.media.step_kernels import scale_by_exp_kernel, step_kernel
from gpu.number import named
from gpu.registry import Variant
from refimpl.contract import Array, Float, kernel, op, require, rows

__all__ = [
    "VARIANTS", "guided_combination", "guided_combination_into", "linear_combination", "linear_combination_into",
    "scale_by_exp", "scale_by_exp_into",
]  # fmt: skip


@op
def linear_combination(
    terms: Float[Array, "count *image"], weights: Float[Array, " count"]
) -> Float[Array, "*image"]:
    """One thread an element, blocks of 256; the weights lie in memory, read by all threads alike."""
    fits = weights.ndim == 1 and rows(terms) == len(weights) > 0
    require(fits, "C1", f"terms {terms.shape}, weights {weights.shape}")
    out = device.empty(terms.shape[1:], terms.dtype)
    linear_combination_into(out, device.array(terms), device.array(weights, np.float32))
    return out


@kernel
def linear_combination_into(
    out: Float[Array, "*image"], terms: Float[Array, "count *image"], weights: Float[Array, " count"]
) -> None:
    """Write the sum into ``out``, which may be one of the terms; the weights are float32."""
    if out.size:
        launched = (out.reshape(-1), terms.reshape(len(terms), -1), weights)
        device.launch(step_kernel(named(terms)), blocks_for(out.size, THREADS), THREADS, *launched)


@op
def guided_combination(
    terms: Float[Array, "count *image"], weights: Float[Array, " count"], cond: Float[Array, "*image"],
    uncond: Float[Array, "*image"], guidance_scale: float, weight: float,
) -> Float[Array, "*image"]:
    """As linear_combination; both outputs are read once more than the terms, and guided in a register."""
    fits = weights.ndim == 1 and rows(terms) == len(weights) > 0
    require(fits, "C1", f"terms {terms.shape}, weights {weights.shape}")
    fits = cond.shape == uncond.shape == terms.shape[1:]
    require(fits, "C2", f"outputs {cond.shape} and {uncond.shape}, but terms {terms.shape}")
    out = device.empty(terms.shape[1:], terms.dtype)
    outputs = device.array(cond), device.array(uncond)
    scales = float(guidance_scale), float(weight)
    guided_combination_into(out, device.array(terms), device.array(weights, np.float32), *outputs, *scales)
    return out


@kernel
def guided_combination_into(
    out: Float[Array, "*image"], terms: Float[Array, "count *image"], weights: Float[Array, " count"],
    cond: Float[Array, "*image"], uncond: Float[Array, "*image"], guidance_scale: float, weight: float,
) -> None:
    """Write the sum into ``out``, which may be one of the terms; the weights are float32."""
    if out.size:
        made = step_kernel(named(terms), (named(cond), named(uncond)))
        arrays = (out.reshape(-1), terms.reshape(len(terms), -1), weights, cond.reshape(-1), uncond.reshape(-1))
        device.launch(made, blocks_for(out.size, THREADS), THREADS, *arrays, float(guidance_scale), float(weight))


@op
def scale_by_exp(x: Float[Array, "*image"], exponent: Float[Array, "*image"], scale: float) -> Float[Array, "*image"]:
    """One thread an element, blocks of 256."""
    require(x.shape == exponent.shape, "C1", f"x {x.shape} and exponent {exponent.shape} do not have one shape")
    return applied(lambda out, *inputs: scale_by_exp_into(out, *inputs, scale), x, exponent)


@kernel
def scale_by_exp_into(
    out: Float[Array, "*image"], x: Float[Array, "*image"], exponent: Float[Array, "*image"], scale: float
) -> None:
    """Write the scaled noise into ``out``, which may be ``x``."""
    launch_flat(scale_by_exp_kernel(named(x), named(exponent)), out, x, exponent, float(scale))


def _terms() -> dict[str, Any]:
    draw = np.random.default_rng(0)
    return {"terms": draw.standard_normal((3, 16, 64, 64), np.float32), "weights": np.float32([0.5, -1.5, 2.0])}


def _guided() -> dict[str, Any]:
    cond, uncond = np.random.default_rng(1).standard_normal((2, 16, 64, 64), np.float32)
    return _terms() | {"cond": cond, "uncond": uncond, "guidance_scale": 4.0, "weight": 0.5}


def _noise() -> dict[str, Any]:
    x, exponent = np.random.default_rng(2).standard_normal((2, 16, 64, 64), np.float32)
    return {"x": x, "exponent": exponent, "scale": 0.5}


VARIANTS = tuple(
    Variant("numba", f.__name__, f, lambda *_, **__: True, workload)
    for f, workload in ((linear_combination, _terms), (guided_combination, _guided), (scale_by_exp, _noise))
)
