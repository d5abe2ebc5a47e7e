"""Faults of attention: what is seen, by whom, how strongly."""

import math
from typing import Any

import numpy as np

from golden.derive import attention as derive
from golden.values import Array

__all__ = [
    "base_2", "blind_row_mean", "blind_row_nan", "cap_after_mask", "default_scale", "heads_tiled", "hidden_by_zero",
    "mask_from_first_key", "mask_ignored", "mask_scaled", "mask_shared_by_heads", "masked_row_mean", "no_mask",
    "ring_forgets", "scale_missing", "scale_of_v", "scores_unshifted", "window_plus_one",
]  # fmt: skip


def mask_from_first_key(q: Array, k: Array, v: Array, **rest: Any) -> Any:
    """The causal mask starts at the first key (PyTorch's is_causal), not at the last."""
    mask = np.tri(len(q), len(k), dtype=bool)
    if rest.get("mask") is not None and rest["mask"].dtype == bool:
        mask = mask & rest["mask"]
    return derive.attention(q, k, v, **rest | {"causal": False, "mask": mask})


def no_mask(q: Array, k: Array, v: Array, **rest: Any) -> Any:
    """Nothing is hidden."""
    return derive.attention(q, k, v, **rest | {"causal": False, "mask": None, "window": None})


def window_plus_one(q: Array, k: Array, v: Array, *, window: int, **rest: Any) -> Any:
    """The window counts the keys to the left of the query (flash-attention, FlashInfer, ONNX)."""
    return derive.attention(q, k, v, window=window + 1, **rest)


def ring_forgets(q: Array, k: Array, v: Array, *, window: int, **rest: Any) -> Any:
    """A ring of W slots was overwritten by the whole chunk before its first query read it."""
    return derive.attention(q, k[-window:], v[-window:], window=window, **rest)


def cap_after_mask(q: Array, k: Array, v: Array, *, softcap: float, **rest: Any) -> Any:
    """The soft cap bends the mask's -inf into -cap, and hidden keys leak."""
    seen = np.tri(len(q), len(k), len(k) - len(q), dtype=bool)
    scores = np.einsum("tnh,snh->nts", q, k) / math.sqrt(q.shape[-1])
    capped = softcap * np.tanh(np.where(seen, scores, -np.inf) / softcap)
    weights = np.exp(capped - capped.max(-1, keepdims=True))
    return np.einsum("nts,snh->tnh", weights / weights.sum(-1, keepdims=True), v)


def scores_unshifted(q: Array, k: Array, v: Array) -> Array:
    """exp of the scores as they are."""
    scores = np.einsum("tnh,snh->nts", q, k) / math.sqrt(q.shape[-1])
    weights = np.exp(np.where(np.tri(len(q), len(k), len(k) - len(q), dtype=bool), scores, -np.inf))
    return np.einsum("nts,snh->tnh", weights / weights.sum(-1, keepdims=True), v)


def heads_tiled(q: Array, k: Array, v: Array, **rest: Any) -> Any:
    """Query head n reads key head n modulo K."""
    tiled = np.arange(q.shape[1]) % k.shape[1]
    return derive.attention(q, k[:, tiled], v[:, tiled], **rest)


def scale_missing(q: Array, k: Array, v: Array, **rest: Any) -> Any:
    """Scores are not scaled."""
    return derive.attention(q, k, v, **rest | {"scale": 1.0})


def scale_of_v(q: Array, k: Array, v: Array, **rest: Any) -> Any:
    """The default scale comes from the width of v."""
    return derive.attention(q, k, v, **rest | {"scale": v.shape[-1] ** -0.5})


def mask_shared_by_heads(q: Array, k: Array, v: Array, *, mask: Array, **rest: Any) -> Any:
    """The first head's mask serves all heads."""
    return derive.attention(q, k, v, mask=mask[0], **rest)


def mask_scaled(q: Array, k: Array, v: Array, *, mask: Array, **rest: Any) -> Any:
    """The additive mask is scaled with the scores."""
    return derive.attention(q, k, v, mask=mask / math.sqrt(q.shape[-1]), **rest)


def _blind(q: Array, k: Array) -> Array:
    return np.arange(len(q)) + len(k) - len(q) < 0


def blind_row_mean(q: Array, k: Array, v: Array, **rest: Any) -> Any:
    """A finite sentinel for -inf: a row that sees nothing gets the mean of v."""
    o, lse = derive.attention(q, k, v, **rest | {"return_lse": True})
    o[_blind(q, k)] = np.repeat(v, q.shape[1] // v.shape[1], axis=1).mean(0)
    return (o, lse) if rest.get("return_lse") else o


def blind_row_nan(q: Array, k: Array, v: Array, **rest: Any) -> Any:
    """The plain softmax of -inf alone."""
    o, lse = derive.attention(q, k, v, **rest | {"return_lse": True})
    o[_blind(q, k)] = np.nan
    return (o, lse) if rest.get("return_lse") else o


def base_2(q: Array, k: Array, v: Array, **rest: Any) -> Any:
    """The log-sum-exp to base 2 (FlashInfer)."""
    o, lse = derive.attention(q, k, v, **rest)
    return o, lse / math.log(2)


def hidden_by_zero(q: Array, k: Array, v: Array, **rest: Any) -> Any:
    """Hidden keys get the weight 0 and are multiplied all the same: NaN in a slot that nobody wrote comes through."""
    clean = derive.attention(q, np.nan_to_num(k), np.nan_to_num(v), **rest)
    return clean + 0 * np.repeat(v, q.shape[1] // v.shape[1], axis=1).sum(0)


def default_scale(q: Array, k: Array, v: Array, *, scale: float, **rest: Any) -> Any:
    """The scale is not read: 1/sqrt(H) for everyone."""
    return derive.attention(q, k, v, **rest)


def mask_ignored(q: Array, k: Array, v: Array, *, mask: Array, **rest: Any) -> Any:
    """Only the causal mask counts."""
    return derive.attention(q, k, v, **rest)


def masked_row_mean(q: Array, k: Array, v: Array, *, mask: Array, **rest: Any) -> Any:
    """A row that its mask empties gets the mean of v."""
    o = derive.attention(q, k, v, mask=mask, **rest)
    o[~mask.any(-1)] = np.repeat(v, q.shape[1] // v.shape[1], axis=1).mean(0)
    return o
