"""The kernels behind ``gpu.basics.training``, each made once for the dtypes."""

import math
from functools import cache

from gpu.compile import Kernel, numba_kernel
from gpu.number import read, storage, write
from refimpl.contract import host

__all__ = [
    "cross_entropy_backward_kernel", "cross_entropy_kernel", "product_kernel", "relu_backward_kernel",
    "sgd_step_kernel", "sum_kernel",
]  # fmt: skip


@host
@cache
def cross_entropy_kernel(dtype: str) -> Kernel:
    """Return the kernel of the loss: a block a row; a negative target costs 0."""
    from numba import cuda, float32, int32, uint64

    from gpu.warp import block, block_max, block_sum, thread, threads

    wide, narrow, held = read(dtype), write(dtype), storage(dtype)

    @numba_kernel(f"{held}[::1]", f"{held}[:, ::1]", "int32[::1]", name=f"cross_entropy[{dtype}]")
    def cross_entropy(out, logits, targets):
        row, V = block(), uint64(logits.shape[1])
        largest, v = float32(-math.inf), thread()
        while v < V:
            largest = cuda.libdevice.fmaxf(largest, wide(logits[row, v]))
            v += threads()
        largest = block_max(largest)
        total, v = float32(0), thread()
        while v < V:
            total += math.exp(wide(logits[row, v]) - largest)
            v += threads()
        total = block_sum(total)
        if thread() == uint64(0):
            loss = float32(0)
            if targets[row] >= int32(0):
                loss = math.log(total) - (wide(logits[row, uint64(targets[row])]) - largest)
            out[row] = narrow(loss)

    return cross_entropy


@host
@cache
def cross_entropy_backward_kernel(dtype: str) -> Kernel:
    """Return the kernel of the loss's gradient: a block a row, softmax less the one token that came."""
    from numba import cuda, float32, int32, uint64

    from gpu.warp import block, block_max, block_sum, thread, threads

    wide, narrow, held = read(dtype), write(dtype), storage(dtype)

    @numba_kernel(
        f"{held}[:, ::1]", f"{held}[:, ::1]", "int32[::1]", "float32", name=f"cross_entropy_backward[{dtype}]"
    )
    def cross_entropy_backward(out, logits, targets, scale):
        row, V = block(), uint64(logits.shape[1])
        largest, v = float32(-math.inf), thread()
        while v < V:
            largest = cuda.libdevice.fmaxf(largest, wide(logits[row, v]))
            v += threads()
        largest = block_max(largest)
        total, v = float32(0), thread()
        while v < V:
            total += math.exp(wide(logits[row, v]) - largest)
            v += threads()
        total, is_counted = block_sum(total), targets[row] >= int32(0)
        v = thread()
        while v < V:
            came = float32(1) if v == uint64(targets[row]) else float32(0)
            gradient = scale * (math.exp(wide(logits[row, v]) - largest) / total - came)
            out[row, v] = narrow(gradient if is_counted else float32(0))
            v += threads()

    return cross_entropy_backward


@host
@cache
def product_kernel(dtype: str, dy_dtype: str, other_dtype: str, transposed: bool) -> Kernel:
    """Return the kernel of dy times a matrix, or of dy transposed times one: a thread an output."""
    from numba import cuda, float32, uint64

    from gpu.warp import block, thread, threads

    wide_dy, wide, narrow = read(dy_dtype), read(other_dtype), write(dtype)
    types = [f"{storage(each)}[:, ::1]" for each in (dtype, dy_dtype, other_dtype)]

    @numba_kernel(*types, name=f"linear_backward[{dtype}] {'weights' if transposed else 'input'}")
    def product(out, dy, other):
        at, width = block() * threads() + thread(), uint64(out.shape[1])
        if at < uint64(out.size):
            row, column = at // width, at % width
            total, k = float32(0), uint64(0)
            while k < uint64(other.shape[0]):
                factor = wide_dy(dy[k, row] if transposed else dy[row, k])
                total = cuda.fma(factor, wide(other[k, column]), total)
                k += uint64(1)
            out[row, column] = narrow(total)

    return product


@host
@cache
def sum_kernel(dtype: str, dy_dtype: str) -> Kernel:
    """Return the kernel of the sum over tokens: a thread a column."""
    from numba import float32, uint64

    from gpu.warp import block, thread, threads

    wide, narrow = read(dy_dtype), write(dtype)

    @numba_kernel(f"{storage(dtype)}[::1]", f"{storage(dy_dtype)}[:, ::1]", name=f"linear_backward[{dtype}] bias")
    def summed(out, dy):
        column = block() * threads() + thread()
        if column < uint64(out.size):
            total, t = float32(0), uint64(0)
            while t < uint64(dy.shape[0]):
                total += wide(dy[t, column])
                t += uint64(1)
            out[column] = narrow(total)

    return summed


@host
@cache
def relu_backward_kernel(dtype: str, x_dtype: str) -> Kernel:
    """Return the kernel of relu's gradient: a thread an element."""
    from numba import float32, uint64

    from gpu.warp import block, thread, threads

    wide, wide_x, narrow, held = read(dtype), read(x_dtype), write(dtype), storage(dtype)

    @numba_kernel(f"{held}[::1]", f"{held}[::1]", f"{storage(x_dtype)}[::1]", name=f"relu_backward[{dtype}]")
    def relu_backward(out, dy, x):
        i = block() * threads() + thread()
        if i < uint64(x.size):
            out[i] = narrow(float32(0) if wide_x(x[i]) <= float32(0) else wide(dy[i]))

    return relu_backward


@host
@cache
def sgd_step_kernel(dtype: str, dw_dtype: str, velocity_dtype: str) -> Kernel:
    """Return the kernel of a step: a thread a weight; what it writes it has read."""
    from numba import uint64

    from gpu.warp import block, thread, threads

    wide, wide_dw, wide_velocity = read(dtype), read(dw_dtype), read(velocity_dtype)
    narrow, narrow_velocity = write(dtype), write(velocity_dtype)
    types = [f"{storage(each)}[::1]" for each in (dtype, velocity_dtype, dtype, dw_dtype, velocity_dtype)]

    @numba_kernel(*types, "float32", "float32", name=f"sgd_step[{dtype}]")
    def sgd_step(stepped, moving, w, dw, velocity, learning_rate, momentum):
        i = block() * threads() + thread()
        if i < uint64(w.size):
            motion = momentum * wide_velocity(velocity[i]) + wide_dw(dw[i])
            stepped[i] = narrow(wide(w[i]) - learning_rate * motion)
            moving[i] = narrow_velocity(motion)

    return sgd_step
