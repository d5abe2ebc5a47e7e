"""The decoder: a ModelSpec run plainly, written once over a namespace of operations."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from refimpl.contract import Array, Float, Int, composed, host, require
from refimpl.llm.kv_cache import KVCache, new_cache
from refimpl.llm.position import rope_table
from refimpl.llm.rope_scaling import rope_frequencies
from refimpl.models.layer import Part, Table, run_layer, run_norm
from refimpl.models.spec import ModelSpec, RopeSpec

__all__ = ["forward", "new_caches", "position_table", "project_logits"]


@host
def new_caches(spec: ModelSpec, capacity: int, dtype: Any = np.float32) -> list[KVCache]:
    """Make an empty cache of ``capacity`` tokens for every layer."""
    return [new_cache(capacity, spec.num_kv_heads, spec.head_dim, dtype) for _ in range(spec.num_layers)]


@host
def position_table(rope: RopeSpec, start: int, stop: int, dtype: Any = np.float32) -> Table:
    """Tabulate the rotation of positions start .. stop - 1 of a sequence that is ``stop`` tokens long by now.

    Scalings that follow the length take it from ``stop``. Keys that are cached keep the rotation that they were
    given, as in transformers; what is computed in one call is rotated for one length.
    """
    params: dict[str, Any] = dict(rope.params)
    inv_freq, factor = rope_frequencies(rope.dim, rope.theta, scaling=rope.scaling, seq_len=stop, **params)
    wide = np.float64 if dtype == np.float64 else np.float32
    return rope_table(np.arange(start, stop), inv_freq, factor, wide)


@composed
def forward(
    ids: Int[Array, " T"], weights: Mapping[str, Array], spec: ModelSpec, caches: Sequence[KVCache], ops: Any
) -> tuple[list[Float[Array, "T D"]], list[KVCache]]:
    """Run the T newest tokens of a sequence through every layer.

    The caches hold the tokens before them: none in prefill, all but one in decode. Returned are the hidden states,
    L + 1 of them: the embeddings, then the output of each layer, the last after the final norm; and the new caches.

    Math: x = embed(ids) scale;  x = layer_i(x) for every i;  norm(x).
    Cost: that of the L layers; embedding and norm are small beside them.
    Source: Radford et al., GPT-2, 2019; Touvron et al., LLaMA, 2023. Order of the states as in transformers.
    """
    require(len(ids) > 0, "C1", "a step runs at least one token")
    require(bool(((ids >= 0) & (ids < spec.vocab_size)).all()), "C2", f"a token id is not in 0..{spec.vocab_size - 1}")
    start, stop = caches[0].length, caches[0].length + len(ids)
    x = ops.embedding(ids, weights["embedding"])
    x = x * x.dtype.type(spec.embedding_scale)
    if spec.learned_positions:
        x = ops.learned_position(x, np.arange(start, stop), weights["position_embedding"])
    tables = {rope: position_table(rope, start, stop, x.dtype) for rope in spec.ropes}
    states, grown = [x], []
    for number, layer in enumerate(spec.layers):
        table = tables[layer.mixer.rope] if layer.mixer.rope is not None else None
        x, cache = run_layer(x, Part(weights, f"layers.{number}."), spec, number, caches[number], table, ops)
        states.append(x)
        grown.append(cache)
    states[-1] = run_norm(x, "final_norm", weights, spec, ops)
    return states, grown


@composed
def project_logits(
    x: Float[Array, "T D"], weights: Mapping[str, Array], spec: ModelSpec, ops: Any
) -> Float[Array, "T V"]:
    """Score the whole vocabulary by the final hidden states; a tied model uses its embedding again.

    Math: logits = s (x w^T + b),  w = lm_head, or the embedding; with a cap, cap tanh(logits / cap).
    Cost: 2 T V D flop over V D weights: in decode often the largest matrix of all.
    Source: Press and Wolf, Using the output embedding to improve language models, 2017; cap: Gemma 2, 2024.
    """
    logits = ops.linear(x, weights["embedding" if spec.tied_embeddings else "lm_head"], weights.get("lm_head.bias"))
    logits = logits * logits.dtype.type(spec.logit_scale)
    cap = spec.logit_softcap
    return logits if cap is None else (cap * np.tanh(logits / cap)).astype(logits.dtype, copy=False)
