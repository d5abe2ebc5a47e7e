"""One layer of a decoder, whatever its kind, written once over a namespace of operations."""

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np

from refimpl.contract import Array, Float, composed
from refimpl.llm.kv_cache import KVCache
from refimpl.models.spec import AttentionSpec, ModelSpec, MoeSpec

__all__ = ["Part", "Table", "run_layer", "run_norm"]

Table: TypeAlias = tuple[Float[Array, "T J"], Float[Array, "T J"]] | None  # cosines and sines; None: nothing turns


class Part(Mapping[str, Array]):
    """The weights whose names begin with a prefix, under the rest of their names; each is read when it is asked for.

    >>> Part({"layers.0.w_q": 1, "layers.1.w_q": 2}, "layers.1.")["w_q"]
    2
    """

    def __init__(self, weights: Mapping[str, Array], prefix: str) -> None:
        self._weights, self._prefix = weights, prefix

    def __getitem__(self, name: str) -> Array:
        return self._weights[self._prefix + name]

    def __contains__(self, name: object) -> bool:
        return f"{self._prefix}{name}" in self._weights

    def __iter__(self) -> Iterator[str]:
        return (name.removeprefix(self._prefix) for name in self._weights if name.startswith(self._prefix))

    def __len__(self) -> int:
        return sum(1 for _ in self)


@composed
def run_layer(
    x: Float[Array, "T D"], weights: Mapping[str, Array], spec: ModelSpec, number: int, cache: KVCache, table: Table,
    ops: Any,
) -> tuple[Float[Array, "T D"], KVCache]:
    """Run the T newest tokens of a sequence through one layer, and append their keys and values to the cache.

    ``weights`` are those of the layer by their short names (``w_q``, ``attention_norm.gain``): a norm without a gain
    is not there. ``ops`` holds the operations by name; ``table`` turns queries and keys.

    Math: h = x + r norm(attend(norm(x))),  y = h + r norm(mlp(norm(h))), r the residual scale;
        parallel: y = x + r (attend(norm(x)) + mlp(norm(x))), each with a norm of its own.
    Cost: the bytes of the layer's weights in decode, 2 T flop a weight in prefill, and attention's own.
    Source: Radford et al., GPT-2, 2019; Touvron et al., LLaMA, 2023; Gemma 2, 2024 (sandwich);
        OLMo 2, 2024 (after); Black et al., GPT-NeoX-20B, 2022 (parallel).

    >>> from refimpl import operations
    >>> from refimpl.llm.kv_cache import new_cache
    >>> from refimpl.models.spec import LayerSpec, MlpSpec
    >>> spec = ModelSpec("", 5, 2, (LayerSpec(AttentionSpec(1, 1, 2), MlpSpec(2, "relu", False)),), 8)
    >>> weights = {name: np.zeros((2, 2)) for name in ("w_q", "w_k", "w_v", "w_o", "w_up", "w_down")}
    >>> x, cache = run_layer(np.ones((3, 2)), weights, spec, 0, new_cache(4, 1, 2), None, operations)
    >>> bool((x == 1).all()), cache.length  # weights of 0 pass the residual stream on
    (True, 3)
    """
    layer, scale = spec.layers[number], x.dtype.type(spec.residual_scale)
    normed = run_norm(x, "attention_norm", weights, spec, ops)
    attended, cache = _attend(normed, weights, layer.mixer, spec, cache, table, ops)
    h = x + scale * run_norm(attended, "attention_post_norm", weights, spec, ops)
    normed = run_norm(x if layer.norms == "parallel" else h, "mlp_norm", weights, spec, ops)
    fed = (_mix if isinstance(layer.network, MoeSpec) else _mlp)(normed, weights, layer.network, ops)
    return h + scale * run_norm(fed, "mlp_post_norm", weights, spec, ops), cache


