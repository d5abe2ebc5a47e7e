"""Attention: every query token mixes the values of the key tokens that it may see."""

import numpy as np

from refimpl.contract import Array, Bool, Float, op, require, widen

__all__ = ["attention"]


@op
def attention(
    q: Float[Array, "T N H"], k: Float[Array, "S K H"], v: Float[Array, "S K H2"], *,
    scale: float | None = None, causal: bool = True, mask: Bool[Array, "..."] | Float[Array, "..."] | None = None,
    window: int | None = None, softcap: float | None = None, return_lse: bool = False,
) -> Float[Array, "T N H2"] | tuple[Float[Array, "T N H2"], Float[Array, "T N"]]:
    """Mix for each query the values of the keys it may see: multi-head (N = K), grouped (K < N), multi-query (K = 1).

    The T queries are the last of the S tokens: query t stands at position t + S - T. If causal, it sees the keys up
    to its own position; a window leaves only the last ``window`` of these, itself included. Query head n reads key
    head n // G. A mask [T S] or [N T S] is boolean (True: may see) or is added to the scores (-inf: may not see).

    Math: o[t, n] = sum_s p[t, n, s] v[s, n // G],  p = softmax over the visible s of
        cap(scale q[t, n] . k[s, n // G]) + mask[n, t, s],  cap(x) = softcap tanh(x / softcap), scale = 1 / sqrt(H).
    Cost: 2 T S N (H + H2) flop, about half of it masked when causal, over (T N + S K) (H + H2) elements: bound by the
        bytes of k and v when T = 1, by arithmetic in prefill. This plain form also holds N T S scores.
    Numerics: float32 or wider inside, one cast of o. What a query may not see is left out, not multiplied by 0, so
        NaN in a hidden slot is harmless. A query that sees nothing gets o = 0 and lse = -inf. The lse (natural log
        of the summed exponentials) stays float32 or wider.
    Constraints:
        (C1) K divides N.
        (C2) q and k agree on H; k and v agree on S and K.
        (C3) the mask has shape [T S] or [N T S].
        (C4) a window is at least 1, and causal.
        (C5) a softcap is positive.
    Source: Vaswani et al., Attention is all you need, 2017; Ainslie et al., GQA, 2023; softcap: Gemma 2, 2024.

    >>> q, k, v = np.zeros((2, 1, 1)), np.zeros((3, 1, 1)), np.array([[[1.0]], [[3.0]], [[8.0]]])
    >>> attention(q, k, v)[:, 0, 0]
    array([2., 4.])
    """
    (T, N, H), (S, K, _), H2 = q.shape, k.shape, v.shape[-1]
    require(K > 0 and N % K == 0, "C1", f"{K} key/value heads do not divide {N} query heads")
    require(k.shape[-1] == H and v.shape[:-1] == (S, K), "C2", f"q {q.shape}, k {k.shape}, v {v.shape} do not fit")
    require(mask is None or mask.shape in ((T, S), (N, T, S)), "C3", f"mask is not [{T} {S}] or [{N} {T} {S}]")
    require(window is None or (window >= 1 and causal), "C4", f"window {window}, causal {causal}")
    require(softcap is None or softcap > 0, "C5", f"softcap {softcap} is not positive")
    G = N // K
    if mask is not None and mask.ndim == 3:
        mask = mask.reshape(K, G, T, S)
    rows = widen(q).reshape(T, K, G, H).transpose(1, 2, 0, 3).reshape(K, G * T, H)  # k is read once for all G T
    k_KHS, v_KSH = widen(k).transpose(1, 2, 0), widen(v).transpose(1, 0, 2)
    with np.errstate(all="ignore"):  # hidden slots may hold NaN and infinity
        scores = (rows @ k_KHS).reshape(K, G, T, S) * (H**-0.5 if scale is None else scale)
        if softcap is not None:
            scores = softcap * np.tanh(scores / softcap)
        if mask is not None and mask.dtype != bool:
            scores = scores + widen(mask)
        visible = np.broadcast_to(_visible(T, S, causal, window, mask), scores.shape)
        probs, lse = _visible_softmax(scores, visible)
        o_KGTH = _visible_sum(probs, visible, v_KSH)
    o = o_KGTH.transpose(2, 0, 1, 3).reshape(T, N, H2).astype(q.dtype, copy=False)
    return (o, lse.transpose(2, 0, 1).reshape(T, N)) if return_lse else o


def _visible(T: int, S: int, causal: bool, window: int | None, mask: Array | None) -> Array:
    ahead = np.arange(S) - np.arange(S - T, S)[:, None]  # how far key s lies ahead of query t
    visible = ahead <= 0 if causal else np.ones((T, S), bool)
    if window is not None:
        visible = visible & (ahead > -window)
    if mask is not None:
        visible = visible & (mask if mask.dtype == bool else mask > -np.inf)
    return visible


def _visible_softmax(scores: Array, visible: Array) -> tuple[Array, Array]:
    """Return softmax and logsumexp over the visible keys of each row; zeros and -inf for a row without any."""
    sees = visible.any(-1, keepdims=True)
    scores = np.where(visible, scores, -np.inf)
    shift = np.where(sees, scores.max(-1, keepdims=True, initial=-np.inf), 0)
    weights = np.exp(scores - shift)
    total = weights.sum(-1, keepdims=True)
    return weights / np.where(sees, total, 1), (shift + np.log(total))[..., 0]


def _visible_sum(probs: Array, visible: Array, v: Array) -> Array:
    """Sum v [K S H] by probs [K G T S]; NaN and infinity in v reach the queries that see them and no other."""
    K, G, T, S = probs.shape
    rows, shape = probs.reshape(K, G * T, S), (K, G, T, v.shape[-1])
    o = (rows @ v).reshape(shape)
    if np.isfinite(o).all():  # 0 times NaN or infinity would have shown
        return o
    finite = np.isfinite(v)
    o = (rows @ np.where(finite, v, 0)).reshape(shape)
    for s in np.flatnonzero(~finite.all((0, 2))):
        reached = visible[..., s, None] & ~finite[:, None, None, s]
        o = o + np.where(reached, probs[..., s, None] * v[:, None, None, s], 0)
    return o
