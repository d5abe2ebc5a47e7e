"""Attention: every query token mixes the values of the key tokens that it may see."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from refimpl.contract import Array, Bool, Float, composed, op, require, whole, widen

__all__ = ["attention", "cross_attention"]


@op
def attention(
    q: Float[Array, "T N H"], k: Float[Array, "S K H"], v: Float[Array, "S K H2"], *,
    scale: float | None = None, causal: bool = True, mask: Bool[Array, "..."] | Float[Array, "..."] | None = None,
    window: int | None = None, softcap: float | None = None, return_lse: bool = False,
    sinks: Float[Array, " N"] | None = None, prefix: int = 0, chunk: int | None = None,
) -> Float[Array, "T N H2"] | tuple[Float[Array, "T N H2"], Float[Array, "T N"]]:
    """Mix for each query the values of the keys it may see: multi-head (N = K), grouped (K < N), multi-query (K = 1).

    The T queries are the last of the S tokens: query t stands at position t + S - T. If causal, it sees the keys up
    to its own position; a window leaves only the last ``window`` of these, itself included, and beside them the first
    ``prefix`` keys of the sequence (StreamingLLM); a chunk leaves only those of its own chunk of so many positions
    (Llama 4). A key is seen if all rules let it be. Query head n reads key head n // G. A mask [T S] or [N T S] is
    boolean (True: may see) or is added to the scores (-inf: may not see). Learned sinks (gpt-oss) are one more score
    for each query head, which takes its share of the softmax and brings no value; a sink of -inf is none.

    Math: o[t, n] = sum_s p[t, n, s] v[s, n // G],  p = softmax over the visible s, and sinks[n] beside them, of
        cap(scale q[t, n] . k[s, n // G]) + mask[n, t, s],  cap(x) = softcap tanh(x / softcap), scale = 1 / sqrt(H).
        With p = t + S - T, causal: s <= p,  window: s > p - window or s < prefix,  chunk: s // chunk = p // chunk.
    Cost: 2 T S N (H + H2) flop, about half of it masked when causal, over (T N + S K) (H + H2) elements: bound by the
        bytes of k and v when T = 1, by arithmetic in prefill. This plain form also holds N T S scores.
    Numerics: float32 or wider inside, one cast of o. What a query may not see is left out, not multiplied by 0, so
        NaN in a hidden slot is harmless. A query that sees nothing gets o = 0 and lse = -inf, whatever its sink. The
        lse (natural log of the summed exponentials of what is seen) stays float32 or wider; to base 2 it is
        lse / log(2), and with the sink in it, np.logaddexp(lse, sinks). Keys keep the positions they were rotated by.
    Constraints:
        (C1) K divides N.
        (C2) q and k agree on H; k and v agree on S and K.
        (C3) the mask has shape [T S] or [N T S].
        (C4) a window is at least 1, and causal.
        (C5) a softcap is positive.
        (C6) sinks are one for each query head.
        (C7) a prefix is at least 0, and 0 where there is no window.
        (C8) a chunk is at least 1, and causal.
    Source: Vaswani et al., Attention is all you need, 2017; Ainslie et al., GQA, 2023; softcap: Gemma 2, 2024;
        prefix: Xiao et al., StreamingLLM, 2023; sinks: OpenAI, gpt-oss, 2025; chunk: transformers, Llama 4, 2025.

    >>> q, k, v = np.zeros((2, 1, 1)), np.zeros((3, 1, 1)), np.array([[[1.0]], [[3.0]], [[8.0]]])
    >>> attention(q, k, v)[:, 0, 0]
    array([2., 4.])
    """
    require(q.ndim == k.ndim == v.ndim == 3, "C2", f"q {q.shape}, k {k.shape}, v {v.shape} are not three axes each")
    (T, N, H), (S, K, _), H2 = q.shape, k.shape, v.shape[-1]
    require(K > 0 and N % K == 0, "C1", f"{K} key/value heads do not divide {N} query heads")
    require(k.shape[-1] == H and v.shape[:-1] == (S, K), "C2", f"q {q.shape}, k {k.shape}, v {v.shape} do not fit")
    require(mask is None or mask.shape in ((T, S), (N, T, S)), "C3", f"mask is not [{T} {S}] or [{N} {T} {S}]")
    require(window is None or (whole("window", window) >= 1 and causal), "C4", f"window {window}, causal {causal}")
    require(softcap is None or softcap > 0, "C5", f"softcap {softcap} is not positive")
    require(sinks is None or sinks.shape == (N,), "C6", f"sinks {getattr(sinks, 'shape', None)} for {N} query heads")
    require(whole("prefix", prefix) == 0 or (prefix > 0 and bool(window)), "C7", f"prefix {prefix}, window {window}")
    require(chunk is None or (whole("chunk", chunk) >= 1 and causal), "C8", f"chunk {chunk}, causal {causal}")
    G, mask = N // K, mask if mask is None or mask.ndim == 2 else mask.reshape(K, N // K, T, S)
    rows = widen(q).reshape(T, K, G, H).transpose(1, 2, 0, 3).reshape(K, G * T, H)  # k is read once for all G T
    k_KHS, v_KSH = widen(k).transpose(1, 2, 0), widen(v).transpose(1, 0, 2)
    with np.errstate(all="ignore"):  # hidden slots may hold NaN and infinity
        scores = (rows @ k_KHS).reshape(K, G, T, S) * (H**-0.5 if scale is None else float(scale))
        scores = scores if softcap is None else float(softcap) * np.tanh(scores / float(softcap))
        scores = scores if mask is None or mask.dtype == bool else scores + widen(mask)
        visible = np.broadcast_to(_visible(T, S, causal, window, prefix, chunk, mask), scores.shape)
        probs, lse = _visible_softmax(scores, visible, None if sinks is None else widen(sinks).reshape(K, G, 1, 1))
        o_KGTH = _visible_sum(probs, visible, v_KSH)
    o = o_KGTH.transpose(2, 0, 1, 3).reshape(T, N, H2).astype(q.dtype, copy=False)
    return (o, lse.transpose(2, 0, 1).reshape(T, N)) if return_lse else o


@composed
def cross_attention(
    x: Float[Array, "T D"], memory: Float[Array, "S memory_width"], weights: Mapping[str, Array], num_heads: int,
    ops: Any, *, mask: Bool[Array, "..."] | Float[Array, "..."] | None = None, scale: float | None = None,
) -> Float[Array, "T D"]:
    """Let each token of a decoder mix what an encoder made of another sequence, its memory (T5, BART).

    Queries come from x, keys and values from the memory, and every token sees all of it; where the memory is padded, a
    mask [T S] hides that. ``weights`` are w_q, w_k, w_v and w_o, and biases b_q ... where a model has them (BART);
    ``ops`` holds the operations by name.

    Math: y = attention(x w_q^T, memory w_k^T, memory w_v^T) w_o^T, not causal. T5 has scale = 1.
    Cost: 2 T D and 2 S memory_width flop for each of the columns of q, and of k and v; attention's own. Keys and values
        depend on the memory alone: a decoder makes them once, and keeps them for all its steps.
    Source: Vaswani et al., Attention is all you need, 2017, section 3.2.3.

    >>> from types import SimpleNamespace
    >>> from refimpl.basics.linear import linear
    >>> ops = SimpleNamespace(attention=attention, linear=linear)
    >>> weights = {"w_q": np.zeros((1, 1)), "w_k": np.zeros((1, 1)), "w_v": np.ones((1, 1)), "w_o": np.ones((1, 1))}
    >>> cross_attention(np.ones((2, 1)), np.array([[1.0], [3.0], [8.0]]), weights, 1, ops)[:, 0]
    array([4., 4.])
    """
    H = len(weights["w_q"]) // num_heads
    mapped = (
        ops.linear(tokens, weights[f"w_{name}"], weights.get(f"b_{name}"))
        for name, tokens in (("q", x), ("k", memory), ("v", memory))
    )
    q, k, v = (columns.reshape(len(columns), columns.shape[1] // H, H) for columns in mapped)
    o = ops.attention(q, k, v, causal=False, mask=mask, scale=scale)
    return ops.linear(o.reshape(len(x), num_heads * H), weights["w_o"], weights.get("b_o"))


def _visible(
    T: int, S: int, causal: bool, window: int | None, prefix: int, chunk: int | None, mask: Array | None
) -> Array:
    key, own = np.arange(S), np.arange(S - T, S)[:, None]  # the positions of keys and queries
    visible = key <= own if causal else np.ones((T, S), bool)
    if window is not None:
        visible = visible & ((own - key < int(window)) | (key < int(prefix)))
    if chunk is not None:  # one that is longer than all is as long
        visible = visible & (key // min(int(chunk), S + T) == own // min(int(chunk), S + T))
    return visible if mask is None else visible & (mask if mask.dtype == bool else mask > -np.inf)


def _visible_softmax(scores: Array, visible: Array, sinks: Array | None) -> tuple[Array, Array]:
    """Return softmax, its sink beside it, and logsumexp over the visible keys of each row; 0 and -inf without any."""
    sees = visible.any(-1, keepdims=True)
    scores = np.where(visible, scores, -np.inf)
    shift = np.where(sees, scores.max(-1, keepdims=True, initial=-np.inf), 0)
    weights = np.exp(scores - shift)
    total = weights.sum(-1, keepdims=True)
    shared = total if sinks is None else total + np.exp(sinks - shift)
    return weights / np.where(sees, shared, 1), (shift + np.log(total))[..., 0]


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
