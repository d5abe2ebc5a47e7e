"""RoBERTa, XLM-RoBERTa, CamemBERT: BERTs whose positions begin behind the id of padding, and skip it."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from refimpl.contract import CheckpointError, host
from refimpl.models.config import check_keys, flag, integer, word
from refimpl.models.encoder_reading import bert_like, classes
from refimpl.models.encoder_spec import EncoderSpec
from refimpl.models.encoder_weights import take_modules
from refimpl.models.families.bert import KEYS, MODULES
from refimpl.models.tensor import Tensor

__all__ = ["MODEL_TYPES", "spec", "weights"]

MODEL_TYPES = {"roberta": KEYS, "xlm-roberta": KEYS, "camembert": KEYS}

_HEADS = {
    "pooler.dense": "pool.map",
    "classifier.dense": "pool.map",  # before the classes stands what is a pooler elsewhere
    "lm_head.dense": "mask.map",
    "lm_head.layer_norm": "mask.norm",
}


@host
def spec(config: Mapping[str, Any]) -> EncoderSpec:
    """Read a config of this family."""
    check_keys(config, KEYS)
    word(config, "position_embedding_type", ["absolute"], "absolute")
    pad = integer(config, "pad_token_id", 1, least=0)
    read = bert_like(
        config, "roberta", pad_id=pad, skips_padding=True, num_labels=classes(config),
        token_types=integer(config, "type_vocab_size", 2), tied_embeddings=flag(config, "tie_word_embeddings", True),
    )  # fmt: skip
    places = read.stack.positions - pad - 1
    if places < 1:
        raise CheckpointError(f"config.json: pad_token_id {pad} leaves none of {read.stack.positions} positions")
    return replace(read, stack=replace(read.stack, position_offset=pad + 1), max_positions=places)


@host
def weights(tensors: Mapping[str, Tensor], spec: EncoderSpec) -> dict[str, Tensor]:
    """Name the tensors of a checkpoint of this family."""
    bare = {name.removeprefix("roberta.") for name in tensors}
    heads = {theirs: ours for theirs, ours in _HEADS.items() if f"{theirs}.weight" in bare}
    heads |= {"classifier.out_proj" if "classifier.dense.weight" in bare else "classifier": "classify.map"}
    heads |= {"lm_head" if spec.tied_embeddings else "lm_head.decoder": "mask.lm_head"}
    ignored = ("lm_head.decoder.",) if spec.tied_embeddings else ("lm_head.bias",)
    return take_modules(tensors, spec, MODULES | heads, prefix="roberta.", ignored=ignored)
