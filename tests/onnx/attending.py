"""ONNX's Attention as calls of refimpl: sequences apart, heads second, and the queries the last of the keys."""

from typing import Any

import numpy as np

from refimpl.llm.attention import attention
from refimpl.llm.kv_cache import KVCache, cache_append
from tests.onnx.scope import OutOfScope

__all__ = ["attention_node"]


def attention_node(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, mask: np.ndarray | None = None, past_key: np.ndarray | None = None,
    past_value: np.ndarray | None = None, nonpad_kv_seqlen: np.ndarray | None = None, *,
    q_num_heads: int = 0, kv_num_heads: int = 0, **attributes: Any,
) -> tuple[np.ndarray, ...]:  # fmt: skip
    """Return output, present keys, present values and scores, batched and laid out as the node's inputs are."""
    is_flat = q.ndim == 3
    q, k, v = (_tokens_first(x, n) for x, n in ((q, q_num_heads), (k, kv_num_heads), (v, kv_num_heads)))
    if mask is not None:
        mask = np.broadcast_to(mask, (len(q), q.shape[2], q.shape[1], mask.shape[-1]))
    each = [
        _sequence(
            q[b], k[b], v[b], None if mask is None else mask[b],
            None if past_key is None else (past_key[b].swapaxes(0, 1), past_value[b].swapaxes(0, 1)),
            None if nonpad_kv_seqlen is None else int(nonpad_kv_seqlen[b]), **attributes,
        )
        for b in range(len(q))
    ]  # fmt: skip
    y, keys, values, scores = (np.stack(parts) for parts in zip(*each, strict=True))
    y = y.reshape(*y.shape[:2], -1) if is_flat else y.swapaxes(1, 2)
    return y, keys.swapaxes(1, 2), values.swapaxes(1, 2), scores


def _tokens_first(x: np.ndarray, num_heads: int) -> np.ndarray:
    return x.reshape(*x.shape[:2], num_heads, -1) if x.ndim == 3 else x.swapaxes(1, 2)


def _sequence(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, mask: np.ndarray | None, past: tuple[np.ndarray, np.ndarray] | None,
    seen: int | None, *, is_causal: int = 0, scale: float | None = None, softcap: float | None = None,
    left_window_size: int = -1, right_window_size: int = -1, qk_matmul_output_mode: int = 0,
    softmax_precision: int | None = None,
) -> tuple[np.ndarray, ...]:  # fmt: skip
    """Run one sequence. The softmax is float32 here, or wider; nobody asks for less."""
    if right_window_size >= 0 or (left_window_size >= 0 and not is_causal):
        raise OutOfScope("a window is causal here")
    past_k, past_v = (k[:0], v[:0]) if past is None else past
    present_k, present_v, capacity = _cached(past_k, k), _cached(past_v, v), len(past_k) + len(k)
    # The last query stands at position end - 1: keys behind it are left out; where there are fewer, hidden ones follow.
    end = len(past_k) + len(q) if is_causal and seen is None else seen or capacity
    keys, values = _to_length(present_k, end, 0, np.nan), _to_length(present_v, end, 0, np.nan)
    if mask is None and end > capacity:
        mask = np.ones((q.shape[1], len(q), capacity), bool)
    if mask is not None:
        hidden = False if mask.dtype == bool else -np.inf
        mask = _to_length(_to_length(mask, min(end, capacity), -1, hidden), end, -1, hidden)
    window = left_window_size + 1 if left_window_size >= 0 else None
    sight = {"causal": bool(is_causal), "window": window, "mask": mask}
    o = attention(q, keys, values, scale=scale, softcap=softcap, **sight)
    if qk_matmul_output_mode == 3:
        one_hot = np.broadcast_to(np.eye(end, dtype=v.dtype)[:, None], (end, k.shape[1], end))
        scores = _to_length(attention(q, keys, one_hot, scale=scale, softcap=softcap, **sight), capacity, -1, 0)
    elif qk_matmul_output_mode == 2:
        scores = _to_length(_scores(q, keys, scale=scale, softcap=softcap, **sight), capacity, -1, -np.inf)
    else:
        scores = _scores(q, present_k, scale=scale, softcap=softcap if qk_matmul_output_mode else None, causal=False)
    return o, present_k, present_v, scores.astype(q.dtype).swapaxes(0, 1)


def _cached(past: np.ndarray, new: np.ndarray) -> np.ndarray:
    """Return what a cache holds after two appends; one for keys, one for values, which may differ in width."""
    k, v = np.empty((2, len(past) + len(new), *new.shape[1:]), new.dtype)
    return cache_append(cache_append(KVCache(k, v, 0), past, past), new, new).k


def _to_length(x: np.ndarray, length: int, axis: int, filler: Any) -> np.ndarray:
    x = np.moveaxis(x, axis, 0)[:length]
    more = np.full((length - len(x), *x.shape[1:]), filler, x.dtype)
    return np.moveaxis(np.concatenate([x, more]), 0, axis)


def _scores(q: np.ndarray, k: np.ndarray, mask: np.ndarray | None = None, **keywords: Any) -> np.ndarray:
    """Return the scores [T N S]: where a query sees one key alone, they are its log-sum-exp."""
    (T, N, _), S = q.shape, len(k)
    mask = np.zeros((N, T, S), np.float32) if mask is None else mask
    mask = np.where(mask, 0, -np.inf) if mask.dtype == bool else mask.astype(np.float32)
    alone = (np.where(np.arange(S) == s, mask, -np.inf) for s in range(S))
    return np.stack([attention(q, k, k, mask=seen, return_lse=True, **keywords)[1] for seen in alone], -1)
