"""Faults of rings, of caches of codes, and of copied blocks."""

from typing import Any

import numpy as np

from golden.derive import cache_forms as derive
from golden.values import Array

__all__ = [
    "bias_eight", "copied_backwards", "first_tokens_kept", "keys_copied_alone", "newest_first", "one_scale_a_token",
    "slots_as_they_lie", "truncated", "two_in_the_complement", "unwritten_read", "wrapped_one_late",
]  # fmt: skip


def first_tokens_kept(k_cache: Array, v_cache: Array, k: Array, v: Array, length: int) -> Any:
    """Of a chunk longer than the ring the first tokens stay: what is there already is not written over."""
    most = len(k_cache)
    return derive.ring_append(k_cache, v_cache, k[:most], v[:most], length)


def wrapped_one_late(k_cache: Array, v_cache: Array, k: Array, v: Array, length: int) -> Any:
    """The ring turns at its last slot, which is written twice."""
    turned = [*range(len(k_cache)), len(k_cache) - 1]
    new_k, new_v = k_cache.copy(), v_cache.copy()
    for t in range(len(k)):
        slot = turned[(length + t) % len(turned)]
        new_k[slot], new_v[slot] = k[t], v[t]
    return new_k, new_v


def slots_as_they_lie(k_cache: Array, v_cache: Array, length: int) -> Any:
    """The slots come in their own order, although the ring has turned."""
    kept = min(length, len(k_cache))
    return k_cache[:kept], v_cache[:kept]


def newest_first(k_cache: Array, v_cache: Array, length: int) -> Any:
    """The newest token comes first."""
    k, v = derive.ring_read(k_cache, v_cache, length)
    return k[::-1], v[::-1]


def unwritten_read(k_cache: Array, v_cache: Array, length: int) -> Any:
    """All slots are read, also those that no token was written to."""
    return derive.ring_read(k_cache, v_cache, max(length, len(k_cache)))


def one_scale_a_token(codes: Array, scales: Array, x: Array, length: int) -> Any:
    """The heads of a token share the scale of the largest."""
    wide = np.asarray(x, np.float64)
    row = wide.reshape(len(x), 1, -1)
    new = np.zeros((len(x), 1, row.shape[-1]), codes.dtype), np.zeros((len(x), 1))
    row_codes, row_scales = derive.quantized_append(*new, row, 0)
    after = codes.copy(), np.asarray(scales, np.float64).copy()
    after[0][length : length + len(x)] = row_codes.reshape(x.shape)
    after[1][length : length + len(x)] = row_scales
    return after


def truncated(codes: Array, scales: Array, x: Array, length: int) -> Any:
    """Codes of int8 are cut off towards 0, not rounded."""
    wide = np.asarray(x, np.float64)
    codes, scales = derive.quantized_append(codes, np.asarray(scales, np.float64), wide, length)
    new = slice(length, length + len(x))
    codes[new] = np.trunc(wide / scales[new, :, None])
    return codes, scales


def two_in_the_complement(codes: Array, scales: Array, x: Array, length: int) -> Any:
    """The largest code is 128, and what would be 128 becomes -128."""
    wide, new = np.asarray(x, np.float64), slice(length, length + len(x))
    codes, scales = codes.copy(), np.asarray(scales, np.float64).copy()
    scales[new] = np.abs(wide).max(-1) / 128
    codes[new] = np.rint(wide / scales[new, :, None]).astype(np.int64).astype(np.uint8).view(np.int8)
    return codes, scales


def bias_eight(codes: Array, scales: Array, length: int) -> Array:
    """float8 e4m3 with the bias 8 (fnuz): every number is half of what it is."""
    return derive.quantized_read(codes, np.asarray(scales, np.float64) / 2, length)


def copied_backwards(k_cache: Array, v_cache: Array, sources: Array, targets: Array) -> Any:
    """The shared block is written over by the new one."""
    return derive.copy_blocks(k_cache, v_cache, targets, sources)


def keys_copied_alone(k_cache: Array, v_cache: Array, sources: Array, targets: Array) -> Any:
    """The values stay where they are."""
    return derive.copy_blocks(k_cache, v_cache, sources, targets)[0], v_cache
