"""Faults of attention in parts: what is forgotten between two tiles, and how two parts are joined."""

import math
from typing import Any

import numpy as np

from golden.derive import flash as derive
from golden.planted import attention
from golden.values import Array

__all__ = [
    "base_2", "blind_mean", "blind_part_kept", "blind_tile_nan", "first_tile_again", "heads_tiled", "hidden_by_zero",
    "last_tile_lost", "lse_base_2", "mask_shared_by_heads", "masked_row_mean", "mean_of_parts", "merged_unshifted",
    "scale_missing", "shares_of_total", "step_cap_after_mask", "step_heads_tiled", "step_hidden_by_zero",
    "step_scale_missing", "step_unshifted", "sums_not_rescaled", "tile_not_rescaled", "total_not_rescaled",
    "window_by_tiles", "window_plus_one",
]  # fmt: skip


def sums_not_rescaled(sums: Array, top: Array, total: Array, **tile: Any) -> Any:
    """A larger maximum rescales the total, and not what was summed before."""
    after, highest, all_of_it = derive.flash_step(sums, top, total, **tile)
    return after + (1 - np.exp(top - highest))[..., None] * sums, highest, all_of_it


def total_not_rescaled(sums: Array, top: Array, total: Array, **tile: Any) -> Any:
    """A larger maximum rescales the values, and not the total."""
    after, highest, all_of_it = derive.flash_step(sums, top, total, **tile)
    return after, highest, all_of_it + (1 - np.exp(top - highest)) * total


def blind_tile_nan(sums: Array, top: Array, total: Array, **tile: Any) -> Any:
    """Where no key has been seen yet, -inf minus -inf makes NaN of the state."""
    after, highest, all_of_it = derive.flash_step(sums, top, total, **tile)
    blind = np.where(highest == -np.inf, np.nan, 0)
    return after + blind[..., None], highest, all_of_it + blind


