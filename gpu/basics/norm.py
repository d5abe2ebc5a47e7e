"""Normalisation: one block a row, of a token or of a group of channels."""

from typing import Any

import numpy as np

from gpu import device
from gpu.basics.norm_kernels import (
    add_rms_norm_kernel,
    gated_rms_norm_kernel,
    l2_norm_kernel,
    layer_norm_kernel,
    rms_norm_kernel,
)
from gpu.grid import threads_for
from gpu.number import named
from gpu.registry import Variant
from refimpl.contract import Array, Float, kernel, op, require, whole

__all__ = [
    "VARIANTS", "add_rms_norm", "add_rms_norm_into", "gated_rms_norm", "gated_rms_norm_into", "group_norm",
    "group_norm_into", "l2_norm", "l2_norm_into", "layer_norm", "layer_norm_into", "rms_norm", "rms_norm_into",
]  # fmt: skip


@op
def layer_norm(
    x: Float[Array, "... D"], gain: Float[Array, " D"], bias: Float[Array, " D"] | None = None, eps: float = 1e-5
) -> Float[Array, "... D"]:
    """One block a row: three sums through shared memory (the mean, what its rounding leaves, the variance), one write.

    The row is read anew for each, from the cache.
    """
    _check(x, gain, eps)
    require(bias is None or bias.shape == gain.shape, "C1", f"bias does not have the shape {gain.shape} of gain")
    out = device.empty(x.shape, x.dtype)
    layer_norm_into(out, device.array(x), device.array(gain), None if bias is None else device.array(bias), eps)
    return out


@kernel
def layer_norm_into(
    out: Float[Array, "... D"], x: Float[Array, "... D"], gain: Float[Array, " D"],
    bias: Float[Array, " D"] | None = None, eps: float = 1e-5,
) -> None:
    """Write the layer norm of ``x`` into ``out``, which may be ``x``."""
    bias = gain[:0] if bias is None else bias
    made = layer_norm_kernel(named(x), named(gain), named(bias))
    if out.size:
        rows, D = out.size // x.shape[-1], x.shape[-1]
        device.launch(made, rows, threads_for(D), out.reshape(rows, D), x.reshape(rows, D), gain, bias, eps)


@op
def rms_norm(
    x: Float[Array, "... D"], gain: Float[Array, " D"], eps: float = 1e-6, *, gain_offset: float = 0.0
) -> Float[Array, "... D"]:
    """One block a row: the sum of squares through shared memory, then one write; a block of one warp shares nothing."""
    _check(x, gain, eps)
    out = device.empty(x.shape, x.dtype)
    rms_norm_into(out, device.array(x), device.array(gain), eps, gain_offset=gain_offset)
    return out


@kernel
def rms_norm_into(
    out: Float[Array, "... D"], x: Float[Array, "... D"], gain: Float[Array, " D"], eps: float = 1e-6, *,
    gain_offset: float = 0.0,
) -> None:
    """Write the RMS norm of ``x`` into ``out``, which may be ``x``."""
    made = rms_norm_kernel(named(x), named(gain))
    if out.size:
        rows, D = out.size // x.shape[-1], x.shape[-1]
        device.launch(made, rows, threads_for(D), out.reshape(rows, D), x.reshape(rows, D), gain, eps, gain_offset)


@op
def group_norm(
    x: Float[Array, "C ..."], gain: Float[Array, " C"], bias: Float[Array, " C"] | None = None, *, groups: int,
    eps: float = 1e-5,
) -> Float[Array, "C ..."]:
    """One block a group, whose channels are one row of memory: sums and passes as layer_norm."""
    _check(x, gain, eps, axis=0)
    require(bias is None or bias.shape == gain.shape, "C1", f"bias does not have the shape {gain.shape} of gain")
    require(whole("groups", groups) > 0 and len(gain) % groups == 0, "C3", f"{groups} groups of {len(gain)} channels")
    out = device.empty(x.shape, x.dtype)
    bias = None if bias is None else device.array(bias)
    group_norm_into(out, device.array(x), device.array(gain), bias, groups=groups, eps=eps)
    return out


@kernel
def group_norm_into(
    out: Float[Array, "C ..."], x: Float[Array, "C ..."], gain: Float[Array, " C"],
    bias: Float[Array, " C"] | None = None, *, groups: int, eps: float = 1e-5,
) -> None:
    """Write the group norm of ``x`` into ``out``, which may be ``x``."""
    bias = gain[:0] if bias is None else bias
    made = layer_norm_kernel(named(x), named(gain), named(bias), True)
    if out.size:
        width = out.size // groups
        rows = out.reshape(groups, width), x.reshape(groups, width)
        device.launch(made, groups, threads_for(width), *rows, gain, bias, eps)


@op
def add_rms_norm(
    x: Float[Array, "... D"], residual: Float[Array, "... D"], gain: Float[Array, " D"], eps: float = 1e-6, *,
    gain_offset: float = 0.0,
) -> tuple[Float[Array, "... D"], Float[Array, "... D"]]:
    """One block a row: a pass that writes the sum and adds up its squares, and one that reads what it wrote."""
    _check(x, gain, eps)
    require(x.shape == residual.shape, "C3", f"x has shape {x.shape}, residual {residual.shape}")
    out, total = device.empty(x.shape, x.dtype), device.empty(x.shape, x.dtype)
    arrays = (device.array(each) for each in (x, residual, gain))
    add_rms_norm_into(out, total, *arrays, eps, gain_offset=gain_offset)
    return out, total


