"""The decoder: a ModelSpec run plainly, written once over a namespace of operations."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from refimpl.contract import Array, Float, Int, composed, host, require
from refimpl.llm.block import transformer_block
from refimpl.llm.kv_cache import KVCache, new_cache
from refimpl.llm.position import rope_table
from refimpl.llm.rope_scaling import rope_frequencies
from refimpl.models.spec import ModelSpec, require_dense

__all__ = ["forward", "new_caches", "position_table", "project_logits"]


@host
def new_caches(spec: ModelSpec, capacity: int, dtype: Any = np.float32) -> list[KVCache]:
    """Make an empty cache of ``capacity`` tokens for every layer."""
    return [new_cache(capacity, spec.num_kv_heads, spec.head_dim, dtype) for _ in range(spec.num_layers)]


@host
def position_table(
    spec: ModelSpec, start: int, stop: int, dtype: Any = np.float32
) -> tuple[Float[Array, "T J"], Float[Array, "T J"]] | tuple[None, None]:
    """Tabulate the rotation of positions start .. stop - 1 of a sequence that is ``stop`` tokens long by now.

    Scalings that follow the length take it from ``stop``. Keys that are cached keep the rotation that they were
    given, as in transformers; what is computed in one call is rotated for one length.
    """
    if spec.rope is None:
        return None, None
    params: dict[str, Any] = dict(spec.rope.params)
    inv_freq, factor = rope_frequencies(
        spec.rope.dim, spec.rope.theta, scaling=spec.rope.scaling, seq_len=stop, **params
    )
    wide = np.float64 if dtype == np.float64 else np.float32
    return rope_table(np.arange(start, stop), inv_freq, factor, wide)


@composed
def forward(
    ids: Int[Array, " T"], weights: Mapping[str, Array], spec: ModelSpec, caches: Sequence[KVCache], ops: Any
) -> tuple[list[Float[Array, "T D"]], list[KVCache]]:
    """Run the T newest tokens of a sequence through every layer.

    The caches hold the tokens before them: none in prefill, all but one in decode. Returned are the hidden states,
    L + 1 of them: the embeddings, then the output of each layer, the last after the final norm; and the new caches.

    Math: x = embed(ids);  x = block_i(x) for every layer i;  norm(x).
    Cost: that of the L blocks; embedding and norm are small beside them.
    Source: Radford et al., GPT-2, 2019; Touvron et al., LLaMA, 2023. Order of the states as in transformers.
    """
    require_dense(spec)
    require(len(ids) > 0, "C1", "a step runs at least one token")
    require(bool(((ids >= 0) & (ids < spec.vocab_size)).all()), "C2", f"a token id is not in 0..{spec.vocab_size - 1}")
    start = caches[0].length
    x = ops.embedding(ids, weights["embedding"])
    cos, sin = position_table(spec, start, start + len(ids), x.dtype)
    if spec.rope is None:
        x = ops.learned_position(x, np.arange(start, start + len(ids)), weights["position_embedding"])
    states, grown = [x], []
    for layer in range(spec.num_layers):
        x, cache = transformer_block(x, _layer(weights, layer), spec, layer, caches[layer], cos, sin, ops)
        states.append(x)
        grown.append(cache)
    states[-1] = _final_norm(x, weights, spec, ops)
    return states, grown


@composed
def project_logits(x: Float[Array, "T D"], weights: Mapping[str, Array], ops: Any) -> Float[Array, "T V"]:
    """Score the whole vocabulary by the final hidden states; a tied model uses its embedding again.

    Math: logits = x w^T,  w = lm_head, or the embedding.
    Cost: 2 T V D flop over V D weights: in decode often the largest matrix of all.
    Source: Press and Wolf, Using the output embedding to improve language models, 2017.
    """
    return ops.linear(x, weights["lm_head" if "lm_head" in weights else "embedding"])


def _layer(weights: Mapping[str, Array], layer: int) -> dict[str, Array]:
    """Take the weights of one layer under their short names."""
    prefix = f"layers.{layer}."
    return {name.removeprefix(prefix): weight for name, weight in weights.items() if name.startswith(prefix)}


def _final_norm(x: Array, weights: Mapping[str, Array], spec: ModelSpec, ops: Any) -> Array:
    if spec.norm == "layer":
        return ops.layer_norm(x, weights["final_norm.gain"], weights["final_norm.bias"], spec.norm_eps)
    return ops.rms_norm(x, weights["final_norm.gain"], spec.norm_eps)
