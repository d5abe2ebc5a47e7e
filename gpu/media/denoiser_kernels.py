"""The kernels behind ``gpu.media.timestep``, ``adaln`` and ``patch``, made once for the dtypes."""

import math
from functools import cache

from gpu.compile import Kernel, numba_kernel
from gpu.number import read, storage, write
from refimpl.contract import host

__all__ = [
    "THREADS", "adaln_kernel", "gated_residual_kernel", "patchify_kernel", "timestep_kernel", "unpatchify_kernel",
]  # fmt: skip

THREADS = 256


@host
@cache
def timestep_kernel(dtype: str, cosines_first: bool) -> Kernel:
    """Return the kernel of the timestep embedding: a thread a pair.

    Angles are float64, counted in half turns, so that what whole turns leave fits into float32.
    """
    from numba import cuda, float32, float64, uint64

    from gpu.warp import block, thread, threads

    wide, narrow, row, table = read(dtype), write(dtype), storage(dtype), f"{storage(dtype)}[:, ::1]"

    @numba_kernel(table, f"{row}[::1]", "float64[::1]", name=f"timestep_embedding[{dtype}]")
    def timestep_embedding(out, timesteps, frequencies):
        half, at = uint64(frequencies.size), block() * threads() + thread()
        if at >= half * uint64(timesteps.size):
            return
        t, i = at // half, at % half
        turns = float64(wide(timesteps[t])) * frequencies[i] * (1 / math.pi)
        rest = float32(turns - 2 * cuda.libdevice.rint(turns * 0.5))
        sine, cosine = cuda.libdevice.sinpif(rest), cuda.libdevice.cospif(rest)
        out[t, i] = narrow(cosine if cosines_first else sine)
        out[t, half + i] = narrow(sine if cosines_first else cosine)
        if i == uint64(0) and uint64(out.shape[1]) > half + half:
            out[t, half + half] = narrow(float32(0))

    return timestep_embedding


@host
@cache
def adaln_kernel(dtype: str, shift_dtype: str, scale_dtype: str) -> Kernel:
    """Return the kernel of adaLN: a block a token; shift and scale have one row, or one a token."""
    from numba import float32, uint64

    from gpu.warp import block, block_sum, thread, threads

    held, held_shift, held_scale = storage(dtype), storage(shift_dtype), storage(scale_dtype)
    wide, wide_shift, wide_scale, narrow = read(dtype), read(shift_dtype), read(scale_dtype), write(dtype)

    @numba_kernel(
        *[f"{each}[:, ::1]" for each in (held, held, held_shift, held_scale)], "float32", name=f"adaln[{dtype}]"
    )
    def adaln(out, x, shift, scale, eps):
        row, D, width = block(), uint64(x.shape[1]), float32(x.shape[1])
        own = row if uint64(shift.shape[0]) > uint64(1) else uint64(0)
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
            y = (wide(x[row, d]) - mean - rest) / root * (float32(1) + wide_scale(scale[own, d]))
            out[row, d] = narrow(y + wide_shift(shift[own, d]))
            d += threads()

    return adaln


@host
@cache
def gated_residual_kernel(dtype: str, y_dtype: str, gate_dtype: str) -> Kernel:
    """Return the kernel of the gated residual: a thread an element; the gate has one row, or one a token."""
    from numba import uint64

    from gpu.warp import block, thread, threads

    wide, wide_y, wide_gate, narrow = read(dtype), read(y_dtype), read(gate_dtype), write(dtype)
    held, held_y, held_gate = (f"{storage(each)}[:, ::1]" for each in (dtype, y_dtype, gate_dtype))

    @numba_kernel(held, held, held_y, held_gate, name=f"gated_residual[{dtype}]")
    def gated_residual(out, x, y, gate):
        D, at = uint64(x.shape[1]), block() * threads() + thread()
        if at < uint64(x.size):
            t, d = at // D, at % D
            own = t if uint64(gate.shape[0]) > uint64(1) else uint64(0)
            out[t, d] = narrow(wide(x[t, d]) + wide_gate(gate[own, d]) * wide_y(y[t, d]))

    return gated_residual


@host
@cache
def patchify_kernel(dtype: str, channels_last: bool) -> Kernel:
    """Return the kernel that cuts [C frames Y X] into tokens: a thread an element of a token."""
    from numba import uint64

    from gpu.warp import block, thread, threads

    held = storage(dtype)

    @numba_kernel(
        f"{held}[:, ::1]", f"{held}[:, :, :, ::1]", "uint64", "uint64", "uint64", name=f"patchify[{dtype}]"
    )
    def patchify(out, x, deep, tall, broad):
        C, Y, X, D = uint64(x.shape[0]), uint64(x.shape[2]), uint64(x.shape[3]), uint64(out.shape[1])
        at, each = block() * threads() + thread(), deep * tall * broad
        if at >= uint64(out.size):
            return
        t, d = at // D, at % D
        c, inner = d // each, d % each
        if channels_last:
            c, inner = d % C, d // C
        frame, row, column = t // (X // broad) // (Y // tall), t // (X // broad) % (Y // tall), t % (X // broad)
        frame, row = frame * deep + inner // broad // tall, row * tall + inner // broad % tall
        out[t, d] = x[c, frame, row, column * broad + inner % broad]

    return patchify


@host
@cache
def unpatchify_kernel(dtype: str, channels_last: bool) -> Kernel:
    """Return the kernel that puts tokens together to [C frames Y X]: a thread an element of the picture."""
    from numba import uint64

    from gpu.warp import block, thread, threads

    held = storage(dtype)

    @numba_kernel(
        f"{held}[:, :, :, ::1]", f"{held}[:, ::1]", "uint64", "uint64", "uint64", name=f"unpatchify[{dtype}]"
    )
    def unpatchify(out, x, deep, tall, broad):
        C, F, Y, X = uint64(out.shape[0]), uint64(out.shape[1]), uint64(out.shape[2]), uint64(out.shape[3])
        at, each = block() * threads() + thread(), deep * tall * broad
        if at >= uint64(out.size):
            return
        c, frame, row, column = at // X // Y // F, at // X // Y % F, at // X % Y, at % X
        t = (frame // deep * (Y // tall) + row // tall) * (X // broad) + column // broad
        inner = (frame % deep * tall + row % tall) * broad + column % broad
        out[c, frame, row, column] = x[t, inner * C + c if channels_last else c * each + inner]

    return unpatchify
