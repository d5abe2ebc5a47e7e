"""Activations: softmax and its kin along an axis, and the elementwise functions, one thread an element."""

import math
from typing import Any

import numpy as np

from gpu import device
from gpu.basics.activation_kernels import along_axis, elementwise
from gpu.basics.flat import THREADS, applied, launch_flat
from gpu.grid import blocks_for, threads_for
from gpu.number import named
from gpu.registry import Variant
from refimpl.contract import Array, Float, kernel, op, require, whole

__all__ = [
    "VARIANTS", "gelu_erf", "gelu_erf_into", "gelu_quick", "gelu_quick_into", "gelu_tanh", "gelu_tanh_into",
    "log_softmax", "log_softmax_into", "logsumexp", "logsumexp_into", "relu", "relu_into", "sigmoid", "sigmoid_into",
    "silu", "silu_into", "softmax", "softmax_into", "softplus", "softplus_into",
]  # fmt: skip


@op
def softmax(x: Float[Array, "..."], axis: int = -1) -> Float[Array, "..."]:
    """One block a slice along the last axis, its maximum and its sum through shared memory; else one thread a slice."""
    return _along("softmax", x, axis)


@kernel
def softmax_into(out: Float[Array, "..."], x: Float[Array, "..."], axis: int = -1) -> None:
    """Write the softmax of ``x`` into ``out``, which may be ``x``."""
    _launch_along("softmax", out, x, axis)


@op
def logsumexp(x: Float[Array, "..."], axis: int = -1) -> Float[Array, "..."]:
    """Blocks and threads as softmax."""
    return _along("logsumexp", x, axis)


@kernel
def logsumexp_into(out: Float[Array, "..."], x: Float[Array, "..."], axis: int = -1) -> None:
    """Write the logarithms of the summed exponentials of ``x`` into ``out``, which lacks the axis."""
    _launch_along("logsumexp", out, x, axis)


@op
def log_softmax(x: Float[Array, "..."], axis: int = -1) -> Float[Array, "..."]:
    """Blocks and threads as softmax."""
    return _along("log_softmax", x, axis)


@kernel
def log_softmax_into(out: Float[Array, "..."], x: Float[Array, "..."], axis: int = -1) -> None:
    """Write the logarithm of the softmax of ``x`` into ``out``, which may be ``x``."""
    _launch_along("log_softmax", out, x, axis)


@op
def relu(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """One thread an element, blocks of 256."""
    return applied(relu_into, x)


@kernel
def relu_into(out: Float[Array, "..."], x: Float[Array, "..."]) -> None:
    """Write relu of ``x`` into ``out``, which may be ``x``."""
    launch_flat(elementwise("relu", named(x)), out, x)


@op
def sigmoid(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """One thread an element, blocks of 256."""
    return applied(sigmoid_into, x)


@kernel
def sigmoid_into(out: Float[Array, "..."], x: Float[Array, "..."]) -> None:
    """Write the sigmoid of ``x`` into ``out``, which may be ``x``."""
    launch_flat(elementwise("sigmoid", named(x)), out, x)


@op
def softplus(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """One thread an element, blocks of 256; log1p in float32 by libdevice."""
    return applied(softplus_into, x)


@kernel
def softplus_into(out: Float[Array, "..."], x: Float[Array, "..."]) -> None:
    """Write softplus of ``x`` into ``out``, which may be ``x``."""
    launch_flat(elementwise("softplus", named(x)), out, x)


@op
def silu(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """One thread an element, blocks of 256."""
    return applied(silu_into, x)


@kernel
def silu_into(out: Float[Array, "..."], x: Float[Array, "..."]) -> None:
    """Write silu of ``x`` into ``out``, which may be ``x``."""
    launch_flat(elementwise("silu", named(x)), out, x)


@op
def gelu_erf(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """One thread an element, blocks of 256; erfc in float32 by libdevice."""
    return applied(gelu_erf_into, x)


@kernel
def gelu_erf_into(out: Float[Array, "..."], x: Float[Array, "..."]) -> None:
    """Write the exact GELU of ``x`` into ``out``, which may be ``x``."""
    launch_flat(elementwise("gelu_erf", named(x)), out, x)


@op
def gelu_tanh(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """One thread an element, blocks of 256."""
    return applied(gelu_tanh_into, x)


@kernel
def gelu_tanh_into(out: Float[Array, "..."], x: Float[Array, "..."]) -> None:
    """Write the tanh GELU of ``x`` into ``out``, which may be ``x``."""
    launch_flat(elementwise("gelu_tanh", named(x)), out, x)


@op
def gelu_quick(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """One thread an element, blocks of 256."""
    return applied(gelu_quick_into, x)


@kernel
def gelu_quick_into(out: Float[Array, "..."], x: Float[Array, "..."]) -> None:
    """Write the sigmoid GELU of ``x`` into ``out``, which may be ``x``."""
    launch_flat(elementwise("gelu_quick", named(x)), out, x)


def _check_axis(x: Array, axis: int) -> None:
    there = -x.ndim <= whole("axis", axis) < x.ndim and x.shape[axis] > 0
    require(there, "C1", f"axis {axis} of shape {x.shape} is empty or is not there")


def _along(form: str, x: Array, axis: int, by_block: bool | None = None) -> Array:
    _check_axis(x, axis)
    at = axis % x.ndim
    shape = x.shape[:at] + x.shape[at + 1 :] if form == "logsumexp" else x.shape
    out = device.empty(math.prod(shape), x.dtype).reshape(shape)
    _launch_along(form, out, device.array(x), axis, by_block)
    return out


def _launch_along(form: str, out: Array, x: Array, axis: int, by_block: bool | None = None) -> None:
    at = axis % x.ndim
    outer, n, inner = math.prod(x.shape[:at]), x.shape[at], math.prod(x.shape[at + 1 :])
    by_block = inner == 1 if by_block is None else by_block
    made = along_axis(form, named(x), by_block)
    if outer * inner:
        threads = threads_for(n) if by_block else THREADS
        blocks = outer if by_block else blocks_for(outer * inner, THREADS)
        device.launch(made, blocks, threads, out.reshape(outer, -1, inner), x.reshape(outer, n, inner))


def _scores() -> dict[str, Any]:
    return {"x": np.random.default_rng(0).standard_normal((4, 8192), np.float32)}


def _columns() -> dict[str, Any]:
    return {"x": np.random.default_rng(0).standard_normal((64, 512), np.float32), "axis": 0}


def _hidden() -> dict[str, Any]:
    return {"x": np.random.default_rng(0).standard_normal((4, 14336), np.float32)}


def _is_last(x: Array, axis: int = -1) -> bool:
    return axis % x.ndim == x.ndim - 1


def _rows_and_columns(form: str) -> tuple[Variant, ...]:
    return (
        Variant("rows", form, lambda x, axis=-1: _along(form, x, axis, True), _is_last, _scores),
        Variant("columns", form, lambda x, axis=-1: _along(form, x, axis, False), lambda *_, **__: True, _columns),
    )


_PLAIN = (relu, sigmoid, softplus, silu, gelu_erf, gelu_tanh, gelu_quick)
VARIANTS = (
    *_rows_and_columns("softmax"), *_rows_and_columns("logsumexp"), *_rows_and_columns("log_softmax"),
    *(Variant("numba", f.__name__, f, lambda *_, **__: True, _hidden) for f in _PLAIN),
)  # fmt: skip
