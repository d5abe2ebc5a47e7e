"""Rings token by token, codes number by number, blocks slot by slot."""

import math

import numpy as np

from golden.values import Array

__all__ = ["copy_blocks", "quantized_append", "quantized_read", "ring_append", "ring_read"]


def ring_append(k_cache: Array, v_cache: Array, k: Array, v: Array, length: int) -> tuple[Array, Array]:
    new_k, new_v = k_cache.copy(), v_cache.copy()
    for t in range(len(k)):
        new_k[(length + t) % len(new_k)] = k[t]
        new_v[(length + t) % len(new_v)] = v[t]
    return new_k, new_v


def ring_read(k_cache: Array, v_cache: Array, length: int) -> tuple[Array, Array]:
    positions = [p for p in range(length) if p >= length - len(k_cache)]
    k, v = (np.array([x[p % len(x)] for p in positions]).reshape(-1, *x.shape[1:]) for x in (k_cache, v_cache))
    return k, v


def _number_of_e4m3(code: int) -> float:
    sign, exponent, mantissa = code >> 7, code >> 3 & 15, code & 7
    if exponent == 15 and mantissa == 7:
        return math.nan
    size = mantissa * 2.0**-9 if exponent == 0 else (8 + mantissa) * 2.0 ** (exponent - 10)
    return -size if sign else size


def _code_of_e4m3(x: float) -> int:
    """Return the nearest of all codes; of two, the even one."""
    codes = range(127)
    nearest = min(codes, key=lambda code: (abs(_number_of_e4m3(code) - abs(x)), code % 2))
    return nearest | (128 if math.copysign(1, x) < 0 else 0)


def quantized_append(codes: Array, scales: Array, x: Array, length: int) -> tuple[Array, Array]:
    codes, scales = codes.copy(), scales.copy()
    is_whole = codes.dtype == np.int8
    for t, k in np.ndindex(*x.shape[:2]):
        largest = max(abs(float(number)) for number in x[t, k])
        scale = largest / (127 if is_whole else 448)
        scales[length + t, k] = scale
        for h in range(x.shape[2]):
            steps = float(x[t, k, h]) / scale if scale else 0.0
            codes[length + t, k, h] = round(steps) if is_whole else _code_of_e4m3(steps)
    return codes, scales


def quantized_read(codes: Array, scales: Array, length: int) -> Array:
    x = np.zeros((length, *codes.shape[1:]))
    for s, k, h in np.ndindex(x.shape):
        code = int(codes[s, k, h])
        x[s, k, h] = scales[s, k] * (code if codes.dtype == np.int8 else _number_of_e4m3(code))
    return x


def copy_blocks(k_cache: Array, v_cache: Array, sources: Array, targets: Array) -> tuple[Array, Array]:
    new_k, new_v = k_cache.copy(), v_cache.copy()
    for source, target in zip(sources.tolist(), targets.tolist(), strict=True):
        for slot in range(k_cache.shape[1]):
            new_k[target, slot] = k_cache[source, slot]
            new_v[target, slot] = v_cache[source, slot]
    return new_k, new_v
