"""The text encoder of CLIP: causal, norms first, and the token that ends a text stands for it."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from refimpl.contract import host
from refimpl.models.config import check_keys, integer, token_ids
from refimpl.models.encoder_reading import bert_like
from refimpl.models.encoder_spec import EncoderSpec
from refimpl.models.encoder_weights import take_modules
from refimpl.models.tensor import Tensor

__all__ = ["MODEL_TYPES", "spec", "weights"]

MODEL_TYPES = {"clip_text_model": frozenset((
    "model_type", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "max_position_embeddings", "hidden_act", "layer_norm_eps", "projection_dim", "bos_token_id", "eos_token_id",
    "pad_token_id",
))}  # fmt: skip

_LAYER = {
    "self_attn.q_proj": "q", "self_attn.k_proj": "k", "self_attn.v_proj": "v", "self_attn.out_proj": "o",
    "layer_norm1": "attention_norm", "mlp.fc1": "up", "mlp.fc2": "down", "layer_norm2": "mlp_norm",
}  # fmt: skip
_MODULES = {
    "embeddings.token_embedding": "embedding",
    "embeddings.position_embedding": "position_embedding",
    "final_layer_norm": "final_norm",
    "text_projection": "project.map",
} | {f"encoder.layers.{{i}}.{theirs}": f"layers.{{i}}.{ours}" for theirs, ours in _LAYER.items()}


@host
def spec(config: Mapping[str, Any]) -> EncoderSpec:
    """Read a config of this family."""
    check_keys(config, MODEL_TYPES["clip_text_model"])
    known = {"hidden_act": "quick_gelu", "layer_norm_eps": 1e-5, "max_position_embeddings": 77, **config}
    ends = token_ids(config.get("eos_token_id", 49407))
    read = bert_like(
        known, "clip", pools="largest" if ends in ((), (2,)) else "end",
        end_id=ends[0] if ends else None, pool_activation=None,
        projection_size=integer(config, "projection_dim", 512),
    )  # fmt: skip
    return replace(read, stack=replace(read.stack, norm_first=True, embedding_norm=False, causal=True))


@host
def weights(tensors: Mapping[str, Tensor], spec: EncoderSpec) -> dict[str, Tensor]:
    """Name the tensors of a checkpoint of this family."""
    return take_modules(tensors, spec, _MODULES, prefix="text_model.")
