"""An encoder-decoder run over a namespace of operations: a text is read once, and answered token by token."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from refimpl.contract import Array, Bool, Float, Int, composed, host, require
from refimpl.llm.kv_cache import KVCache, new_cache
from refimpl.models.encoder_spec import EncoderDecoderSpec
from refimpl.models.layer import Part
from refimpl.models.stack import Memory, embed_tokens, read_memory, run_stack

__all__ = ["answer_caches", "decode_answer", "encode_source", "memorise", "token_logits"]


@host
def answer_caches(spec: EncoderDecoderSpec, capacity: int, dtype: Any = np.float32) -> list[KVCache]:
    """Make an empty cache of ``capacity`` tokens for every layer of the decoder."""
    stack = spec.decoder
    return [new_cache(capacity, stack.num_heads, stack.head_dim, dtype) for _ in range(stack.num_layers)]


@composed
def encode_source(
    ids: Int[Array, " T"], weights: Mapping[str, Array], spec: EncoderDecoderSpec, ops: Any, *,
    seen: Bool[Array, " T"] | None = None,
) -> list[Float[Array, "T D"]]:
    """Run a text through the encoder: the embeddings, then the output of every layer.

    Constraints:
        (C1) seen has an entry for each token, and one token is seen.
    Source: Raffel et al., T5, 2020; Lewis et al., BART, 2019.
    """
    fits = seen is None or (seen.shape == ids.shape and bool(seen.any()))
    require(fits, "C1", f"a mask of {ids.shape} tokens, not all padding")
    x = _embed(ids, 0, "encoder.", weights, spec, ops)
    seen = None if seen is None or seen.all() else seen
    return run_stack(x, Part(weights, "encoder."), spec.encoder, ops, seen=seen)[0]


@composed
def memorise(
    states: Float[Array, "S D"], weights: Mapping[str, Array], spec: EncoderDecoderSpec, ops: Any
) -> Memory:
    """Make what every step of an answer reads of its text: keys and values for each layer of the decoder.

    Source: Vaswani et al., Attention is all you need, 2017, section 3.2.3.
    """
    return read_memory(states, Part(weights, "decoder."), spec.decoder, ops)


@composed
def decode_answer(
    ids: Int[Array, " T"], weights: Mapping[str, Array], spec: EncoderDecoderSpec, caches: Sequence[KVCache],
    memory: Memory, ops: Any, *, seen: Bool[Array, " S"] | None = None,
) -> tuple[list[Float[Array, "T D"]], list[KVCache]]:
    """Run the T newest tokens of an answer through the decoder; ``seen`` says which tokens of the text are no padding.

    Returned are the embeddings and the output of every layer, and the caches with the new tokens.

    Source: Raffel et al., T5, 2020; Lewis et al., BART, 2019.
    """
    x = _embed(ids, caches[0].length, "decoder.", weights, spec, ops)
    seen = None if seen is None or seen.all() else seen
    return run_stack(x, Part(weights, "decoder."), spec.decoder, ops, caches=caches, memory=memory, memory_seen=seen)


@composed
def token_logits(
    x: Float[Array, "T D"], weights: Mapping[str, Array], spec: EncoderDecoderSpec, ops: Any
) -> Float[Array, "T V"]:
    """Score every token of the vocabulary as the next one.

    Math: (logit_scale x) head^T + bias; without a head of its own, the embedding is the head, and T5 scales x by
        1 / sqrt(D) before it.
    Source: Raffel et al., T5, 2020, as in transformers; the bias: Lewis et al., BART, 2019.
    """
    x = x if spec.logit_scale == 1 else x * x.dtype.type(spec.logit_scale)
    logits = ops.linear(x, weights["lm_head"] if "lm_head" in weights else weights["embedding"])
    return logits + weights["lm_head.bias"] if "lm_head.bias" in weights else logits


def _embed(
    ids: Array, start: int, side: str, weights: Mapping[str, Array], spec: EncoderDecoderSpec, ops: Any
) -> Array:
    stack = spec.encoder if side == "encoder." else spec.decoder
    positions = np.arange(start, start + len(ids)) + stack.position_offset
    own, scale = Part(weights, side), spec.embedding_scale
    return embed_tokens(ids, positions, weights["embedding"], own, stack, ops, scale=scale)