def step_hidden_by_zero(sums: Array, top: Array, total: Array, q: Array, k: Array, v: Array, **rest: Any) -> Any:
    """Hidden values are multiplied by 0, and NaN among them comes through."""
    after, *others = derive.flash_step(sums, top, total, q, np.nan_to_num(k), np.nan_to_num(v), **rest)
    return after + 0 * np.repeat(v, q.shape[1] // v.shape[1], axis=1).sum(0), *others


def step_heads_tiled(sums: Array, top: Array, total: Array, q: Array, k: Array, v: Array, **rest: Any) -> Any:
    """Query head n reads key head n modulo K."""
    tiled = np.arange(q.shape[1]) % k.shape[1]
    return derive.flash_step(sums, top, total, q, k[:, tiled], v[:, tiled], **rest)


def step_scale_missing(**rest: Any) -> Any:
    """Scores are not scaled."""
    return derive.flash_step(**rest | {"scale": 1.0})


def step_unshifted(sums: Array, top: Array, total: Array, **tile: Any) -> Any:
    """The state is as if it had no maximum: exp of the scores as they are."""
    after, highest, all_of_it = derive.flash_step(sums, top, total, **tile)
    scale = np.exp(highest.astype(np.float32))
    return after * scale[..., None], 0 * highest, all_of_it * scale


def step_cap_after_mask(*, mask: Array, softcap: float, **rest: Any) -> Any:
    """The soft cap bends the mask too: what it adds is cut to the cap, and hidden keys weigh exp(-cap)."""
    bent = softcap * np.tanh(mask / softcap)
    return derive.flash_step(mask=bent, softcap=softcap, **rest)


def mean_of_parts(o_a: Array, lse_a: Array, o_b: Array, lse_b: Array) -> Any:
    """Two parts count alike, whatever they saw."""
    return (o_a + o_b) / 2, derive.merge_states(o_a, lse_a, o_b, lse_b)[1]


def merged_unshifted(o_a: Array, lse_a: Array, o_b: Array, lse_b: Array) -> Any:
    """exp of the log-sum-exps as they are."""
    a, b = (np.exp(lse.astype(np.float32)) for lse in (lse_a, lse_b))
    return (a[..., None] * o_a + b[..., None] * o_b) / (a + b)[..., None], np.log(a + b)


def blind_part_kept(o_a: Array, lse_a: Array, o_b: Array, lse_b: Array) -> Any:
    """What a part that saw nothing left in its output is multiplied by 0."""
    o, lse = derive.merge_states(o_a, lse_a, o_b, lse_b)
    return o + 0 * o_a + 0 * o_b, lse


def shares_of_total(o_a: Array, lse_a: Array, o_b: Array, lse_b: Array) -> Any:
    """Where neither part saw a key, 0 / 0."""
    o, lse = derive.merge_states(o_a, lse_a, o_b, lse_b)
    return o + np.where(lse == -np.inf, np.nan, 0)[..., None], lse


def base_2(o_a: Array, lse_a: Array, o_b: Array, lse_b: Array) -> Any:
    """Natural log-sum-exps are taken to be of base 2 (FlashInfer)."""
    o, lse = derive.merge_states(o_a, lse_a * math.log(2), o_b, lse_b * math.log(2))
    return o, lse / math.log(2)


def last_tile_lost(q: Array, k: Array, v: Array, *, tile: int, **rest: Any) -> Any:
    """Only whole tiles are read: the keys behind the last of them are hidden."""
    whole = np.arange(len(k)) < len(k) // tile * tile
    return derive.flash_attention(q, k, v, **rest | {"mask": np.tile(whole, (len(q), 1))})


def first_tile_again(q: Array, k: Array, v: Array, *, tile: int, **rest: Any) -> Any:
    """The second tile is read from where the first stands: a buffer that was not exchanged."""
    stale = np.arange(len(k))
    stale[tile : 2 * tile] -= tile
    return derive.flash_attention(q, k[stale], v[stale], **rest)


def tile_not_rescaled(q: Array, k: Array, v: Array, *, tile: int, **rest: Any) -> Any:
    """Each tile's weights are taken by its own maximum, and added up as they are."""
    (T, N, _), S = q.shape, len(k)
    sums, total = np.zeros((T, N, v.shape[-1])), np.zeros((T, N))
    visible = np.tri(T, S, S - T, dtype=bool)
    for start in range(0, S, tile):
        keys = slice(start, start + tile)
        empty = (np.zeros(sums.shape), np.full((T, N), -np.inf), np.zeros((T, N)))
        part, _, weight = derive.flash_step(*empty, q, k[keys], v[keys], mask=visible[:, keys], **rest)
        sums, total = sums + part, total + weight
    return sums / total[..., None]


def window_by_tiles(q: Array, k: Array, v: Array, *, tile: int, window: int, **rest: Any) -> Any:
    """The window leaves out whole tiles only."""
    (T, _, _), S = q.shape, len(k)
    first = np.maximum(np.arange(S - T, S) - window + 1, 0) // tile * tile
    return derive.flash_attention(q, k, v, mask=np.arange(S) >= first[:, None], **rest)


def blind_mean(*, tile: int, **rest: Any) -> Any:
    """A finite sentinel for -inf: a row that sees nothing gets the mean of v."""
    return attention.blind_row_mean(**rest)


def scale_missing(*, tile: int, **rest: Any) -> Any:
    """Scores are not scaled."""
    return attention.scale_missing(**rest)


def lse_base_2(*, tile: int, **rest: Any) -> Any:
    """The log-sum-exp to base 2 (FlashInfer)."""
    return attention.base_2(**rest)


def masked_row_mean(*, tile: int, **rest: Any) -> Any:
    """A row that its mask empties gets the mean of v."""
    return attention.masked_row_mean(**rest)


def heads_tiled(*, tile: int, **rest: Any) -> Any:
    """Query head n reads key head n modulo K."""
    return attention.heads_tiled(**rest)


def hidden_by_zero(*, tile: int, **rest: Any) -> Any:
    """Hidden keys get the weight 0 and are multiplied all the same."""
    return attention.hidden_by_zero(**rest)


def mask_shared_by_heads(*, tile: int, **rest: Any) -> Any:
    """The first head's mask serves all heads."""
    return attention.mask_shared_by_heads(**rest)


def window_plus_one(*, window: int, **rest: Any) -> Any:
    """The window counts the keys to the left of the query."""
    return derive.flash_attention(window=window + 1, **rest)
