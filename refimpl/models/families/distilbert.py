"""DistilBERT: a BERT without types of tokens, and with names of its own."""

from collections.abc import Mapping
from typing import Any

from refimpl.contract import host
from refimpl.models.config import activation, check_keys, flag
from refimpl.models.encoder_reading import bert_like, classes
from refimpl.models.encoder_spec import EncoderSpec
from refimpl.models.encoder_weights import take_modules
from refimpl.models.tensor import Tensor

__all__ = ["MODEL_TYPES", "spec", "weights"]

_NAMES = {
    "dim": "hidden_size", "n_layers": "num_hidden_layers", "n_heads": "num_attention_heads",
    "hidden_dim": "intermediate_size", "activation": "hidden_act",
}  # fmt: skip
MODEL_TYPES = {"distilbert": frozenset((
    "model_type", "vocab_size", "max_position_embeddings", "sinusoidal_pos_embds", "type_vocab_size", "pad_token_id",
    "bos_token_id", "eos_token_id", "tie_word_embeddings", "tie_weights_", *_NAMES,
))}  # fmt: skip
"""The tables of sinusoidal_pos_embds are stored as learned ones are."""

_LAYER = {
    "attention.q_lin": "q", "attention.k_lin": "k", "attention.v_lin": "v", "attention.out_lin": "o",
    "sa_layer_norm": "attention_norm", "ffn.lin1": "up", "ffn.lin2": "down", "output_layer_norm": "mlp_norm",
}  # fmt: skip
_MODULES = {
    "embeddings.word_embeddings": "embedding",
    "embeddings.position_embeddings": "position_embedding",
    "embeddings.LayerNorm": "embedding_norm",
    "pre_classifier": "pool.map",
    "classifier": "classify.map",
    "vocab_transform": "mask.map",
    "vocab_layer_norm": "mask.norm",
    "vocab_projector": "mask.lm_head",
} | {f"transformer.layer.{{i}}.{theirs}": f"layers.{{i}}.{ours}" for theirs, ours in _LAYER.items()}


@host
def spec(config: Mapping[str, Any]) -> EncoderSpec:
    """Read a config of this family."""
    check_keys(config, MODEL_TYPES["distilbert"])
    known = {_NAMES.get(key, key): value for key, value in config.items()}
    return bert_like(
        known, "distilbert", head_activation=activation(known, "hidden_act", "gelu"), pool_activation="relu",
        num_labels=classes(config), tied_embeddings=flag(config, "tie_word_embeddings", True),
    )  # fmt: skip


@host
def weights(tensors: Mapping[str, Tensor], spec: EncoderSpec) -> dict[str, Tensor]:
    """Name the tensors of a checkpoint of this family."""
    ignored = ("vocab_projector.weight",) if spec.tied_embeddings else ()
    return take_modules(
        tensors, spec, _MODULES, prefix="distilbert.", ignored=ignored
    )
