"""What the CUDA executor does to single numbers between the operations: sums with a factor, caps, growing rows."""

import math
from functools import cache

from gpu import device
from gpu.basics.flat import THREADS, launch_flat
from gpu.compile import Kernel, numba_kernel
from gpu.grid import blocks_for
from refimpl.contract import Array, Float, kernel

__all__ = ["add_scaled_into", "cap_into", "grow_into"]


@kernel
def add_scaled_into(out: Float[Array, "..."], x: Float[Array, "..."], y: Float[Array, "..."], factor: float) -> None:
    """Write x + factor y into ``out``, which may be ``x`` or ``y``; all float32."""
    launch_flat(_add_scaled(), out, x, y, float(factor))


@kernel
def cap_into(out: Float[Array, "..."], x: Float[Array, "..."], scale: float, cap: float | None = None) -> None:
    """Write scale x, kept in bounds as cap tanh(scale x / cap), into ``out``, which may be ``x``; both float32."""
    launch_flat(_cap(), out, x, float(scale), float(cap or 0))


@kernel
def grow_into(x: Float[Array, "T N H"], factors: Float[Array, " T"]) -> None:
    """Multiply the numbers of each token by its factor; both float32."""
    rows = x.reshape(len(x), -1)
    device.launch(_grow(), blocks_for(x.size, THREADS), THREADS, rows, factors)


@cache
def _add_scaled() -> Kernel:
    from numba import uint64

    from gpu.warp import block, thread, threads

    @numba_kernel(*["float32[::1]"] * 3, "float32")
    def add_scaled(out, x, y, factor):
        i = block() * threads() + thread()
        if i < uint64(out.size):
            out[i] = x[i] + factor * y[i]

    return add_scaled


@cache
def _cap() -> Kernel:
    from numba import float32, uint64

    from gpu.warp import block, thread, threads

    @numba_kernel(*["float32[::1]"] * 2, *["float32"] * 2)
    def cap(out, x, scale, cap):
        i = block() * threads() + thread()
        if i < uint64(out.size):
            scaled = scale * x[i]
            out[i] = cap * math.tanh(scaled / cap) if cap > float32(0) else scaled

    return cap


@cache
def _grow() -> Kernel:
    from numba import uint64

    from gpu.warp import block, thread, threads

    @numba_kernel("float32[:, ::1]", "float32[::1]")
    def grow(x, factors):
        i, width = block() * threads() + thread(), uint64(x.shape[1])
        if i < uint64(x.size):
            x[i // width, i % width] *= factors[i // width]

    return grow
