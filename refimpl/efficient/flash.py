"""Attention tile by tile: a running softmax, so that the scores of a row are never held together."""

import numpy as np

from refimpl.contract import Array, Bool, Float, op, require, whole, widen

__all__ = ["flash_step", "merge_states", "flash_attention"]


@op
def flash_step(
    sums: Float[Array, "T N H2"], top: Float[Array, "T N"], total: Float[Array, "T N"],
    q: Float[Array, "T N H"], k: Float[Array, "S K H"], v: Float[Array, "S K H2"], *,
    scale: float | None = None, mask: Bool[Array, "..."] | Float[Array, "..."] | None = None,
    softcap: float | None = None,
) -> tuple[Float[Array, "T N H2"], Float[Array, "T N"], Float[Array, "T N"]]:
    """Take one tile of S keys and values into the running softmax of every query.

    The state of a query is what it needs to know of the keys that it saw: the largest score, ``top``; the sum of the
    weights exp(score - top), ``total``; and the values summed with these weights, ``sums``. Before the first tile it
    is 0, -inf, 0. Scores and the mask are those of attention; the mask says all that is hidden.

    Math: with score[s] as in attention, over the visible s of the tile,
        top' = max(top, max_s score[s]),  w[s] = exp(score[s] - top'),  r = exp(top - top'),
        total' = r total + sum_s w[s],  sums' = r sums + sum_s w[s] v[s].
    Cost: 2 T S N (H + H2) flop over (T N + S K) (H + H2) elements; the state, T N (H2 + 2), stays on the chip.
    Numerics: the state is float32 or wider, whatever q, k and v are. No weight exceeds 1. A tile in which a query sees
        nothing leaves its state as it is, to the bit. A score of NaN leaves top, and makes total and sums NaN.
    Constraints:
        (C1) K divides N.
        (C2) q and k agree on H; k and v agree on S and K.
        (C3) the mask has shape [T S] or [N T S].
        (C4) the state is [T N H2], [T N], [T N].
        (C5) a softcap is positive.
    Source: Milakov, Gimelshein, Online normalizer calculation for softmax, 2018; Dao et al., FlashAttention, 2022.

    >>> q, k, v = np.zeros((1, 1, 1)), np.zeros((2, 1, 1)), np.array([[[2.0]], [[4.0]]])
    >>> sums, top, total = flash_step(np.zeros((1, 1, 1)), np.full((1, 1), -np.inf), np.zeros((1, 1)), q, k, v)
    >>> float(sums[0, 0, 0]), float(top[0, 0]), float(total[0, 0])
    (6.0, 0.0, 2.0)
    """
    _check(q, k, v, mask, softcap)
    (T, N, H), G, H2 = q.shape, q.shape[1] // k.shape[1], v.shape[-1]
    fits = sums.shape == (T, N, H2) and top.shape == total.shape == (T, N)
    require(fits, "C4", f"the state {sums.shape}, {top.shape}, {total.shape} is not [{T} {N} {H2}], [{T} {N}] twice")
    sums, top, total = widen(sums), widen(top), widen(total)
    k_NHS = np.repeat(widen(k), G, axis=1).transpose(1, 2, 0)
    v_NSH = np.repeat(widen(v), G, axis=1).transpose(1, 0, 2)
    with np.errstate(all="ignore"):  # hidden slots may hold NaN and infinity
        scores_NTS = widen(q).transpose(1, 0, 2) @ k_NHS * (H**-0.5 if scale is None else float(scale))
        if softcap is not None:
            scores_NTS = float(softcap) * np.tanh(scores_NTS / float(softcap))
        scores_NTS, visible_NTS = _masked(scores_NTS, mask)
        highest = np.fmax(top, np.fmax.reduce(scores_NTS, axis=-1, initial=-np.inf).T)
        shift = np.where(highest > -np.inf, highest, 0)  # exp(-inf) is 0, -inf minus itself is NaN
        weights_NTS = np.where(visible_NTS, np.exp(scores_NTS - shift.T[..., None]), 0)
        kept = np.exp(top - shift)
        terms = np.where(visible_NTS[..., None], weights_NTS[..., None] * v_NSH[:, None], 0)
        sums = kept[..., None] * sums + terms.sum(2).transpose(1, 0, 2)
    return sums, highest, kept * total + weights_NTS.sum(-1).T


