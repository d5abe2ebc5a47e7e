"""BART: norms behind each sum, learned positions from row 2 on, and a bias of the logits."""

from collections.abc import Mapping
from typing import Any

from refimpl.contract import CheckpointError, host
from refimpl.models.config import activation, check_keys, flag, integer, layer_count, token_ids
from refimpl.models.encoder_reading import head_width
from refimpl.models.encoder_spec import EncoderDecoderSpec, StackSpec
from refimpl.models.encoder_weights import take_modules
from refimpl.models.spec import MlpSpec
from refimpl.models.tensor import Tensor

__all__ = ["MODEL_TYPES", "spec", "weights"]

MODEL_TYPES = {"bart": frozenset((
    "model_type", "vocab_size", "d_model", "encoder_layers", "decoder_layers", "encoder_attention_heads",
    "decoder_attention_heads", "encoder_ffn_dim", "decoder_ffn_dim", "activation_function", "max_position_embeddings",
    "scale_embedding", "tie_word_embeddings", "decoder_start_token_id", "forced_bos_token_id", "bos_token_id",
    "eos_token_id", "is_encoder_decoder", "num_hidden_layers", "normalize_embedding", "extra_pos_embeddings",
    "force_bos_token_to_be_generated", "replacing_rate",
))}  # fmt: skip

_OFFSET = 2
_LAYER = {f"{name}_proj": name for name in "qkv"} | {"out_proj": "o"}
_FEED = {"fc1": "up", "fc2": "down", "final_layer_norm": "mlp_norm"}


def _stack(config: Mapping[str, Any], side: str, **fields: Any) -> StackSpec:
    heads, act = integer(config, f"{side}_attention_heads", 16), activation(config, "activation_function", "gelu")
    network = MlpSpec(integer(config, f"{side}_ffn_dim", 4096), act, gated=False, biases=("b_up", "b_down"))
    return StackSpec(
        layer_count(config, f"{side}_layers"), heads, head_width(integer(config, "d_model", 1024), heads), network,
        norm_eps=1e-5, positions=integer(config, "max_position_embeddings", 1024) + _OFFSET, position_offset=_OFFSET,
        **fields,
    )  # fmt: skip


@host
def spec(config: Mapping[str, Any]) -> EncoderDecoderSpec:
    """Read a config of this family."""
    check_keys(config, MODEL_TYPES["bart"])
    flags = {"tie_word_embeddings": True, "normalize_embedding": True, "is_encoder_decoder": True}
    for name, only in flags.items():
        if flag(config, name, only) is not only:
            raise CheckpointError(f"config.json: {name} {str(not only).lower()} is not supported")
    width, most = integer(config, "d_model", 1024), integer(config, "max_position_embeddings", 1024)
    vocabulary, known = integer(config, "vocab_size"), {"decoder_start_token_id": 2, **config}
    if flag(config, "force_bos_token_to_be_generated") and known.get("forced_bos_token_id") is None:
        known["forced_bos_token_id"] = known.get("bos_token_id", 0)  # as the first files said it
    first = [name for name in ("decoder_start_token_id", "forced_bos_token_id") if known.get(name) is not None]
    starts = tuple(integer(known, name, least=0, most=vocabulary - 1) for name in first)
    return EncoderDecoderSpec(
        "bart", vocabulary, width, _stack(config, "encoder"), _stack(config, "decoder", causal=True, crosses=True),
        max_positions=most, source_positions=most, head_bias=True,
        embedding_scale=width**0.5 if flag(config, "scale_embedding") else 1.0,
        start_ids=starts, eos_ids=token_ids(config.get("eos_token_id", 2)),
    )  # fmt: skip


@host
def weights(tensors: Mapping[str, Tensor], spec: EncoderDecoderSpec) -> dict[str, Tensor]:
    """Name the tensors of a checkpoint of this family."""
    modules = {"shared": "embedding", "lm_head": "lm_head"}
    for side in ("encoder", "decoder"):
        layer = {f"self_attn.{theirs}": ours for theirs, ours in _LAYER.items()}
        layer |= {f"encoder_attn.{theirs}": f"cross.{ours}" for theirs, ours in _LAYER.items()}
        layer |= {"self_attn_layer_norm": "attention_norm", "encoder_attn_layer_norm": "cross_norm"} | _FEED
        modules |= {f"{side}.layers.{{i}}.{theirs}": f"{side}.layers.{{i}}.{ours}" for theirs, ours in layer.items()}
        modules |= {f"{side}.embed_positions": f"{side}.position_embedding"}
        modules |= {f"{side}.layernorm_embedding": f"{side}.embedding_norm"}
    named = {"lm_head.bias" if name == "final_logits_bias" else name: tensor for name, tensor in tensors.items()}
    ignored = ("lm_head.weight", "encoder.embed_tokens.", "decoder.embed_tokens.")
    return take_modules(named, spec, modules, prefix="model.", ignored=ignored)