@kernel
def add_rms_norm_into(
    out: Float[Array, "... D"], total: Float[Array, "... D"], x: Float[Array, "... D"],
    residual: Float[Array, "... D"], gain: Float[Array, " D"], eps: float = 1e-6, *, gain_offset: float = 0.0,
) -> None:
    """Write the sum into ``total``, which may be ``x`` or ``residual``, and its RMS norm into ``out``."""
    made = add_rms_norm_kernel(named(x), named(residual), named(gain))
    if out.size:
        rows = (each.reshape(-1, x.shape[-1]) for each in (out, total, x, residual))
        device.launch(made, out.size // x.shape[-1], threads_for(x.shape[-1]), *rows, gain, eps, gain_offset)


@op
def gated_rms_norm(
    x: Float[Array, "... D"], gate: Float[Array, "... D"], gain: Float[Array, " D"], eps: float = 1e-6, *,
    norm_before_gate: bool = True, activation: str = "silu",
) -> Float[Array, "... D"]:
    """One block a row, as rms_norm; the order of gate and norm is compiled into the kernel."""
    _check(x, gain, eps)
    require(x.shape == gate.shape, "C3", f"x has shape {x.shape}, gate {gate.shape}")
    require(activation in ("silu", "sigmoid"), "C4", f"activation {activation!r}, not one of silu, sigmoid")
    out, arrays = device.empty(x.shape, x.dtype), (device.array(each) for each in (x, gate, gain))
    gated_rms_norm_into(out, *arrays, eps, norm_before_gate=norm_before_gate, activation=activation)
    return out


@kernel
def gated_rms_norm_into(
    out: Float[Array, "... D"], x: Float[Array, "... D"], gate: Float[Array, "... D"], gain: Float[Array, " D"],
    eps: float = 1e-6, *, norm_before_gate: bool = True, activation: str = "silu",
) -> None:
    """Write the gated RMS norm of ``x`` into ``out``, which may be ``x`` or ``gate``."""
    made = gated_rms_norm_kernel(named(x), named(gate), named(gain), activation, norm_before_gate)
    if out.size:
        rows = (each.reshape(-1, x.shape[-1]) for each in (out, x, gate))
        device.launch(made, out.size // x.shape[-1], threads_for(x.shape[-1]), *rows, gain, eps)


@op
def l2_norm(x: Float[Array, "... D"], eps: float = 1e-6, *, eps_is_floor: bool = False) -> Float[Array, "... D"]:
    """One block a row: the sum of squares through shared memory, then one write."""
    require(x.ndim > 0, "C1", "x is a number, not an array with an axis")
    _check_eps(eps)
    out = device.empty(x.shape, x.dtype)
    l2_norm_into(out, device.array(x), eps, eps_is_floor=eps_is_floor)
    return out


@kernel
def l2_norm_into(
    out: Float[Array, "... D"], x: Float[Array, "... D"], eps: float = 1e-6, *, eps_is_floor: bool = False
) -> None:
    """Write ``x`` at length 1 into ``out``, which may be ``x``."""
    made = l2_norm_kernel(named(x), eps_is_floor)
    if out.size:
        rows = (each.reshape(-1, x.shape[-1]) for each in (out, x))
        device.launch(made, out.size // x.shape[-1], threads_for(x.shape[-1]), *rows, eps)


def _check(x: Array, gain: Array, eps: float, axis: int = -1) -> None:
    fits = gain.ndim == 1 and gain.shape == x.shape[axis:][:1]
    require(fits, "C1", f"gain has shape {gain.shape}, x has shape {x.shape}")
    _check_eps(eps)


def _check_eps(eps: float) -> None:
    require(eps >= 0, "C2", f"eps is {eps}, not 0 or more")


def _workload(*more: str) -> dict[str, Any]:
    draw = np.random.default_rng(0).standard_normal
    rows = {name: draw((8, 4096)).astype(np.float32) for name in ("x", *more)}
    return rows | {"gain": draw(4096).astype(np.float32)}


def _vectors() -> dict[str, Any]:
    return {"x": np.random.default_rng(0).standard_normal((256, 128), np.float32)}  # 16 heads of 16 tokens


def _image() -> dict[str, Any]:
    draw = np.random.default_rng(0).standard_normal
    return {"x": draw((64, 32, 32), np.float32), "gain": draw(64, np.float32), "groups": 32}


VARIANTS = tuple(
    Variant("numba", f.__name__, f, lambda *_, **__: True, workload)
    for f, workload in (
        (layer_norm, _workload),
        (group_norm, _image),
        (rms_norm, _workload),
        (add_rms_norm, lambda: _workload("residual")),
        (gated_rms_norm, lambda: _workload("gate")),
        (l2_norm, _vectors),
    )
)
