"""A stack of layers run over a namespace of operations: the encoder of BERT, the decoder of T5."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from refimpl.contract import Array, Bool, Float, Int, composed
from refimpl.llm.kv_cache import KVCache
from refimpl.models.encoder_spec import StackSpec
from refimpl.models.layer import Part

__all__ = ["Memory", "embed_tokens", "read_memory", "run_stack"]

Memory: TypeAlias = list[tuple[Float[Array, "S N H"], Float[Array, "S N H"]]]
"""For each layer of a decoder the keys and values of what the encoder made."""


@composed
def embed_tokens(
    ids: Int[Array, " T"], positions: Int[Array, " T"], embedding: Float[Array, "V D"], weights: Mapping[str, Array],
    spec: StackSpec, ops: Any, *, scale: float = 1.0, types: Int[Array, " T"] | None = None,
) -> Float[Array, "T D"]:
    """Look tokens up, and add what is learned of their positions and of their types.

    Math: norm(scale embedding[ids] + position_embedding[positions] + token_type_embedding[types]), as far as there.
    Source: Devlin et al., BERT, 2018, section 3.
    """
    x = ops.embedding(ids, embedding)
    x = x if scale == 1 else x * x.dtype.type(scale)
    for rows, name in ((types, "token_type_embedding"), (positions, "position_embedding")):
        if rows is not None and name in weights:
            x = ops.learned_position(x, rows, weights[name])
    return _norm(x, "embedding_norm", weights, spec, ops) if spec.embedding_norm else x


@composed
def read_memory(states: Float[Array, "S D"], weights: Mapping[str, Array], spec: StackSpec, ops: Any) -> Memory:
    """Make for each layer of a decoder the keys and values of what the encoder made: once, for all its steps.

    Source: Vaswani et al., Attention is all you need, 2017, section 3.2.3.
    """
    layers = (Part(weights, f"layers.{i}.cross.") for i in range(spec.num_layers))
    return [(_heads(states, "k", layer, spec, ops), _heads(states, "v", layer, spec, ops)) for layer in layers]


@composed
def run_stack(
    x: Float[Array, "T D"], weights: Mapping[str, Array], spec: StackSpec, ops: Any, *,
    seen: Bool[Array, " S"] | None = None, caches: Sequence[KVCache] = (), memory: Memory | None = None,
    memory_seen: Bool[Array, " memory_length"] | None = None,
) -> tuple[list[Float[Array, "T D"]], list[KVCache]]:
    """Run the T newest tokens of a sequence through every layer.

    ``seen`` says which keys are no padding, ``memory_seen`` the same of the memory; None: all are seen. The caches hold
    the tokens before these, one a layer; without any, the sequence is these tokens. Returned are x and the output of
    every layer, the last behind the final norm where there is one, and the caches as they are now.

    Math: for each part f of a layer, which attends to the tokens, attends to the memory, or feeds each token forward:
        x + f(norm(x)) where norms are first, else norm(x + f(x)).
    Cost: the bytes of the weights in decode, 2 T flop a weight in prefill, and attention's own.
    Source: Vaswani et al., Attention is all you need, 2017: norms last; Raffel et al., T5, 2020: norms first.
    """
    states, after, T = [x], list[KVCache](), len(x)
    S, across, mask = T + (caches[0].length if caches else 0), None, None
    if memory_seen is not None:
        across = np.broadcast_to(memory_seen, (T, len(memory_seen)))
    for i in range(spec.num_layers):
        layer = Part(weights, f"layers.{i}.")
        if i == 0 or spec.own_buckets:
            mask = _mask(T, S, seen, layer, spec, ops)
        read = _before(x, "attention_norm", layer, spec, ops)
        q, k, v = (_heads(read, name, layer, spec, ops) for name in "qkv")
        if caches:
            after.append(ops.cache_append(caches[i], k, v))
            k, v = after[i].k[:S], after[i].v[:S]
        x = x + _attend(q, k, v, layer, ops, causal=spec.causal, mask=mask, scale=spec.scale)
        x = _after(x, "attention_norm", layer, spec, ops)
        if memory is not None:
            own = Part(layer, "cross.")
            q = _heads(_before(x, "cross_norm", layer, spec, ops), "q", own, spec, ops)
            x = x + _attend(q, *memory[i], own, ops, causal=False, mask=across, scale=spec.scale)
            x = _after(x, "cross_norm", layer, spec, ops)
        x = x + _feed(_before(x, "mlp_norm", layer, spec, ops), layer, spec, ops)
        x = _after(x, "mlp_norm", layer, spec, ops)
        states.append(x)
    if spec.norm_first:
        states[-1] = _norm(x, "final_norm", weights, spec, ops)
    return states, after


def _mask(T: int, S: int, seen: Array | None, weights: Mapping[str, Array], spec: StackSpec, ops: Any) -> Array | None:
    """Return what hides padding from T queries, or the bias of each distance, which is -inf at padding."""
    if not spec.buckets:
        return None if seen is None else np.broadcast_to(seen, (T, S))
    rules = {"max_distance": spec.max_distance, "bidirectional": not spec.causal}
    bias = ops.t5_bias(weights["distance_bias"], T, S, **rules)
    if seen is not None:
        bias[:, :, np.flatnonzero(~seen)] = -np.inf
    return bias


def _heads(x: Array, name: str, weights: Mapping[str, Array], spec: StackSpec, ops: Any) -> Array:
    y = ops.linear(x, weights[f"w_{name}"], weights.get(f"b_{name}"))
    return y.reshape(len(x), spec.num_heads, spec.head_dim)


def _attend(q: Array, k: Array, v: Array, weights: Mapping[str, Array], ops: Any, **rules: Any) -> Array:
    o = ops.attention(q, k, v, **rules)
    return ops.linear(o.reshape(len(q), q.shape[1] * q.shape[2]), weights["w_o"], weights.get("b_o"))


def _feed(x: Array, weights: Mapping[str, Array], spec: StackSpec, ops: Any) -> Array:
    names = ("gate", "up", "down") if spec.network.gated else ("up", "down")
    matrices, biases = ([weights.get(f"{kind}_{name}") for name in names] for kind in "wb")
    run = ops.gated_mlp if spec.network.gated else ops.mlp
    return run(x, *matrices, *biases, activation=spec.network.activation)


def _norm(x: Array, name: str, weights: Mapping[str, Array], spec: StackSpec, ops: Any) -> Array:
    if spec.norm == "rms":
        return ops.rms_norm(x, weights[f"{name}.gain"], spec.norm_eps)
    return ops.layer_norm(x, weights[f"{name}.gain"], weights[f"{name}.bias"], spec.norm_eps)


def _before(x: Array, name: str, weights: Mapping[str, Array], spec: StackSpec, ops: Any) -> Array:
    return _norm(x, name, weights, spec, ops) if spec.norm_first else x


def _after(x: Array, name: str, weights: Mapping[str, Array], spec: StackSpec, ops: Any) -> Array:
    return x if spec.norm_first else _norm(x, name, weights, spec, ops)
