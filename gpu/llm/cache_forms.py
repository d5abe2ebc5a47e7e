"""Rings, and caches of codes: one block a token. Its threads copy numbers; one warp a head makes codes of them."""

from math import prod
from typing import Any

import numpy as np

from gpu import device
from gpu.grid import threads_for
from gpu.llm.cache_kernels import (
    quantized_append_kernel,
    quantized_read_kernel,
    ring_append_kernel,
    ring_read_kernel,
)
from gpu.number import named
from gpu.registry import Variant
from refimpl.contract import Array, ContractError, Float, Int, UInt8, kernel, op, require, rows, whole

__all__ = [
    "VARIANTS", "quantized_append", "quantized_append_into", "quantized_read", "quantized_read_into", "ring_append",
    "ring_append_into", "ring_read", "ring_read_into",
]  # fmt: skip

_WARPS = 8  # of a block, at most


@op
def ring_append(
    k_cache: Float[Array, "capacity K H"], v_cache: Float[Array, "capacity K H2"],
    k: Float[Array, "T K H"], v: Float[Array, "T K H2"], length: int,
) -> tuple[Float[Array, "capacity K H"], Float[Array, "capacity K H2"]]:
    """One block a token that stays, its threads along the row. Rings of the current device are written in place."""
    capacity, T = rows(k_cache), rows(k)
    require(capacity >= 1 and rows(v_cache) == capacity, "C1", f"rings of {capacity} and {rows(v_cache)} slots")
    fits = k.shape[1:] == k_cache.shape[1:] and v.shape == (T, *v_cache.shape[1:])
    require(fits, "C2", f"k {k.shape} and v {v.shape} for rings of {k_cache.shape[1:]} and {v_cache.shape[1:]}")
    require(whole("length", length) >= 0, "C3", f"{length} tokens before")
    k_cache, v_cache = device.array(k_cache), device.array(v_cache)
    ring_append_into(k_cache, v_cache, device.array(k), device.array(v), length)
    return k_cache, v_cache


@kernel
def ring_append_into(
    k_cache: Float[Array, "capacity K H"], v_cache: Float[Array, "capacity K H2"],
    k: Float[Array, "T K H"], v: Float[Array, "T K H2"], length: int,
) -> None:
    """Write the last tokens of ``k`` and ``v``, as many as the ring has slots, over those of a capacity before."""
    made = ring_append_kernel(named(k_cache), named(k))
    named(v), named(v_cache)
    first = max(0, len(k) - len(k_cache))
    if k.size or v.size:
        flat = (x.reshape(len(x), prod(x.shape[1:])) for x in (k_cache, v_cache, k[first:], v[first:]))
        device.launch(made, len(k) - first, threads_for(prod(k.shape[1:])), *flat, (int(length) + first) % len(k_cache))


@op
def ring_read(
    k_cache: Float[Array, "capacity K H"], v_cache: Float[Array, "capacity K H2"], length: int
) -> tuple[Float[Array, "S K H"], Float[Array, "S K H2"]]:
    """One block a token, its threads along the row."""
    capacity, length = rows(k_cache), whole("length", length)
    require(capacity >= 1 and rows(v_cache) == capacity, "C1", f"rings of {capacity} and {rows(v_cache)} slots")
    require(length >= 0, "C2", f"a sequence of {length} tokens")
    k, v = (device.empty((min(length, capacity), *x.shape[1:]), x.dtype) for x in (k_cache, v_cache))
    ring_read_into(k, v, device.array(k_cache), device.array(v_cache), length)
    return k, v


@kernel
def ring_read_into(
    k: Float[Array, "S K H"], v: Float[Array, "S K H2"], k_cache: Float[Array, "capacity K H"],
    v_cache: Float[Array, "capacity K H2"], length: int,
) -> None:
    """Write the last S of ``length`` tokens into ``k`` and ``v``, the oldest first."""
    made = ring_read_kernel(named(k_cache))
    named(v_cache)
    if k.size or v.size:
        flat = (x.reshape(len(x), prod(x.shape[1:])) for x in (k, v, k_cache, v_cache))
        device.launch(made, len(k), threads_for(prod(k.shape[1:])), *flat, (length - len(k)) % len(k_cache))


