"""The kernels that give choices their rows and mix what the experts made of them: one thread an element."""

from functools import cache

from gpu.basics.activation_kernels import formulas
from gpu.compile import Kernel, numba_kernel
from gpu.number import read, storage, write
from refimpl.contract import host

__all__ = ["mix", "share", "spread"]


@host
@cache
def spread(rows_dtype: str, x_dtype: str, weights_dtype: str, is_weighed: bool) -> Kernel:
    """Return the kernel that copies each token to the rows of its choices, ``places``, or to the choices themselves."""
    from numba import uint64

    from gpu.warp import block, thread, threads

    wide, wide_weight, narrow = read(x_dtype), read(weights_dtype), write(rows_dtype)

    @numba_kernel(
        f"{storage(rows_dtype)}[:, ::1]", f"{storage(x_dtype)}[:, ::1]", f"{storage(weights_dtype)}[::1]",
        "int32[::1]", name=f"spread[{x_dtype}{', weighed' if is_weighed else ''}]",
    )
    def spread(rows, x, weights, places):
        i, D = block() * threads() + thread(), uint64(rows.shape[1])
        if i >= uint64(rows.size):
            return
        c = i // D
        number = wide(x[c // uint64(rows.shape[0] // x.shape[0]), i % D])
        row = uint64(places[c]) if places.size else c
        rows[row, i % D] = narrow(number * wide_weight(weights[c]) if is_weighed else number)

    return spread


@host
@cache
def mix(y_dtype: str, weights_dtype: str, is_weighed: bool) -> Kernel:
    """Return the kernel that sums the rows of a token's choices in their order."""
    from numba import cuda, float32, uint64

    from gpu.warp import block, thread, threads

    wide_weight, narrow = read(weights_dtype), write(y_dtype)

    @numba_kernel(
        f"{storage(y_dtype)}[:, ::1]", "float32[:, ::1]", f"{storage(weights_dtype)}[:, ::1]", "int32[::1]",
        name=f"mix[{y_dtype}{'' if is_weighed else ', as they are'}]",
    )
    def mix(y, rows, weights, places):
        i, A, D = block() * threads() + thread(), uint64(weights.shape[1]), uint64(y.shape[1])
        if i >= uint64(y.size):
            return
        t, total, a = i // D, float32(0), uint64(0)
        while a < A:
            c = t * A + a
            number = rows[uint64(places[c]) if places.size else c, i % D]
            weight = wide_weight(weights[t, a]) if is_weighed else float32(1)
            total = cuda.fma(number, weight, total)
            a += uint64(1)
        y[t, i % D] = narrow(total)

    return mix


@host
@cache
def share() -> Kernel:
    """Return the kernel that multiplies each row by the sigmoid of its own number."""
    from numba import uint64

    from gpu.warp import block, thread, threads

    sigmoid = formulas()["sigmoid"]

    @numba_kernel("float32[:, ::1]", "float32[:, ::1]")
    def share(rows, shares):
        i, F = block() * threads() + thread(), uint64(rows.shape[1])
        if i < uint64(rows.size):
            rows[i // F, i % F] *= sigmoid(shares[i // F, uint64(0)])

    return share
