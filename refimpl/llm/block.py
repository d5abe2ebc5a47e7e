"""The pre-norm transformer block, written once over a namespace of operations."""

from collections.abc import Mapping
from typing import Any

from refimpl.contract import Array, Float, composed
from refimpl.llm.kv_cache import KVCache

__all__ = ["transformer_block"]


@composed
def transformer_block(
    x: Float[Array, "T D"], weights: Mapping[str, Array], spec: Any, layer: int, cache: KVCache,
    cos: Float[Array, "T J"] | None, sin: Float[Array, "T J"] | None, ops: Any,
) -> tuple[Float[Array, "T D"], KVCache]:
    """Run the T newest tokens of a sequence through one layer, and append their keys and values to the cache.

    ``weights`` are those of the layer by their short names (``w_q``, ``attention_norm.gain``); ``spec`` is a ModelSpec;
    ``ops`` holds the operations by name; ``cos`` and ``sin`` are None where positions are learned.

    Math: h = x + attend(norm(x)),  y = h + mlp(norm(h)).
    Cost: the bytes of the layer's weights in decode, 2 T flop a weight in prefill, and attention's own.
    Source: Radford et al., GPT-2, 2019; Touvron et al., LLaMA, 2023.

    >>> import numpy as np
    >>> from types import SimpleNamespace
    >>> from refimpl.basics import linear, norm
    >>> from refimpl.llm import attention, kv_cache, mlp
    >>> ops = SimpleNamespace(**vars(linear) | vars(norm) | vars(attention) | vars(kv_cache) | vars(mlp))
    >>> spec = SimpleNamespace(num_heads=1, num_kv_heads=1, head_dim=2, norm="rms", norm_eps=1e-5, windows=(None,),
    ...                        activation="relu")
    >>> weights = {name: np.zeros((2, 2)) for name in ("w_q", "w_k", "w_v", "w_o", "w_up", "w_down")}
    >>> weights |= {"attention_norm.gain": np.ones(2), "mlp_norm.gain": np.ones(2)}
    >>> x, cache = transformer_block(np.ones((3, 2)), weights, spec, 0, kv_cache.new_cache(4, 1, 2), None, None, ops)
    >>> bool((x == 1).all()), cache.length  # weights of 0 pass the residual stream on
    (True, 3)
    """
    normed = _norm(x, "attention_norm", weights, spec, ops)
    attended, cache = _attend(normed, weights, spec, layer, cache, cos, sin, ops)
    x = x + attended
    return x + _mlp(_norm(x, "mlp_norm", weights, spec, ops), weights, spec, ops), cache


def _attend(
    x: Array, weights: Mapping[str, Array], spec: Any, layer: int, cache: KVCache, cos: Array, sin: Array, ops: Any
) -> tuple[Array, KVCache]:
    T, N, K, H = len(x), spec.num_heads, spec.num_kv_heads, spec.head_dim
    q = ops.linear(x, weights["w_q"], weights.get("b_q")).reshape(T, N, H)
    k = ops.linear(x, weights["w_k"], weights.get("b_k")).reshape(T, K, H)
    v = ops.linear(x, weights["w_v"], weights.get("b_v")).reshape(T, K, H)
    if "q_norm.gain" in weights:  # Qwen 3 normalises every head
        q = ops.rms_norm(q, weights["q_norm.gain"], spec.norm_eps)
        k = ops.rms_norm(k, weights["k_norm.gain"], spec.norm_eps)
    if cos is not None:
        q = ops.rope(q, cos, sin, interleaved=spec.rope.interleaved)
        k = ops.rope(k, cos, sin, interleaved=spec.rope.interleaved)
    cache = ops.cache_append(cache, k, v)
    o = ops.attention(q, cache.k[: cache.length], cache.v[: cache.length], window=spec.windows[layer])
    return ops.linear(o.reshape(T, N * H), weights["w_o"], weights.get("b_o")), cache


def _mlp(x: Array, weights: Mapping[str, Array], spec: Any, ops: Any) -> Array:
    biases = weights.get("b_up"), weights.get("b_down")
    if "w_gate" not in weights:
        return ops.mlp(x, weights["w_up"], weights["w_down"], *biases, activation=spec.activation)
    gate = weights["w_gate"], weights["w_up"], weights["w_down"], weights.get("b_gate")
    return ops.gated_mlp(x, *gate, *biases, activation=spec.activation)


def _norm(x: Array, name: str, weights: Mapping[str, Array], spec: Any, ops: Any) -> Array:
    gain = weights[name + ".gain"]
    if spec.norm == "layer":
        return ops.layer_norm(x, gain, weights.get(name + ".bias"), spec.norm_eps)
    return ops.rms_norm(x, gain, spec.norm_eps)
