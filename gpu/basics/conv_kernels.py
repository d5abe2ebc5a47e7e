"""The kernels behind ``gpu.basics.conv``: one thread an output, its sum in one order, neighbours on the last axis.

Each is made once for the dtypes of x, w and b. Indices are unsigned: what lies before an image lies beyond it, too.
"""

from functools import cache

from gpu.basics.activation_kernels import formulas
from gpu.compile import Kernel, numba_kernel
from gpu.number import read, storage, write
from refimpl.contract import host

__all__ = ["THREADS", "over_image", "over_tokens", "painted", "repeated"]

THREADS = 256


@host
@cache
def over_tokens(dtype: str, w_dtype: str, b_dtype: str, activation: str | None) -> Kernel:
    """Return the kernel of the causal convolution; the threads after those of the outputs write the new state."""
    from numba import cuda, float32, uint64

    from gpu.warp import block, thread, threads

    wide, wide_w, wide_b, narrow = read(dtype), read(w_dtype), read(b_dtype), write(dtype)
    silu, is_silu = formulas()["silu"], activation == "silu"
    tokens = f"{storage(dtype)}[:, ::1]"

    @numba_kernel(
        tokens, tokens, tokens, f"{storage(w_dtype)}[:, :, ::1]", f"{storage(b_dtype)}[::1]", tokens,
        name=f"conv1d[{dtype}]{' silu' if is_silu else ''}",
    )
    def over_tokens(y, new_state, x, w, b, state):
        T, C, taps, per_group = uint64(x.shape[0]), uint64(x.shape[1]), uint64(w.shape[2]), uint64(w.shape[1])
        outputs, past, i = uint64(w.shape[0]), taps - uint64(1), block() * threads() + thread()
        if i < T * outputs:
            t, o = i // outputs, i % outputs
            first, total = o // (outputs * per_group // C) * per_group, float32(0)
            for tap in range(taps):
                at = t + tap  # a row of the state and x, one after the other
                for c in range(per_group):
                    value = float32(0)
                    if at >= past:
                        value = wide(x[at - past, first + c])
                    elif at < uint64(state.shape[0]):
                        value = wide(state[at, first + c])
                    total = cuda.fma(value, wide_w(w[o, c, tap]), total)
            if o < uint64(b.size):
                total += wide_b(b[o])
            y[t, o] = narrow(silu(total) if is_silu else total)
        elif i < T * outputs + past * C:
            row, c = (i - T * outputs) // C, (i - T * outputs) % C
            at, kept = T + row, narrow(float32(0))
            if at >= past:
                kept = x[at - past, c]
            elif at < uint64(state.shape[0]):
                kept = state[at, c]
            new_state[row, c] = kept

    return over_tokens


@host
@cache
def over_image(dtype: str, w_dtype: str, b_dtype: str) -> Kernel:
    """Return the kernel of the convolution of an image; its padding is read as zeros."""
    from numba import cuda, float32, uint64

    from gpu.warp import block, thread, threads

    wide, wide_w, wide_b, narrow = read(dtype), read(w_dtype), read(b_dtype), write(dtype)

    @numba_kernel(*_images(dtype, w_dtype, b_dtype), *["uint64"] * 6, name=f"conv2d[{dtype}]")
    def over_image(y, x, w, b, stride_y, stride_x, top, left, step_y, step_x):
        outputs, rows, columns = uint64(y.shape[0]), uint64(y.shape[1]), uint64(y.shape[2])
        C, Y, X, per_group = uint64(x.shape[0]), uint64(x.shape[1]), uint64(x.shape[2]), uint64(w.shape[1])
        at = block() * threads() + thread()
        if at >= outputs * rows * columns:
            return
        o, row, column = at // (rows * columns), at // columns % rows, at % columns
        first, total = o // (outputs * per_group // C) * per_group, float32(0)
        for c in range(per_group):
            for i in range(uint64(w.shape[2])):
                at_y = row * stride_y + i * step_y - top
                for j in range(uint64(w.shape[3])):
                    at_x, value = column * stride_x + j * step_x - left, float32(0)
                    if at_y < Y and at_x < X:
                        value = wide(x[first + c, at_y, at_x])
                    total = cuda.fma(value, wide_w(w[o, c, i, j]), total)
        if o < uint64(b.size):
            total += wide_b(b[o])
        y[o, row, column] = narrow(total)

    return over_image


@host
@cache
def painted(dtype: str, w_dtype: str, b_dtype: str) -> Kernel:
    """Return the kernel of the transposed convolution: an output gathers what would be painted on it."""
    from numba import cuda, float32, uint64

    from gpu.warp import block, thread, threads

    wide, wide_w, wide_b, narrow = read(dtype), read(w_dtype), read(b_dtype), write(dtype)

    @numba_kernel(*_images(dtype, w_dtype, b_dtype), *["uint64"] * 6, name=f"conv_transpose2d[{dtype}]")
    def painted(y, x, w, b, stride_y, stride_x, top, left, step_y, step_x):
        outputs, rows, columns = uint64(y.shape[0]), uint64(y.shape[1]), uint64(y.shape[2])
        C, Y, X, per_group = uint64(x.shape[0]), uint64(x.shape[1]), uint64(x.shape[2]), uint64(w.shape[1])
        at = block() * threads() + thread()
        if at >= outputs * rows * columns:
            return
        o, row, column = at // (rows * columns), at // columns % rows, at % columns
        channels, total = C * per_group // outputs, float32(0)
        first = o // per_group * channels
        for i in range(uint64(w.shape[2])):
            at_y = row + top - i * step_y
            if at_y % stride_y == uint64(0) and at_y // stride_y < Y:
                for j in range(uint64(w.shape[3])):
                    at_x = column + left - j * step_x
                    if at_x % stride_x == uint64(0) and at_x // stride_x < X:
                        for c in range(first, first + channels):
                            value = wide(x[c, at_y // stride_y, at_x // stride_x])
                            total = cuda.fma(value, wide_w(w[c, o % per_group, i, j]), total)
        if o < uint64(b.size):
            total += wide_b(b[o])
        y[o, row, column] = narrow(total)

    return painted


@host
@cache
def repeated(dtype: str) -> Kernel:
    """Return the kernel that writes every value of an image several times."""
    from numba import uint64

    from gpu.warp import block, thread, threads

    image = f"{storage(dtype)}[:, :, ::1]"

    @numba_kernel(image, image, "uint64", "uint64", name=f"upsample_nearest[{dtype}]")
    def repeated(y, x, scale_y, scale_x):
        rows, columns, at = uint64(y.shape[1]), uint64(y.shape[2]), block() * threads() + thread()
        if at < uint64(y.size):
            row, column = at // columns % rows, at % columns
            c = at // (rows * columns)
            y[c, row, column] = x[c, row // scale_y, column // scale_x]

    return repeated


def _images(dtype: str, w_dtype: str, b_dtype: str) -> tuple[str, ...]:
    image = f"{storage(dtype)}[:, :, ::1]"
    return image, image, f"{storage(w_dtype)}[:, :, :, ::1]", f"{storage(b_dtype)}[::1]"
