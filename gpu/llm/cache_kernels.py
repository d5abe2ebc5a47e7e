"""The kernels behind ``gpu.llm.cache_forms``: one block a token."""

from functools import cache
from typing import Any

from gpu.compile import Kernel, device_function, numba_kernel
from gpu.narrow import NARROW, decode, encode
from gpu.number import read, storage, write
from refimpl.contract import host

__all__ = ["quantized_append_kernel", "quantized_read_kernel", "ring_append_kernel", "ring_read_kernel"]


@host
@cache
def ring_append_kernel(dtype: str, new_dtype: str) -> Kernel:
    """Return the kernel that writes rows into a ring from a position on."""
    from numba import uint64

    from gpu.warp import block, thread, threads

    wide, narrow = read(new_dtype), write(dtype)
    held, new = f"{storage(dtype)}[:, ::1]", f"{storage(new_dtype)}[:, ::1]"

    @device_function
    def put(out, row):
        i = thread()
        while i < uint64(row.size):
            out[i] = narrow(wide(row[i]))
            i += threads()

    @numba_kernel(held, held, new, new, "int64", name=f"ring_append[{dtype}, {new_dtype}]")
    def ring_append(k_cache, v_cache, k, v, start):
        t = block()
        slot = (uint64(start) + t) % uint64(k_cache.shape[0])
        put(k_cache[slot], k[t])
        put(v_cache[slot], v[t])

    return ring_append


@host
@cache
def ring_read_kernel(dtype: str) -> Kernel:
    """Return the kernel that reads rows of a ring from a position on."""
    from numba import uint64

    from gpu.warp import block, thread, threads

    rows = f"{storage(dtype)}[:, ::1]"

    @device_function
    def copy(out, row):
        i = thread()
        while i < uint64(row.size):
            out[i] = row[i]
            i += threads()

    @numba_kernel(rows, rows, rows, rows, "int64", name=f"ring_read[{dtype}]")
    def ring_read(k, v, k_cache, v_cache, start):
        s = block()
        slot = (uint64(start) + s) % uint64(k_cache.shape[0])
        copy(k[s], k_cache[slot])
        copy(v[s], v_cache[slot])

    return ring_read


@host
@cache
def quantized_append_kernel(codes_dtype: str, scale_dtype: str, dtype: str) -> Kernel:
    """Return the kernel that makes codes of heads, one warp a head."""
    from numba import cuda, float32, uint64

    from gpu.warp import block, lane, threads, warp, warp_max

    wide, narrow, rounded = read(dtype), write(scale_dtype), read(scale_dtype)
    most, code_of = (127.0, _whole()) if codes_dtype == "int8" else (NARROW["e4m3"][2], _bits())

    @device_function
    def size_of(x):
        return abs(x) if x == x else float32(float("inf"))

    @numba_kernel(
        f"{codes_dtype}[:, :, ::1]", f"{storage(scale_dtype)}[:, ::1]", f"{storage(dtype)}[:, :, ::1]", "int64",
        name=f"quantized_append[{codes_dtype}, {scale_dtype}, {dtype}]",
    )
    def quantized_append(codes, scales, x, length):
        t, k = block(), warp()
        slot = uint64(length) + t
        while k < uint64(x.shape[1]):
            largest, h = float32(0), lane()
            while h < uint64(x.shape[2]):
                largest = max(largest, size_of(wide(x[t, k, h])))
                h += uint64(32)
            stored = narrow(cuda.libdevice.fdiv_rn(warp_max(largest), float32(most)))
            if lane() == uint64(0):
                scales[slot, k] = stored
            h = lane()
            while h < uint64(x.shape[2]):
                step = cuda.libdevice.fdiv_rn(wide(x[t, k, h]), rounded(stored))
                codes[slot, k, h] = code_of(step if abs(step) < float32(float("inf")) else float32(0))
                h += uint64(32)
            k += threads() >> uint64(5)

    return quantized_append


@host
@cache
def quantized_read_kernel(codes_dtype: str, dtype: str) -> Kernel:
    """Return the kernel that makes numbers of codes again."""
    from numba import float32, int32, uint64

    from gpu.warp import block, thread, threads

    wide, narrow, number = read(dtype), write(dtype), decode("e4m3")
    whole = codes_dtype == "int8"

    @numba_kernel(
        f"{storage(dtype)}[:, :, ::1]", f"{codes_dtype}[:, :, ::1]", f"{storage(dtype)}[:, ::1]",
        name=f"quantized_read[{codes_dtype}, {dtype}]",
    )
    def quantized_read(x, codes, scales):
        s, i, H = block(), thread(), uint64(x.shape[2])
        while i < uint64(x.shape[1]) * H:
            k, h = i // H, i % H
            code = codes[s, k, h]
            unit = float32(code) if whole else number(int32(code))
            x[s, k, h] = narrow(wide(scales[s, k]) * unit)
            i += threads()

    return quantized_read


def _whole() -> Any:
    """Return the function that rounds a number of steps to a code of int8."""
    from numba import cuda, float32, int8, int32

    @device_function
    def whole(step):
        return int8(int32(cuda.libdevice.rintf(min(max(step, float32(-127)), float32(127)))))

    return whole


def _bits() -> Any:
    """Return the function that rounds a number to the bits of float8 e4m3."""
    from numba import uint8

    narrow = encode("e4m3")

    @device_function
    def bits(step):
        return uint8(narrow(step))

    return bits
