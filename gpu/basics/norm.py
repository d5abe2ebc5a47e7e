"""Normalisation over the last axis: one block a row."""

import math
from functools import cache

import numpy as np

from gpu import device
from gpu.compile import Kernel, numba_kernel
from gpu.grid import threads_for
from gpu.number import named, read, storage, write
from gpu.registry import Variant
from refimpl.contract import Array, Float, kernel, op, require

__all__ = ["VARIANTS", "layer_norm", "layer_norm_into", "rms_norm", "rms_norm_into"]


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
    made = _layer_norm(named(x), named(gain), named(bias))
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
    made = _rms_norm(named(x), named(gain))
    if out.size:
        rows, D = out.size // x.shape[-1], x.shape[-1]
        device.launch(made, rows, threads_for(D), out.reshape(rows, D), x.reshape(rows, D), gain, eps, gain_offset)


@cache
def _layer_norm(dtype: str, gain_dtype: str, bias_dtype: str) -> Kernel:
    from numba import float32, uint64

    from gpu.warp import block, block_sum, thread, threads

    held, held_gain, held_bias = storage(dtype), storage(gain_dtype), storage(bias_dtype)
    wide, wide_gain, wide_bias, narrow = read(dtype), read(gain_dtype), read(bias_dtype), write(dtype)

    @numba_kernel(
        f"{held}[:, ::1]", f"{held}[:, ::1]", f"{held_gain}[::1]", f"{held_bias}[::1]", "float32",
        name=f"layer_norm[{dtype}]",
    )
    def layer_norm(out, x, gain, bias, eps):
        row, D, width = block(), uint64(x.shape[1]), float32(x.shape[1])
        total, d = float32(0), thread()
        while d < D:
            total += wide(x[row, d])
            d += threads()
        mean = block_sum(total) / width
        total, d = float32(0), thread()
        while d < D:
            total += wide(x[row, d]) - mean
            d += threads()
        rest = block_sum(total) / width
        total, d = float32(0), thread()
        while d < D:
            centred = wide(x[row, d]) - mean - rest
            total += centred * centred
            d += threads()
        root = math.sqrt(block_sum(total) / width + eps)
        d = thread()
        while d < D:
            y = (wide(x[row, d]) - mean - rest) / root * wide_gain(gain[d])
            if d < uint64(bias.size):
                y += wide_bias(bias[d])
            out[row, d] = narrow(y)
            d += threads()

    return layer_norm


@cache
def _rms_norm(dtype: str, gain_dtype: str) -> Kernel:
    from numba import float32, uint64

    from gpu.warp import block, block_sum, thread, threads

    held, held_gain = storage(dtype), storage(gain_dtype)
    wide, wide_gain, narrow = read(dtype), read(gain_dtype), write(dtype)

    @numba_kernel(
        f"{held}[:, ::1]", f"{held}[:, ::1]", f"{held_gain}[::1]", "float32", "float32", name=f"rms_norm[{dtype}]"
    )
    def rms_norm(out, x, gain, eps, gain_offset):
        row, D = block(), uint64(x.shape[1])
        total, d = float32(0), thread()
        while d < D:
            total += wide(x[row, d]) * wide(x[row, d])
            d += threads()
        root = math.sqrt(block_sum(total) / float32(x.shape[1]) + eps)
        d = thread()
        while d < D:
            out[row, d] = narrow(wide(x[row, d]) / root * (gain_offset + wide_gain(gain[d])))
            d += threads()

    return rms_norm


def _check(x: Array, gain: Array, eps: float) -> None:
    fits = gain.ndim == 1 and gain.shape == x.shape[-1:]
    require(fits, "C1", f"gain has shape {gain.shape}, x has shape {x.shape}")
    require(eps >= 0, "C2", f"eps is {eps}, not 0 or more")


def _workload() -> dict[str, Array]:
    draw = np.random.default_rng(0).standard_normal
    return {"x": draw((8, 4096)).astype(np.float32), "gain": draw(4096).astype(np.float32)}


VARIANTS = (
    Variant("numba", "layer_norm", layer_norm, lambda *_, **__: True, _workload),
    Variant("numba", "rms_norm", rms_norm, lambda *_, **__: True, _workload),
)
