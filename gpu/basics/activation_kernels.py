"""The kernels behind ``gpu.basics.activation``, each made once for a formula and a dtype."""

import math
from collections.abc import Callable
from functools import cache
from types import MappingProxyType
from typing import Any

import numpy as np

from gpu.compile import Kernel, device_function, numba_kernel
from gpu.number import read, storage, write
from refimpl.contract import host

__all__ = ["along_axis", "elementwise", "formulas"]


@host
@cache
def formulas() -> MappingProxyType[str, Callable[..., Any]]:
    """Return the activations by name, as functions for kernels, from float32 to float32."""
    one, half, cubic, quick = np.float32([1, 0.5, 0.044715, 1.702])
    twice_root, minus_root = np.float32(2 * math.sqrt(2 / math.pi)), np.float32(-math.sqrt(0.5))

    @device_function
    def sigmoid(x):
        tail = math.exp(-abs(x))
        return (one if x >= 0 else tail) / (one + tail)

    def relu(x):
        return x if x > 0 or x != x else np.float32(0)

    def softplus(x):
        return (x if x > 0 or x != x else np.float32(0)) + math.log1p(math.exp(-abs(x)))

    def silu(x):
        return x * sigmoid(x)

    def gelu_erf(x):
        return x * (half * math.erfc(x * minus_root))

    def gelu_tanh(x):
        return x * sigmoid(twice_root * (x + cubic * x * x * x))

    def gelu_quick(x):
        return x * sigmoid(quick * x)

    plain = (relu, softplus, silu, gelu_erf, gelu_tanh, gelu_quick)
    return MappingProxyType({"sigmoid": sigmoid} | {f.__name__: device_function(f) for f in plain})


@host
@cache
def elementwise(activation: str, dtype: str) -> Kernel:
    """Return the kernel of an activation: one thread an element."""
    from numba import uint64

    from gpu.warp import block, thread, threads

    formula, wide, narrow = formulas()[activation], read(dtype), write(dtype)
    array = f"{storage(dtype)}[::1]"

    @numba_kernel(array, array, name=f"{activation}[{dtype}]")
    def elementwise(out, x):
        i = block() * threads() + thread()
        if i < uint64(x.size):
            out[i] = narrow(formula(wide(x[i])))

    return elementwise


@host
@cache
def along_axis(form: str, dtype: str, by_block: bool) -> Kernel:
    """Return the kernel of softmax, log_softmax or logsumexp over the middle of three axes.

    ``by_block``: one block a slice, for a last axis of 1; else one thread a slice, neighbours along the last axis.
    """
    from numba import cuda, float32, uint64

    from gpu.warp import block, block_max, block_sum, thread, threads

    wide, narrow, summed = read(dtype), write(dtype), form == "logsumexp"
    finish = device_function({"softmax": _probability, "log_softmax": _logarithm, "logsumexp": _logarithm}[form])
    array = f"{storage(dtype)}[:, :, ::1]"

    @numba_kernel(array, array, name=f"{form}[{dtype}]{'' if by_block else ' across'}")
    def along_axis(out, x):
        n, inner = uint64(x.shape[1]), uint64(x.shape[2])
        row, column, first, step = block(), uint64(0), thread(), threads()
        if not by_block:
            at = block() * threads() + thread()
            row, column, first, step = at // inner, at % inner, uint64(0), uint64(1)
            if row >= uint64(x.shape[0]):
                return
        largest, i = float32(-math.inf), first
        while i < n:
            largest = cuda.libdevice.fmaxf(largest, wide(x[row, i, column]))
            i += step
        largest = block_max(largest) if by_block else largest
        shift = float32(0) if summed and math.isinf(largest) else largest
        total, i = float32(0), first
        while i < n:
            total += math.exp(wide(x[row, i, column]) - shift)
            i += step
        total = block_sum(total) if by_block else total
        if summed:
            if first == uint64(0):
                out[row, uint64(0), column] = narrow(math.log(total) + shift)
            return
        i = first
        while i < n:
            out[row, i, column] = narrow(finish(wide(x[row, i, column]) - shift, total))
            i += step

    return along_axis


def _probability(exponent, total):
    return math.exp(exponent) / total


def _logarithm(exponent, total):
    return exponent - math.log(total)
