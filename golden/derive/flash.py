"""Attention in parts: one tile into a running softmax, two parts into one, one query and head at a time."""

import math
from typing import Any

import numpy as np

from golden.derive.attention import attention
from golden.values import Array

__all__ = ["flash_attention", "flash_step", "merge_states"]


def flash_step(
    sums: Array, top: Array, total: Array, q: Array, k: Array, v: Array, *,
    scale: float | None = None, mask: Array | None = None, softcap: float | None = None,
) -> tuple[Array, Array, Array]:  # fmt: skip
    (T, N, H), (S, K, _) = q.shape, k.shape
    scale = 1 / math.sqrt(H) if scale is None else scale
    sums, top, total = sums.copy(), top.copy(), total.copy()
    for t in range(T):
        for n in range(N):
            row = None if mask is None else mask[t] if mask.ndim == 2 else mask[n, t]
            for s in range(S):  # a tile of one key after the other
                added = 0.0 if row is None or row.dtype == bool else float(row[s])
                if added == -math.inf or (row is not None and row.dtype == bool and not row[s]):
                    continue
                score = scale * math.fsum(q[t, n] * k[s, n // (N // K)])
                if softcap is not None:
                    score = softcap * math.tanh(score / softcap)
                highest = max(float(top[t, n]), score + added)
                kept, weight = math.exp(top[t, n] - highest), math.exp(score + added - highest)
                top[t, n] = highest
                total[t, n] = kept * total[t, n] + weight
                sums[t, n] = kept * sums[t, n] + weight * v[s, n // (N // K)]
    return sums, top, total


def merge_states(o_a: Array, lse_a: Array, o_b: Array, lse_b: Array) -> tuple[Array, Array]:
    o, lse = np.zeros(o_a.shape), np.full(lse_a.shape, -np.inf)
    for row in np.ndindex(lse.shape):
        parts = [(float(lse_x[row]), o_x[row]) for lse_x, o_x in ((lse_a, o_a), (lse_b, o_b)) if lse_x[row] > -np.inf]
        if parts:
            largest = max(part for part, _ in parts)
            lse[row] = largest + math.log(math.fsum(math.exp(part - largest) for part, _ in parts))
        for part, values in parts:
            o[row] += math.exp(part - lse[row]) * values
    return o, lse


def flash_attention(q: Array, k: Array, v: Array, *, tile: int = 32, **rest: Any) -> Any:
    """No tile changes what attention is."""
    return attention(q, k, v, **rest)
