"""Adaptive layer norm, one block a token, and the gated residual, one thread an element."""

from typing import Any

import numpy as np

from gpu import device
from gpu.grid import blocks_for, threads_for
from gpu.media.denoiser_kernels import THREADS, adaln_kernel, gated_residual_kernel
from gpu.number import named
from gpu.registry import Variant
from refimpl.contract import Array, Float, kernel, op, require

__all__ = ["VARIANTS", "adaln", "adaln_into", "gated_residual", "gated_residual_into"]


@op
def adaln(
    x: Float[Array, "T D"], shift: Float[Array, "*tokens D"], scale: Float[Array, "*tokens D"], eps: float = 1e-6
) -> Float[Array, "T D"]:
    """One block a token: the three sums of layer_norm through shared memory, then one write."""
    require(x.ndim == 2, "C1", f"x is [T D], got the shape {x.shape}")
    fits = shift.shape == scale.shape and shift.shape in (x.shape, x.shape[1:])
    require(fits, "C2", f"shift {shift.shape} and scale {scale.shape} are not both {x.shape[1:]} or {x.shape}")
    require(eps >= 0, "C3", f"eps is {eps}, not 0 or more")
    out = device.empty(x.shape, x.dtype)
    adaln_into(out, *(device.array(each) for each in (x, shift, scale)), eps)
    return out


@kernel
def adaln_into(
    out: Float[Array, "T D"], x: Float[Array, "T D"], shift: Float[Array, "*tokens D"],
    scale: Float[Array, "*tokens D"], eps: float = 1e-6,
) -> None:
    """Write the modulated layer norm of ``x`` into ``out``, which may be ``x``."""
    made = adaln_kernel(named(x), named(shift), named(scale))
    if out.size:
        T, D = x.shape
        device.launch(made, T, threads_for(D), out, x, shift.reshape(-1, D), scale.reshape(-1, D), eps)


@op
def gated_residual(
    x: Float[Array, "T D"], y: Float[Array, "T D"], gate: Float[Array, "*tokens D"]
) -> Float[Array, "T D"]:
    """One thread an element, blocks of 256."""
    require(x.ndim == 2 and x.shape == y.shape, "C1", f"x {x.shape} and y {y.shape} are not [T D] of one shape")
    require(gate.shape in (x.shape, x.shape[1:]), "C2", f"the gate {gate.shape} is not {x.shape[1:]} or {x.shape}")
    out = device.empty(x.shape, x.dtype)
    gated_residual_into(out, *(device.array(each) for each in (x, y, gate)))
    return out


@kernel
def gated_residual_into(
    out: Float[Array, "T D"], x: Float[Array, "T D"], y: Float[Array, "T D"], gate: Float[Array, "*tokens D"]
) -> None:
    """Write x + gate y into ``out``, which may be ``x`` or ``y``."""
    made = gated_residual_kernel(named(x), named(y), named(gate))
    if out.size:
        device.launch(made, blocks_for(out.size, THREADS), THREADS, out, x, y, gate.reshape(-1, x.shape[1]))


def _drawn(*shape: int) -> Array:
    return np.random.default_rng(0).standard_normal(shape, np.float32)


def _normed() -> dict[str, Any]:
    return {"x": _drawn(64, 1152), "shift": _drawn(1152), "scale": _drawn(1152)}  # DiT-XL


def _gated() -> dict[str, Any]:
    return {"x": _drawn(64, 1152), "y": _drawn(64, 1152), "gate": _drawn(1152)}


VARIANTS = tuple(
    Variant("numba", f.__name__, f, lambda *_, **__: True, workload)
    for f, workload in ((adaln, _normed), (gated_residual, _gated))
)
