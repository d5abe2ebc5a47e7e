"""Random numbers by counter, a thread a counter."""

import operator
from functools import cache
from typing import Any

import numpy as np
from jaxtyping import UInt32

from gpu import device
from gpu.compile import Kernel, numba_kernel
from gpu.grid import blocks_for
from gpu.registry import Variant
from refimpl.contract import Array, Float, Int, kernel, op, require, whole

__all__ = ["VARIANTS", "exponential", "exponential_into", "philox", "philox_into", "uniform", "uniform_into"]

_THREADS = 256


@op
def philox(counter: UInt32[Array, "*#counters 4"], key: UInt32[Array, "*#counters 2"]) -> UInt32[Array, "*#counters 4"]:
    """A thread a counter, whose words and key stay in registers; the two shapes are made one before the launch."""
    dtypes = (str(counter.dtype), str(key.dtype))
    require(dtypes == ("uint32", "uint32"), "C1", f"counter and key are uint32, got {dtypes[0]} and {dtypes[1]}")
    fits = all(n == m or 1 in (n, m) for n, m in zip(counter.shape[-2::-1], key.shape[-2::-1], strict=False))
    words = fits and (counter.shape[-1:], key.shape[-1:]) == ((4,), (2,))
    require(words, "C2", f"counters are 4 words, keys 2, one for each or for all, got {counter.shape} and {key.shape}")
    shape = np.broadcast_shapes(counter.shape[:-1], key.shape[:-1])
    counters, keys = (np.broadcast_to(device.to_host(x), (*shape, x.shape[-1])) for x in (counter, key))
    out = device.empty((*shape, 4), np.uint32)
    philox_into(out.reshape(-1, 4), device.array(counters).reshape(-1, 4), device.array(keys).reshape(-1, 2))
    return out


@kernel
def philox_into(
    out: UInt32[Array, "counters 4"], counter: UInt32[Array, "counters 4"], key: UInt32[Array, "counters 2"]
) -> None:
    """Turn counters into random bits; ``out`` may be ``counter``."""
    device.launch(_philox(), blocks_for(len(out), _THREADS), _THREADS, out, counter, key)


@op
def uniform(seed: int, request: int, position: int) -> float:
    """One thread; the number comes back as its 53 bits."""
    units = device.empty(1, np.uint64)
    uniform_into(units, *_place(seed, request, position))
    return int(device.to_host(units)[0]) / 2**53


@kernel
def uniform_into(
    units: Int[Array, " R"], seeds: Int[Array, " R"], requests: Int[Array, " R"], positions: Int[Array, " R"]
) -> None:
    """Write random numbers in units of 2^-53, as ``draw_into`` takes them; all arrays are uint64."""
    device.launch(_uniform(), blocks_for(len(units), _THREADS), _THREADS, units, seeds, requests, positions)


@op
def exponential(seed: int, request: int, position: int, size: int) -> Float[Array, " size"]:
    """A thread a token: the philox of the place, then its own, with the logarithm in float64."""
    place = _place(seed, request, position)
    require(0 <= whole("size", size) <= 2**32, "C2", f"size is in [0, 2^32], got {size}")
    noise = device.empty((1, size), np.float32)
    exponential_into(noise, *place)
    return noise[0]


@kernel
def exponential_into(
    noise: Float[Array, "R V"], seeds: Int[Array, " R"], requests: Int[Array, " R"], positions: Int[Array, " R"]
) -> None:
    """Write a row of exponential numbers for each place, float32, as ``draw_race_into`` takes them; places are uint64.

    A row is a function of its place alone.
    """
    rows, V = noise.shape
    device.launch(_exponential(), (blocks_for(V, _THREADS), rows), _THREADS, noise, seeds, requests, positions)


def _place(seed: int, request: int, position: int) -> list[Array]:
    """Return the three numbers on the device."""
    for name, value in {"seed": seed, "request": request, "position": position}.items():
        require(0 <= whole(name, value) < 2**64, "C1", f"{name} is in [0, 2^64), got {value}")
    numbers = map(operator.index, (seed, request, position))
    return [device.array(np.array([number], np.uint64)) for number in numbers]


