"""An encoder run over a namespace of operations: from tokens to states, and to what its heads make of them."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from refimpl.contract import Array, Bool, Float, Int, composed, host, require
from refimpl.models.encoder_spec import EncoderSpec
from refimpl.models.stack import embed_tokens, run_stack

__all__ = ["encode", "place_of_text", "positions_of", "run_heads"]


@host
def positions_of(ids: Int[Array, " T"], spec: EncoderSpec) -> Int[Array, " T"]:
    """State the row of the position table that each token adds.

    Math: position_offset + t; where padding is skipped, each token counts those before it that are no padding, and
        padding adds the row of the pad_id.
    Source: Liu et al., RoBERTa, 2019, as fairseq numbers positions.

    >>> from refimpl.models.encoder_spec import StackSpec
    >>> from refimpl.models.spec import MlpSpec
    >>> stack = StackSpec(1, 1, 2, MlpSpec(2, "relu", False), position_offset=2)
    >>> spec = EncoderSpec("roberta", 9, 2, stack, 8, pad_id=1, skips_padding=True)
    >>> positions_of(np.array([0, 7, 1, 2]), spec)
    array([2, 3, 1, 4])
    """
    if not spec.skips_padding:
        return np.arange(len(ids)) + spec.stack.position_offset
    real = ids != spec.pad_id
    return np.where(real, np.cumsum(real) - 1 + spec.stack.position_offset, spec.pad_id)


@host
def place_of_text(ids: Int[Array, " T"], spec: EncoderSpec) -> int:
    """Return the place of the token that stands for the whole text.

    Source: first: Devlin et al., BERT, 2018; end: Radford et al., CLIP, 2021. Where CLIP's config has eos_token_id 2,
        the ends of its vocabulary have the largest id (transformers).
    """
    if spec.pools == "first":
        return 0
    return int(np.argmax(ids if spec.pools == "largest" else ids == spec.end_id))


@composed
def encode(
    ids: Int[Array, " T"], weights: Mapping[str, Array], spec: EncoderSpec, ops: Any, *,
    seen: Bool[Array, " T"] | None = None, types: Int[Array, " T"] | None = None,
) -> list[Float[Array, "T D"]]:
    """Run a text through every layer; ``seen`` says which tokens are no padding, ``types`` which part each is of.

    Returned are the embeddings, then the output of every layer, the last behind the final norm where there is one.

    Constraints:
        (C1) seen and types have an entry for each token, and one token is seen.
        (C2) every type is one of the model's.
    Source: Devlin et al., BERT, 2018.
    """
    fits = all(x is None or x.shape == ids.shape for x in (seen, types)) and (seen is None or bool(seen.any()))
    require(fits, "C1", f"a mask and types of {ids.shape} tokens, not all padding")
    if spec.token_types:
        types = np.zeros(ids.shape, np.int64) if types is None else types
        require(bool(((types >= 0) & (types < spec.token_types)).all()), "C2", f"types are 0..{spec.token_types - 1}")
    x = embed_tokens(
        ids, positions_of(ids, spec), weights["embedding"], weights, spec.stack, ops, scale=spec.embedding_scale,
        types=types if spec.token_types else None,
    )  # fmt: skip
    return run_stack(x, weights, spec.stack, ops, seen=None if seen is None or seen.all() else seen)[0]


@composed
def run_heads(
    x: Float[Array, "T D"], place: int, weights: Mapping[str, Array], spec: EncoderSpec, ops: Any
) -> dict[str, Float[Array, "..."]]:
    """Return what the heads that the checkpoint has make of the last states, by the names of transformers.

    Math: pooler_output = act(x[place] w^T + b), or x[place] itself; text_embeds = pooler_output w^T;
        logits = norm(act(x w^T + b)) head^T + bias of every token, with the embedding as the head where it is tied,
        or of the classes: pooler_output w^T + b, or x w^T + b of every token where there is no pooler.
    Source: Devlin et al., BERT, 2018; Radford et al., CLIP, 2021; names: transformers.
    """
    outputs, pooled = dict[str, Array](), None
    if spec.pool_activation is None:
        pooled = x[place : place + 1]
    elif "pool.w_map" in weights:
        mapped = ops.linear(x[place : place + 1], weights["pool.w_map"], weights["pool.b_map"])
        pooled = np.tanh(mapped) if spec.pool_activation == "tanh" else ops.relu(mapped)
    outputs |= {} if pooled is None else {"pooler_output": pooled[0]}
    if "project.w_map" in weights:
        outputs["text_embeds"] = ops.linear(pooled, weights["project.w_map"])[0]
    if "next.w_map" in weights and pooled is not None:
        outputs["seq_relationship_logits"] = ops.linear(pooled, weights["next.w_map"], weights["next.b_map"])[0]
    if "classify.w_map" in weights:
        logits = ops.linear(x if pooled is None else pooled, weights["classify.w_map"], weights["classify.b_map"])
        outputs["logits"] = logits if pooled is None else logits[0]
    if "mask.w_map" in weights:
        hidden = getattr(ops, spec.head_activation)(ops.linear(x, weights["mask.w_map"], weights["mask.b_map"]))
        hidden = ops.layer_norm(hidden, weights["mask.norm.gain"], weights["mask.norm.bias"], spec.stack.norm_eps)
        head = weights["embedding"] if spec.tied_embeddings else weights["mask.lm_head"]
        outputs["logits"] = ops.linear(hidden, head, weights["mask.lm_head.bias"])
    return outputs
