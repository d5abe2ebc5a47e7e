"""BERT: an encoder whose norms stand behind each sum, with learned positions and types of tokens."""

from collections.abc import Mapping
from typing import Any

from refimpl.contract import host
from refimpl.models.config import activation, check_keys, flag, integer, word
from refimpl.models.encoder_reading import bert_like, classes
from refimpl.models.encoder_spec import EncoderSpec
from refimpl.models.encoder_weights import take_modules
from refimpl.models.tensor import Tensor

__all__ = ["KEYS", "MODEL_TYPES", "MODULES", "spec", "weights"]

KEYS = frozenset((
    "model_type", "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size",
    "hidden_act", "max_position_embeddings", "type_vocab_size", "layer_norm_eps", "pad_token_id", "bos_token_id",
    "eos_token_id", "position_embedding_type", "tie_word_embeddings",
))  # fmt: skip
MODEL_TYPES = {"bert": KEYS}

_LAYER = {
    "attention.self.query": "q", "attention.self.key": "k", "attention.self.value": "v", "attention.output.dense": "o",
    "attention.output.LayerNorm": "attention_norm", "intermediate.dense": "up", "output.dense": "down",
    "output.LayerNorm": "mlp_norm",
}  # fmt: skip
MODULES = {
    "embeddings.word_embeddings": "embedding",
    "embeddings.position_embeddings": "position_embedding",
    "embeddings.token_type_embeddings": "token_type_embedding",
    "embeddings.LayerNorm": "embedding_norm",
} | {f"encoder.layer.{{i}}.{theirs}": f"layers.{{i}}.{ours}" for theirs, ours in _LAYER.items()}
_HEADS = {
    "pooler.dense": "pool.map",
    "classifier": "classify.map",
    "cls.seq_relationship": "next.map",
    "cls.predictions.transform.dense": "mask.map",
    "cls.predictions.transform.LayerNorm": "mask.norm",
}


@host
def spec(config: Mapping[str, Any]) -> EncoderSpec:
    """Read a config of this family."""
    check_keys(config, KEYS)
    word(config, "position_embedding_type", ["absolute"], "absolute")
    return bert_like(
        config, "bert", head_activation=activation(config, "hidden_act", "gelu"), num_labels=classes(config),
        token_types=integer(config, "type_vocab_size", 2), tied_embeddings=flag(config, "tie_word_embeddings", True),
    )  # fmt: skip


@host
def weights(tensors: Mapping[str, Tensor], spec: EncoderSpec) -> dict[str, Tensor]:
    """Name the tensors of a checkpoint of this family; the first ones call gain and bias of a norm gamma and beta."""
    for theirs, known in (("LayerNorm.gamma", "LayerNorm.weight"), ("LayerNorm.beta", "LayerNorm.bias")):
        tensors = {name.replace(theirs, known): tensor for name, tensor in tensors.items()}
    head = "cls.predictions" if spec.tied_embeddings else "cls.predictions.decoder"
    ignored = ("cls.predictions.decoder.",) if spec.tied_embeddings else ("cls.predictions.bias",)
    modules = MODULES | _HEADS | {head: "mask.lm_head"}
    return take_modules(tensors, spec, modules, prefix="bert.", ignored=ignored)