@cache
def _rounds() -> Any:
    """Return the function for kernels that is Philox 4x32-10 on the words of a counter and a key."""
    from numba import uint32, uint64

    from gpu.compile import device_function

    @device_function
    def rounds(x0, x1, x2, x3, k0, k1):
        for _ in range(10):
            first, second = uint64(x0) * uint64(0xD2511F53), uint64(x2) * uint64(0xCD9E8D57)
            x0, x2 = uint32(second >> uint64(32)) ^ x1 ^ k0, uint32(first >> uint64(32)) ^ x3 ^ k1
            x1, x3 = uint32(second), uint32(first)
            k0, k1 = uint32(k0 + uint32(0x9E3779B9)), uint32(k1 + uint32(0xBB67AE85))
        return x0, x1, x2, x3

    return rounds


@cache
def _philox() -> Kernel:
    from numba import uint64

    from gpu.warp import block, thread, threads

    rounds = _rounds()

    @numba_kernel("uint32[:, ::1]", "uint32[:, ::1]", "uint32[:, ::1]")
    def philox(out, counter, key):
        i = block() * threads() + thread()
        if i < uint64(len(out)):
            x, k = counter[i], key[i]
            out[i, 0], out[i, 1], out[i, 2], out[i, 3] = rounds(x[0], x[1], x[2], x[3], k[0], k[1])

    return philox


@cache
def _words() -> Any:
    """Return the function for kernels that gives the four words of a place, and the one that makes 53 bits of two."""
    from numba import uint32, uint64

    from gpu.compile import device_function

    rounds = _rounds()

    @device_function
    def words(seed, request, position):
        return rounds(
            uint32(position), uint32(position >> uint64(32)), uint32(request), uint32(request >> uint64(32)),
            uint32(seed), uint32(seed >> uint64(32)),
        )  # fmt: skip

    @device_function
    def bits(x0, x1):
        return uint64(x0 >> uint32(5)) << uint64(26) | uint64(x1 >> uint32(6))

    return words, bits


@cache
def _uniform() -> Kernel:
    from numba import uint64

    from gpu.warp import block, thread, threads

    words, bits = _words()

    @numba_kernel("uint64[::1]", "uint64[::1]", "uint64[::1]", "uint64[::1]")
    def uniform(units, seeds, requests, positions):
        i = block() * threads() + thread()
        if i < uint64(len(units)):
            x = words(seeds[i], requests[i], positions[i])
            units[i] = bits(x[0], x[1])

    return uniform


@cache
def _exponential() -> Kernel:
    from numba import cuda, float32, float64, uint32, uint64

    from gpu.warp import block, thread, threads

    rounds, (words, bits) = _rounds(), _words()

    @numba_kernel("float32[:, ::1]", "uint64[::1]", "uint64[::1]", "uint64[::1]")
    def exponential(noise, seeds, requests, positions):
        row, i = uint64(cuda.blockIdx.y), block() * threads() + thread()
        if i < uint64(noise.shape[1]):
            key = words(seeds[row], requests[row], positions[row])
            x = rounds(uint32(i), uint32(0), uint32(0), uint32(0), key[2], key[3])
            noise[row, i] = float32(-cuda.libdevice.log1p(-(float64(bits(x[0], x[1])) * float64(2.0**-53))))

    return exponential


def _counters() -> dict[str, Array]:
    draw = np.random.default_rng(0).integers
    return {"counter": draw(0, 2**32, (4096, 4), np.uint32), "key": draw(0, 2**32, (4096, 2), np.uint32)}


_POSITION = {"seed": 1, "request": 2, "position": 3}

VARIANTS = (
    Variant("numba", "philox", philox, lambda counter, key: True, _counters),
    Variant("numba", "uniform", uniform, lambda *_, **__: True, lambda: _POSITION),
    Variant("numba", "exponential", exponential, lambda *_, **__: True, lambda: _POSITION | {"size": 32000}),
)