@op
def merge_states(
    o_a: Float[Array, "T N H2"], lse_a: Float[Array, "T N"], o_b: Float[Array, "T N H2"], lse_b: Float[Array, "T N"],
) -> tuple[Float[Array, "T N H2"], Float[Array, "T N"]]:
    """Join two results of attention over different keys into that over all of them.

    Math: lse = log(exp(lse_a) + exp(lse_b)),  o = exp(lse_a - lse) o_a + exp(lse_b - lse) o_b.
    Cost: about 4 T N H2 flop over 3 T N H2 elements: bound by memory.
    Numerics: float32 or wider inside, one cast of o; lse stays float32 or wider. Commutative, and associative but for
        rounding. A part that saw nothing (its lse is -inf) is left out, whatever its o holds; two of them give 0, -inf.
    Constraints:
        (C1) the parts have the same shapes, [T N H2] and [T N].
    Source: Dao, FlashAttention-2, 2023 (the split over keys); Ye et al., FlashInfer, 2025 (recursive attention).

    >>> o, lse = merge_states(np.full((1, 1, 1), 2.0), np.zeros((1, 1)), np.full((1, 1, 1), 4.0), np.zeros((1, 1)))
    >>> float(o[0, 0, 0]), round(float(lse[0, 0]), 6)
    (3.0, 0.693147)
    """
    fits = o_a.shape == o_b.shape and lse_a.shape == lse_b.shape == o_a.shape[:-1]
    require(fits, "C1", f"parts {o_a.shape}, {lse_a.shape} and {o_b.shape}, {lse_b.shape}")
    a, b = widen(lse_a), widen(lse_b)
    top = np.maximum(a, b)
    with np.errstate(all="ignore"):  # where neither part saw a key, log(0) is -inf, and 0 / 0 is left out
        shift = np.where(top == -np.inf, 0, top)
        weight_a, weight_b = np.exp(a - shift), np.exp(b - shift)
        total = weight_a + weight_b
        lse = shift + np.log(total)
        o = _unless(a == -np.inf, widen(o_a) * (weight_a / total)[..., None])
        o = o + _unless(b == -np.inf, widen(o_b) * (weight_b / total)[..., None])
    return o.astype(o_a.dtype, copy=False), lse


@op
def flash_attention(
    q: Float[Array, "T N H"], k: Float[Array, "S K H"], v: Float[Array, "S K H2"], *,
    tile: int = 32, scale: float | None = None, causal: bool = True,
    mask: Bool[Array, "..."] | Float[Array, "..."] | None = None,
    window: int | None = None, softcap: float | None = None, return_lse: bool = False,
    sinks: Float[Array, " N"] | None = None, prefix: int = 0, chunk: int | None = None,
) -> Float[Array, "T N H2"] | tuple[Float[Array, "T N H2"], Float[Array, "T N"]]:
    """Attend as attention does, ``tile`` keys at a time.

    Math: flash_step over the tiles [0, tile), [tile, 2 tile), ... of keys; then
        o[t, n] = sums[t, n] / (total[t, n] + exp(sinks[n] - top[t, n])),  lse = top + log(total).
    Cost: the flop of attention, but for the tiles that no query sees; it holds N T tile scores instead of N T S. A
        kernel that keeps a tile of queries on the chip reads k and v once for each of these.
    Numerics: as attention: float32 or wider inside, one cast of o; a query that sees nothing gets o = 0, lse = -inf.
        The tile changes the order of the sums, and nothing else.
    Constraints:
        (C1) K divides N.
        (C2) q and k agree on H; k and v agree on S and K.
        (C3) the mask has shape [T S] or [N T S].
        (C4) a window is at least 1, and causal.
        (C5) a softcap is positive.
        (C6) a tile holds at least 1 key.
        (C7) sinks are one for each query head.
        (C8) a prefix is at least 0, and 0 where there is no window.
        (C9) a chunk is at least 1, and causal.
    Source: Dao et al., FlashAttention, 2022; Dao, FlashAttention-2, 2023; sinks: OpenAI, gpt-oss, 2025.

    >>> q, k, v = np.zeros((2, 1, 1)), np.zeros((3, 1, 1)), np.array([[[1.0]], [[3.0]], [[8.0]]])
    >>> flash_attention(q, k, v, tile=2)[:, 0, 0]
    array([2., 4.])
    """
    _check(q, k, v, mask, softcap)
    require(window is None or (whole("window", window) >= 1 and causal), "C4", f"window {window}, causal {causal}")
    require(whole("tile", tile) >= 1, "C6", f"a tile of {tile} keys")
    (T, N, _), S, H2 = q.shape, len(k), v.shape[-1]
    require(sinks is None or sinks.shape == (N,), "C7", f"sinks {getattr(sinks, 'shape', None)} for {N} query heads")
    require(whole("prefix", prefix) == 0 or (prefix > 0 and bool(window)), "C8", f"prefix {prefix}, window {window}")
    require(chunk is None or (whole("chunk", chunk) >= 1 and causal), "C9", f"chunk {chunk}, causal {causal}")
    dtype = widen(q).dtype
    sums, top, total = np.zeros((T, N, H2), dtype), np.full((T, N), -np.inf, dtype), np.zeros((T, N), dtype)
    for start in range(0, S, int(tile)):
        keys = slice(start, min(start + int(tile), S))
        visible = _visible(T, S, keys, causal, window, prefix, chunk)
        if visible.any():
            rules = {"scale": scale, "softcap": softcap, "mask": _narrowed(mask, keys, visible)}
            sums, top, total = flash_step(sums, top, total, q, k[keys], v[keys], **rules)
    with np.errstate(all="ignore"):  # a query that saw nothing: log(0) is -inf, and 0 / 0 is left out
        shared = total if sinks is None else total + np.exp(widen(sinks) - top)
        o = _unless(total == 0, sums / shared[..., None]).astype(q.dtype, copy=False)
        lse = top + np.log(total)
    return (o, lse) if return_lse else o


