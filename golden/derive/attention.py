"""Attention, one query and head at a time, over a list of the keys that it sees."""

import math
from typing import Any

import numpy as np

from golden.values import Array

__all__ = ["attention"]


def attention(
    q: Array, k: Array, v: Array, *, scale: float | None = None, causal: bool = True, mask: Array | None = None,
    window: int | None = None, softcap: float | None = None, return_lse: bool = False, sinks: Array | None = None,
    prefix: int = 0, chunk: int | None = None,
) -> Any:  # fmt: skip
    (T, N, H), (S, K, _) = q.shape, k.shape
    scale = 1 / math.sqrt(H) if scale is None else scale
    o, lse = np.zeros((T, N, v.shape[-1])), np.full((T, N), -np.inf)
    for t in range(T):
        at = t + S - T
        for n in range(N):
            row = None if mask is None else mask[t] if mask.ndim == 2 else mask[n, t]
            scores = {}
            for s in range(S):
                if (causal and s > at) or (window is not None and prefix <= s <= at - window):
                    continue
                if chunk is not None and s // chunk != at // chunk:
                    continue
                added = 0.0 if row is None or row.dtype == bool else float(row[s])
                if added == -math.inf or (row is not None and row.dtype == bool and not row[s]):
                    continue
                score = scale * math.fsum(q[t, n] * k[s, n // (N // K)])
                if softcap is not None:
                    score = softcap * math.tanh(score / softcap)
                scores[s] = score + added
            if scores:
                largest = max(scores.values())
                total = math.fsum(math.exp(score - largest) for score in scores.values())
                lse[t, n] = largest + math.log(total)
                shared = lse[t, n] if sinks is None else np.logaddexp(lse[t, n], sinks[n])
                for s, score in scores.items():
                    o[t, n] += math.exp(score - shared) * v[s, n // (N // K)]
    return (o, lse) if return_lse else o
