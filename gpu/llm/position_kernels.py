"""The rotations behind ``gpu.llm.position``: one block a token, one warp a head."""

import math
from functools import cache
from typing import Any

from gpu.compile import Kernel, device_function, numba_kernel
from gpu.number import read, storage, write
from refimpl.contract import host

__all__ = ["rotate", "rotate_and_append"]


@host
@cache
def rotate(dtype: str, interleaved: bool, trailing: bool = False) -> Kernel:
    """Return the kernel that turns all heads of a token. Its last argument stands for gains, and is empty."""
    from numba import float32, uint64

    from gpu.warp import block, threads, warp

    turn = _turn(dtype, dtype, "float32", interleaved, trailing)
    heads = f"{storage(dtype)}[:, :, ::1]"

    @numba_kernel(heads, heads, "float32[:, ::1]", "float32[:, ::1]", "float32[::1]", name=f"rope[{dtype}]")
    def rope(out, x, cos, sin, no_gain):
        t, n = block(), warp()
        while n < uint64(x.shape[1]):
            turn(out[t, n], x[t, n], cos[t], sin[t], no_gain, float32(0))
            n += threads() >> uint64(5)

    return rope


@host
@cache
def rotate_and_append(
    dtype: str, cache_dtype: str, gain_dtype: str, interleaved: bool, trailing: bool = False
) -> Kernel:
    """Return the kernel that turns q and k, normalised first where there are gains, and appends k and v."""
    from numba import uint64

    from gpu.warp import block, lane, threads, warp

    turn_q, turn_k = (_turn(each, dtype, gain_dtype, interleaved, trailing) for each in (dtype, cache_dtype))
    wide, narrow = read(dtype), write(cache_dtype)
    heads, pages = f"{storage(dtype)}[:, :, :]", f"{storage(cache_dtype)}[:, :, ::1]"
    table, gain = "float32[:, ::1]", f"{storage(gain_dtype)}[::1]"

    @numba_kernel(
        heads, pages, pages, heads, heads, heads, table, table, "int32[::1]", gain, gain, "float32",
        name=f"rope_append[{dtype}, {cache_dtype}]",
    )
    def rope_append(q_out, k_cache, v_cache, q, k, v, cos, sin, slots, q_gain, k_gain, eps):
        t, head, N, K = block(), warp(), uint64(q.shape[1]), uint64(k.shape[1])
        slot, is_kept = uint64(slots[t]), slots[t] >= 0
        while head < N + K + K:
            if head < N:
                turn_q(q_out[t, head], q[t, head], cos[t], sin[t], q_gain, eps)
            elif head < N + K and is_kept:
                turn_k(k_cache[slot, head - N], k[t, head - N], cos[t], sin[t], k_gain, eps)
            elif is_kept:
                h, n = lane(), head - N - K
                while h < uint64(v.shape[2]):
                    v_cache[slot, n, h] = narrow(wide(v[t, n, h]))
                    h += uint64(32)
            head += threads() >> uint64(5)

    return rope_append


def _turn(out_dtype: str, dtype: str, gain_dtype: str, interleaved: bool, trailing: bool = False) -> Any:
    """Return the function with which a warp turns one head: a lane takes pair i, or a value that no pair holds."""
    from numba import cuda, float32, uint64

    from gpu.warp import lane, warp_sum

    wide, wide_gain, narrow = read(dtype), read(gain_dtype), write(out_dtype)

    @device_function
    def normalised(x, i, root, gain):
        return wide(x[i]) / root * wide_gain(gain[i]) if i < uint64(gain.size) else wide(x[i])

    @device_function
    def root_mean_square(x, gain, eps):
        total, i = float32(0), lane()
        while i < uint64(gain.size):
            total += wide(x[i]) * wide(x[i])
            i += uint64(32)
        return math.sqrt(warp_sum(total) / float32(x.size) + eps)

    @device_function
    def turn(out, x, cos, sin, gain, eps):
        J, root = uint64(cos.size), root_mean_square(x, gain, eps)
        cuda.syncwarp()  # out may be x: all lanes have read it
        i, start = lane(), uint64(x.size) - J - J if trailing else uint64(0)
        rest = uint64(0) - J if trailing else J
        while i < uint64(x.size) - J:
            if i < J:
                first, second = (i + i, i + i + uint64(1)) if interleaved else (i, i + J)
                first, second = first + start, second + start
                a, b = normalised(x, first, root, gain), normalised(x, second, root, gain)
                out[first] = narrow(a * cos[i] - b * sin[i])
                out[second] = narrow(b * cos[i] + a * sin[i])
            else:
                out[i + rest] = narrow(normalised(x, i + rest, root, gain))
            i += uint64(32)

    return turn