def _check(q: Array, k: Array, v: Array, mask: Array | None, softcap: float | None) -> None:
    require(q.ndim == k.ndim == v.ndim == 3, "C2", f"q {q.shape}, k {k.shape}, v {v.shape} are not three axes each")
    (T, N, H), (S, K, _) = q.shape, k.shape
    require(K > 0 and N % K == 0, "C1", f"{K} key/value heads do not divide {N} query heads")
    require(k.shape[-1] == H and v.shape[:-1] == (S, K), "C2", f"q {q.shape}, k {k.shape}, v {v.shape} do not fit")
    require(mask is None or mask.shape in ((T, S), (N, T, S)), "C3", f"mask is not [{T} {S}] or [{N} {T} {S}]")
    require(softcap is None or softcap > 0, "C5", f"softcap {softcap} is not positive")


def _masked(scores: Array, mask: Array | None) -> tuple[Array, Array]:
    """Return scores [N T S] with the mask added and -inf where it hides, and what is visible."""
    if mask is None:
        return scores, np.ones(scores.shape, bool)
    if mask.dtype == bool:
        visible = np.broadcast_to(mask, scores.shape)
    else:
        visible, scores = np.broadcast_to(mask > -np.inf, scores.shape), scores + widen(mask)
    return np.where(visible, scores, -np.inf), visible


def _visible(
    T: int, S: int, keys: slice, causal: bool, window: int | None, prefix: int, chunk: int | None
) -> Array:
    """Return which keys of a tile each query sees: query t stands at position t + S - T."""
    key, own = np.arange(keys.start, keys.stop), np.arange(S - T, S)[:, None]
    visible = key <= own if causal else np.ones((T, len(key)), bool)
    if window is not None:
        visible = visible & ((own - key < int(window)) | (key < int(prefix)))
    if chunk is not None:  # one that is longer than all is as long
        visible = visible & (key // min(int(chunk), S + T) == own // min(int(chunk), S + T))
    return visible


def _narrowed(mask: Array | None, keys: slice, visible: Array) -> Array:
    """Return the mask of a tile, with all that is hidden in it."""
    if mask is None:
        return visible
    return mask[..., keys] & visible if mask.dtype == bool else np.where(visible, widen(mask[..., keys]), -np.inf)


def _unless(blind: Array, o: Array) -> Array:
    """Return 0 for the queries that saw nothing, and ``o`` for the others."""
    return np.where(blind[..., None], 0, o)