@op
def quantized_append(
    codes: Int[Array, "capacity K H"] | UInt8[Array, "capacity K H"], scales: Float[Array, "capacity K"],
    x: Float[Array, "T K H"], length: int,
) -> tuple[Int[Array, "capacity K H"] | UInt8[Array, "capacity K H"], Float[Array, "capacity K"]]:
    """One block a token, one warp a head: it finds the largest number, then writes codes. Written in place."""
    _check(codes, scales)
    T, capacity, length = rows(x), len(codes), whole("length", length)
    require(x.shape[1:] == codes.shape[1:], "C2", f"x {x.shape} for a cache of {codes.shape[1:]}")
    require(0 <= length <= capacity - T, "C3", f"{length} + {T} tokens in a capacity of {capacity}")
    codes, scales = device.array(codes), device.array(scales)
    quantized_append_into(codes, scales, device.array(x), length)
    return codes, scales


@kernel
def quantized_append_into(
    codes: Int[Array, "capacity K H"] | UInt8[Array, "capacity K H"], scales: Float[Array, "capacity K"],
    x: Float[Array, "T K H"], length: int,
) -> None:
    """Write the codes and scales of ``x`` into the slots of the cache from ``length`` on."""
    made = quantized_append_kernel(str(codes.dtype), named(scales), named(x))
    if len(x) and x.shape[1]:
        device.launch(made, len(x), 32 * min(x.shape[1], _WARPS), codes, scales, x, length)


@op
def quantized_read(
    codes: Int[Array, "capacity K H"] | UInt8[Array, "capacity K H"], scales: Float[Array, "capacity K"], length: int
) -> Float[Array, "S K H"]:
    """One block a token, its threads along the row."""
    _check(codes, scales)
    length = whole("length", length)
    require(0 <= length <= len(codes), "C3", f"{length} tokens in a capacity of {len(codes)}")
    x = device.empty((length, *codes.shape[1:]), scales.dtype)
    quantized_read_into(x, device.array(codes), device.array(scales))
    return x


@kernel
def quantized_read_into(
    x: Float[Array, "S K H"], codes: Int[Array, "capacity K H"] | UInt8[Array, "capacity K H"],
    scales: Float[Array, "capacity K"],
) -> None:
    """Write the first S tokens of the cache into ``x``, whose dtype is that of the scales."""
    if x.dtype != scales.dtype:
        raise ContractError(f"x is {x.dtype}, the scales are {scales.dtype}")
    made = quantized_read_kernel(str(codes.dtype), named(scales))
    if x.size:
        device.launch(made, len(x), threads_for(prod(x.shape[1:])), x, codes, scales)


def _check(codes: Array, scales: Array) -> None:
    require(codes.dtype in (np.int8, np.uint8), "C1", f"codes are int8 or uint8, got {codes.dtype}")
    require(codes.ndim == 3 and scales.shape == codes.shape[:2], "C2", f"codes {codes.shape}, scales {scales.shape}")


def _ring() -> dict[str, Any]:
    k, v = np.random.default_rng(0).standard_normal((2, 64, 8, 128), np.float32)
    k_cache, v_cache = (np.zeros((256, 8, 128), np.float32) for _ in "kv")
    return {"k_cache": k_cache, "v_cache": v_cache, "k": k, "v": v, "length": 230}


def _full_ring() -> dict[str, Any]:
    k_cache, v_cache = np.random.default_rng(0).standard_normal((2, 64, 8, 128), np.float32)
    return {"k_cache": k_cache, "v_cache": v_cache, "length": 230}


def _new_numbers() -> dict[str, Any]:
    x = np.random.default_rng(0).standard_normal((64, 8, 128), np.float32)
    return {"codes": np.zeros((256, 8, 128), np.uint8), "scales": np.zeros((256, 8), np.float32), "x": x, "length": 100}


def _codes() -> dict[str, Any]:
    codes = np.random.default_rng(0).integers(-127, 128, (64, 8, 128)).astype(np.int8)
    return {"codes": codes, "scales": np.ones((64, 8), np.float32), "length": 64}


VARIANTS = (
    Variant("numba", "ring_append", ring_append, lambda *_, **__: True, _ring),
    Variant("numba", "ring_read", ring_read, lambda *_, **__: True, _full_ring),
    Variant("numba", "quantized_append", quantized_append, lambda *_, **__: True, _new_numbers),
    Variant("numba", "quantized_read", quantized_read, lambda *_, **__: True, _codes),
)
