"""From scores to weights, in the attention kernels of Numba: which keys a row sees, and the running softmax over them.

Eight lanes share a row, and each has every eighth key of a tile. A row is (token, query head, first key that it sees,
last one, not included, and a gap between them: the first key that it does not see, and the one where it sees again).
"""

import math
from functools import cache
from typing import Any

import numpy as np

from gpu import device
from gpu.compile import device_function
from gpu.number import need_floats
from refimpl.contract import Array, host

__all__ = ["HIDDEN", "LANES", "padded", "rules_of", "sight", "sinks_of", "weigher"]

LANES = 8
HIDDEN = -1.0
"""In place of the weight of a key that the row does not see, whose value is then left out."""
_ALL = 0xFFFFFFFF
_WHOLE = 1 << 40  # a window, or a chunk, that leaves nothing out


@host
def padded(width: int) -> int:
    """Return a stride of at least ``width`` (8, 16, 24 ...) floats by which four rows begin in banks of their own.

    >>> [padded(width) % 32 for width in (8, 16, 32, 64, 80)]
    [8, 24, 8, 8, 24]
    """
    return width if width % 16 == 8 else width + 8


@host
def sinks_of(sinks: Array | None) -> Array:
    """Return learned sinks as kernels take them: float32, and none of them where there are none."""
    if sinks is None:
        return device.empty(0, np.float32)
    need_floats(sinks)
    return device.array(sinks, np.float32)


@host
def rules_of(window: int | None, prefix: int, chunk: int | None) -> tuple[int, int, int]:
    """Return window, prefix and chunk as kernels take them.

    >>> rules_of(5, 2, None) == (5, 2, 1 << 40)
    True
    """
    return min(window or _WHOLE, _WHOLE), min(prefix, _WHOLE), min(chunk or _WHOLE, _WHOLE)


@host
@cache
def sight() -> Any:
    """Return the function for kernels that says which keys a query may see: the first, the last, and the gap.

    Rules are (causal, window, prefix, chunk). Only a prefix, which a window has left behind, makes a gap.
    """
    from numba import uint64

    @device_function
    def seen(t, T, S, rules):
        causal, window, prefix, chunk = rules
        if not causal:
            return uint64(0), S, uint64(0), uint64(0)
        last = t + S + uint64(1)
        last = last - T if last > T else uint64(0)
        begin, reach = (max(last, uint64(1)) - uint64(1)) // chunk * chunk, last - min(last, window)
        if prefix > begin:
            return begin, last, prefix, reach
        return max(begin, reach), last, uint64(0), uint64(0)

    return seen


@host
@cache
def weigher(kind: str, each: int, sums_of_lane: int) -> Any:
    """Return the function for kernels by which the lanes of a row turn its scores into weights.

    It rescales what was summed by the old maximum, leaves the weights in shared memory, and returns the new state.
    """
    from numba import cuda, float32, uint64

    from gpu.warp import thread

    lanes, hidden, never, seen = uint64(LANES), float32(HIDDEN), float32(-math.inf), _seen(kind)
    stride = uint64(padded(LANES * each))

    @device_function
    def weigh(sums, top, total, scores, weights, mask, row, start, count, softcap):
        highest = never
        for j in range(uint64(each)):
            s = thread() % lanes + lanes * j
            score = scores[j]
            if softcap > float32(0):
                score = softcap * math.tanh(score / softcap)
            scores[j] = seen(score, mask, row, start + s) if s < count else never
            highest = cuda.libdevice.fmaxf(highest, scores[j])
        for apart in (4, 2, 1):
            highest = cuda.libdevice.fmaxf(highest, cuda.shfl_xor_sync(_ALL, highest, apart))
        highest = cuda.libdevice.fmaxf(highest, top)
        kept = math.exp(top - highest) if top > never else float32(0)
        new = float32(0)
        for j in range(uint64(each)):
            weight = math.exp(scores[j] - highest) if scores[j] != never else hidden
            weights[thread() // lanes * stride + thread() % lanes + lanes * j] = weight
            new += weight if weight != hidden else float32(0)
        for apart in (4, 2, 1):
            new += cuda.shfl_xor_sync(_ALL, new, apart)
        for i in range(sums_of_lane):
            sums[i] *= kept
        return highest, total * kept + new

    return weigh


@cache
def _seen(kind: str) -> Any:
    """The score of a key with the mask added, or -inf when the row may not see it; a hidden key's mask is not read."""
    from numba import float32, uint64

    never = float32(-math.inf)

    @device_function
    def bare(score, mask, row, s):
        return score if row[2] <= s < row[3] and not row[4] <= s < row[5] else never

    @device_function
    def masked(score, mask, row, s):
        token, n, first, last, gap, again = row
        if s < first or s >= last or gap <= s < again:
            return never
        return score if mask[n if mask.shape[0] > 1 else uint64(0), token, s] else never

    @device_function
    def added(score, mask, row, s):
        token, n, first, last, gap, again = row
        if s < first or s >= last or gap <= s < again:
            return never
        bias = mask[n if mask.shape[0] > 1 else uint64(0), token, s]
        return score + bias if bias > never else never

    return {"none": bare, "bool": masked, "added": added}[kind]
