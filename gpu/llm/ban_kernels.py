"""The kernels of bans: a block owns a run of the vocabulary, and looks through all ids for what concerns its run."""

import math
from functools import cache
from typing import Any

from gpu.compile import Kernel, device_function, numba_kernel
from gpu.llm.row_kernels import minus_infinity
from gpu.number import read, storage, write_double
from refimpl.contract import host

__all__ = ["RUN", "marked_kernel", "sequence_kernel"]

RUN = 2048
"""How many tokens a block owns."""

_LARGEST = {"float32": (2 - 2.0**-23) * 2.0**127, "bfloat16": (2 - 2.0**-7) * 2.0**127, "float16": 65504.0}


@cache
def _changed(dtype: str, rule: str) -> Any:
    """Return the function that gives a token's stored logit, by whether an id marks it."""
    from numba import cuda, float32, float64, uint16

    wide, narrow, cut = read(dtype), write_double(dtype), minus_infinity(dtype)
    zero, most = float32(0) if dtype == "float32" else uint16(0), _LARGEST[dtype]

    def suppress(number, is_marked, growth):
        return cut if is_marked else number

    def force(number, is_marked, growth):
        return zero if is_marked else cut

    def decay(number, is_marked, growth):
        x = float64(wide(number))
        if not is_marked or not abs(x) < math.inf:
            return number
        longer = x + cuda.libdevice.dmul_rn(abs(x), growth)  # rounded, where a multiply-add would not be
        return narrow(min(max(longer, -float64(most)), float64(most)))

    return device_function({"suppress": suppress, "ngram": suppress, "force": force, "decay": decay}[rule])


@host
@cache
def marked_kernel(dtype: str, rule: str) -> Kernel:
    """Return the kernel of the bans that ids mark: all of them, or with "ngram" those that end a repeated sequence.

    ``n`` is the length of that sequence. What marks a token is counted in shared memory.
    """
    from numba import cuda, int32, uint64

    from gpu.warp import block, thread, threads

    held, changed, is_ngram = storage(dtype), _changed(dtype, rule), rule == "ngram"

    @device_function
    def marks(ids, i, n):
        if not is_ngram:
            return True
        if i + uint64(1) < n:
            return False
        size, j = uint64(ids.size), uint64(1)
        while j < n and ids[i - j] == ids[size - j]:
            j += uint64(1)
        return j == n

    @numba_kernel(
        f"{held}[::1]", f"{held}[::1]", "int64[::1]", "uint64", "float64", name=f"{rule}_tokens[{dtype}]"
    )
    def marked(out, logits, ids, n, growth):
        counts = cuda.shared.array(RUN, int32)
        first, i = block() * uint64(RUN), thread()
        while i < uint64(RUN):
            counts[i] = int32(0)
            i += threads()
        cuda.syncthreads()
        i = thread()
        while i < uint64(ids.size):
            own = uint64(ids[i]) - first
            if own < uint64(RUN) and marks(ids, i, n):  # an id below the run wraps around
                cuda.atomic.add(counts, own, int32(1))
            i += threads()
        cuda.syncthreads()
        i = thread()
        while i < min(uint64(RUN), uint64(logits.size) - first):
            out[first + i] = changed(logits[first + i], counts[i] > int32(0), growth)
            i += threads()

    return marked


@cache
def _added() -> Any:
    """Return the function that gives the bias of the token that sequence j completes.

    NaN where it completes none, or where one before it, which has added this bias too, completes the same.
    """
    from numba import float64, uint64

    @device_function
    def completes(ids, tokens, starts, j):
        start, length = uint64(starts[j]), uint64(starts[j + uint64(1)] - starts[j])
        size, k = uint64(ids.size), uint64(1)
        if length > size + uint64(1):
            return False
        while k < length and tokens[start + k - uint64(1)] == ids[size - length + k]:
            k += uint64(1)
        return k == length

    @device_function
    def added(ids, tokens, starts, values, j):
        last, total, k = tokens[uint64(starts[j + uint64(1)]) - uint64(1)], float64(0), uint64(0)
        if not completes(ids, tokens, starts, j):
            return float64(math.nan)
        while k < uint64(values.size):
            if tokens[uint64(starts[k + uint64(1)]) - uint64(1)] == last and completes(ids, tokens, starts, k):
                if k < j:
                    return float64(math.nan)
                total += values[k]
            k += uint64(1)
        return total

    return added


@host
@cache
def sequence_kernel(dtype: str) -> Kernel:
    """Return the kernel of ``sequence_bias_into``: sequence j are the tokens from starts[j] to starts[j + 1].

    Of the sequences that end with the same token the first one's thread adds up the biases, in their order.
    """
    from numba import cuda, float64, uint64

    from gpu.warp import block, thread, threads

    held, wide, narrow, added = storage(dtype), read(dtype), write_double(dtype), _added()

    @numba_kernel(
        f"{held}[::1]", f"{held}[::1]", "int64[::1]", "int64[::1]", "int64[::1]", "float64[::1]",
        name=f"sequence_bias[{dtype}]",
    )
    def sequence_bias(out, logits, ids, tokens, starts, values):
        first = block() * uint64(RUN)
        end, i = min(first + uint64(RUN), uint64(logits.size)), first + thread()
        while i < end:
            out[i] = logits[i]
            i += threads()
        cuda.syncthreads()
        j = thread()
        while j < uint64(values.size):
            own = uint64(tokens[uint64(starts[j + uint64(1)]) - uint64(1)])
            if first <= own < end:
                bias = added(ids, tokens, starts, values, j)
                if not math.isnan(bias):
                    out[own] = narrow(float64(wide(out[own])) + bias if bias > -math.inf else bias)
            j += threads()

    return sequence_bias