@composed
def run_norm(
    x: Float[Array, "..."], name: str, weights: Mapping[str, Array], spec: ModelSpec, ops: Any
) -> Float[Array, "..."]:
    """Normalise rows by the model's kind of norm and the gain of that name; without one they stay as they are.

    Source: Ba et al., Layer normalization, 2016; Zhang and Sennrich, Root mean square layer normalization, 2019.
    """
    gain, bias = weights.get(name + ".gain"), weights.get(name + ".bias")
    if gain is None:
        return x
    if spec.norm == "layer":
        return ops.layer_norm(x, gain, bias, spec.norm_eps)
    return ops.rms_norm(x, gain, spec.norm_eps, gain_offset=spec.gain_offset)


def _attend(
    x: Array, weights: Mapping[str, Array], mixer: AttentionSpec, spec: ModelSpec, cache: KVCache, table: Table,
    ops: Any,
) -> tuple[Array, KVCache]:
    T, N, K, H = len(x), mixer.num_heads, mixer.num_kv_heads, mixer.head_dim
    q, k, v = (ops.linear(x, weights[f"w_{name}"], weights.get(f"b_{name}")) for name in "qkv")
    if mixer.qk_norm == "row":  # OLMo 2: all heads of a token together
        q, k = (run_norm(row, f"{name}_norm", weights, spec, ops) for name, row in (("q", q), ("k", k)))
    q, k, v = q.reshape(T, N, H), k.reshape(T, K, H), v.reshape(T, K, H)
    if mixer.qk_norm == "head":
        q, k = (run_norm(heads, f"{name}_norm", weights, spec, ops) for name, heads in (("q", q), ("k", k)))
    if mixer.rope is not None and table is not None:
        q, k = (ops.rope(heads, *table, interleaved=mixer.rope.interleaved) for heads in (q, k))
    cache = ops.cache_append(cache, k, v)
    if mixer.temperature is not None:
        q = q * _growth(cache.length - T, T, *mixer.temperature).astype(q.dtype)
    o = ops.attention(
        q, cache.k[: cache.length], cache.v[: cache.length], window=mixer.window, chunk=mixer.chunk, scale=mixer.scale,
        softcap=mixer.softcap, sinks=weights.get("sinks"),
    )  # fmt: skip
    return ops.linear(o.reshape(T, N * H), weights["w_o"], weights.get("b_o")), cache


def _growth(start: int, T: int, floor: float, scale: float) -> Array:
    """Return by how much queries grow with their position, so that attention stays sharp over long texts."""
    return (1 + scale * np.log1p(np.floor((np.arange(start, start + T) + 1.0) / floor)))[:, None, None]


def _mlp(x: Array, weights: Mapping[str, Array], network: Any, ops: Any) -> Array:
    biases = weights.get("b_up"), weights.get("b_down")
    if not network.gated:
        return ops.mlp(x, weights["w_up"], weights["w_down"], *biases, activation=network.activation)
    gate = weights["w_gate"], weights["w_up"], weights["w_down"], weights.get("b_gate")
    return ops.gated_mlp(x, *gate, *biases, activation=network.activation)


def _mix(x: Array, weights: Mapping[str, Array], moe: Any, ops: Any) -> Array:
    logits, settings = ops.linear(x, weights["router"], weights.get("router.bias")), dict[str, Any](moe.routing)
    if moe.correction:
        settings["bias"] = weights["router.correction"]
    ids, shares = getattr(ops, moe.router)(logits, moe.num_active, **settings)
    stacks = [weights.get(f"experts.{kind}_{name}") for kind in "wb" for name in ("gate", "up", "down")]
    how = {"activation": moe.activation, "limit": moe.limit, "weight_inputs": moe.weight_inputs}
    y = ops.grouped_moe(x, ids, shares, *stacks, **how)
    if not moe.shared_size:
        return y
    shared = [weights.get(f"shared.w_{name}") for name in ("gate", "up", "down", "share")]
    return ops.add_shared_expert(y, x, *shared, activation=moe.activation)
