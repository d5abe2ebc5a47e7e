"""The kernels behind ``gpu.basics.norm``: one block a row, made once for the dtypes."""

import math
from functools import cache

from gpu.basics.activation_kernels import formulas
from gpu.compile import Kernel, numba_kernel
from gpu.number import read, storage, write
from refimpl.contract import host

__all__ = [
    "add_rms_norm_kernel", "gated_rms_norm_kernel", "l2_norm_kernel", "layer_norm_kernel", "rms_norm_kernel",
]  # fmt: skip


@host
@cache
def layer_norm_kernel(dtype: str, gain_dtype: str, bias_dtype: str, by_channel: bool = False) -> Kernel:
    """Return the kernel of layer norm, or of group norm, whose rows hold several values of each gain."""
    from numba import float32, uint64

    from gpu.warp import block, block_sum, thread, threads

    held, held_gain, held_bias = storage(dtype), storage(gain_dtype), storage(bias_dtype)
    wide, wide_gain, wide_bias, narrow = read(dtype), read(gain_dtype), read(bias_dtype), write(dtype)

    @numba_kernel(
        f"{held}[:, ::1]", f"{held}[:, ::1]", f"{held_gain}[::1]", f"{held_bias}[::1]", "float32",
        name=f"{'group' if by_channel else 'layer'}_norm[{dtype}]",
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
            channel = (row * D + d) // (uint64(x.size) // uint64(gain.size)) if by_channel else d
            y = (wide(x[row, d]) - mean - rest) / root * wide_gain(gain[channel])
            if channel < uint64(bias.size):
                y += wide_bias(bias[channel])
            out[row, d] = narrow(y)
            d += threads()

    return layer_norm


@host
@cache
def rms_norm_kernel(dtype: str, gain_dtype: str) -> Kernel:
    """Return the kernel of RMS norm: a block a row."""
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


@host
@cache
def add_rms_norm_kernel(dtype: str, residual_dtype: str, gain_dtype: str) -> Kernel:
    """Return the kernel of RMS norm of a sum; a thread reads again only what it wrote itself."""
    from numba import float32, uint64

    from gpu.warp import block, block_sum, thread, threads

    held, held_residual, held_gain = storage(dtype), storage(residual_dtype), storage(gain_dtype)
    wide, wide_residual, wide_gain, narrow = read(dtype), read(residual_dtype), read(gain_dtype), write(dtype)

    @numba_kernel(
        *[f"{each}[:, ::1]" for each in (held, held, held, held_residual)], f"{held_gain}[::1]", "float32", "float32",
        name=f"add_rms_norm[{dtype}]",
    )
    def add_rms_norm(out, total, x, residual, gain, eps, gain_offset):
        row, D = block(), uint64(x.shape[1])
        squares, d = float32(0), thread()
        while d < D:
            total[row, d] = narrow(wide(x[row, d]) + wide_residual(residual[row, d]))
            squares += wide(total[row, d]) * wide(total[row, d])
            d += threads()
        root = math.sqrt(block_sum(squares) / float32(x.shape[1]) + eps)
        d = thread()
        while d < D:
            out[row, d] = narrow(wide(total[row, d]) / root * (gain_offset + wide_gain(gain[d])))
            d += threads()

    return add_rms_norm


@host
@cache
def gated_rms_norm_kernel(dtype: str, gate_dtype: str, gain_dtype: str, activation: str, norm_first: bool) -> Kernel:
    """Return the kernel of RMS norm and a gate, in either order."""
    from numba import float32, uint64

    from gpu.warp import block, block_sum, thread, threads

    held, held_gate, held_gain = storage(dtype), storage(gate_dtype), storage(gain_dtype)
    wide, wide_gate, wide_gain, narrow = read(dtype), read(gate_dtype), read(gain_dtype), write(dtype)
    formula = formulas()[activation]

    @numba_kernel(
        *[f"{each}[:, ::1]" for each in (held, held, held_gate)], f"{held_gain}[::1]", "float32",
        name=f"gated_rms_norm[{dtype}] {activation} {'after' if norm_first else 'before'}",
    )
    def gated_rms_norm(out, x, gate, gain, eps):
        row, D = block(), uint64(x.shape[1])
        squares, d = float32(0), thread()
        while d < D:
            value = wide(x[row, d]) if norm_first else wide(x[row, d]) * formula(wide_gate(gate[row, d]))
            squares += value * value
            d += threads()
        root = math.sqrt(block_sum(squares) / float32(x.shape[1]) + eps)
        d = thread()
        while d < D:
            y = wide(x[row, d]) / root * wide_gain(gain[d])
            out[row, d] = narrow(y * formula(wide_gate(gate[row, d])))
            d += threads()

    return gated_rms_norm


@host
@cache
def l2_norm_kernel(dtype: str, eps_is_floor: bool) -> Kernel:
    """Return the kernel of the L2 norm; a NaN in the row makes it the length, whatever the floor."""
    from numba import float32, uint64

    from gpu.warp import block, block_sum, thread, threads

    wide, narrow, held = read(dtype), write(dtype), storage(dtype)

    @numba_kernel(f"{held}[:, ::1]", f"{held}[:, ::1]", "float32", name=f"l2_norm[{dtype}]")
    def l2_norm(out, x, eps):
        row, D = block(), uint64(x.shape[1])
        squares, d = float32(0), thread()
        while d < D:
            squares += wide(x[row, d]) * wide(x[row, d])
            d += threads()
        length = math.sqrt(block_sum(squares) + (float32(0) if eps_is_floor else eps))
        if eps_is_floor and length < eps:
            length = eps
        d = thread()
        while d < D:
            out[row, d] = narrow(wide(x[row, d]) / length)
            d += threads()

    return l2_norm
