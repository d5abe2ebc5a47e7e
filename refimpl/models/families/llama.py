"""Llama 2 and 3, Mistral, SmolLM: RMS norms, rotary positions, grouped queries, a gated network."""

from collections.abc import Mapping
from typing import Any

from refimpl.contract import CheckpointError, host
from refimpl.models.config import (
    activation,
    check_keys,
    context,
    flag,
    integer,
    layer_count,
    layer_windows,
    number,
    rope_spec,
    token_ids,
)
from refimpl.models.spec import ModelSpec
from refimpl.models.tensor import Tensor
from refimpl.models.weights import name_weights

__all__ = ["KEYS", "MODEL_TYPES", "TENSORS", "llama_like", "spec", "weights"]

MODEL_TYPES = ("llama", "mistral")

KEYS = frozenset((
    "model_type", "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
    "head_dim", "intermediate_size", "max_position_embeddings", "original_max_position_embeddings", "rms_norm_eps",
    "hidden_act", "rope_theta", "rope_scaling", "rope_parameters", "partial_rotary_factor", "tie_word_embeddings",
    "bos_token_id", "eos_token_id",
))  # fmt: skip
"""The keys that every family of this kind reads."""

TENSORS = {
    "model.embed_tokens.weight": "embedding",
    "model.norm.weight": "final_norm.gain",
    "lm_head.weight": "lm_head",
    "model.layers.{i}.input_layernorm.weight": "layers.{i}.attention_norm.gain",
    "model.layers.{i}.post_attention_layernorm.weight": "layers.{i}.mlp_norm.gain",
    "model.layers.{i}.self_attn.q_norm.weight": "layers.{i}.q_norm.gain",
    "model.layers.{i}.self_attn.k_norm.weight": "layers.{i}.k_norm.gain",
} | {
    f"model.layers.{{i}}.{module}_proj.{kind}": f"layers.{{i}}.{letter}_{module.split('.')[1]}"
    for module in ("self_attn.q", "self_attn.k", "self_attn.v", "self_attn.o", "mlp.gate", "mlp.up", "mlp.down")
    for kind, letter in (("weight", "w"), ("bias", "b"))
}


@host
def llama_like(config: Mapping[str, Any], family: str, *, head_dim: int | None = None, **fields: Any) -> ModelSpec:
    """Read what all families of this kind share; ``fields`` sets the rest of the ModelSpec."""
    layers, heads = layer_count(config), integer(config, "num_attention_heads")
    width, kv_heads = integer(config, "hidden_size"), integer(config, "num_key_value_heads", heads)
    if heads % kv_heads:
        raise CheckpointError(f"config.json: {kv_heads} key/value heads do not divide {heads} query heads")
    if head_dim is None and config.get("head_dim") is None and width % heads:
        raise CheckpointError(f"config.json: {heads} heads do not divide hidden_size {width}, and head_dim is not set")
    head_dim = integer(config, "head_dim", head_dim or width // heads)
    rope = rope_spec(config, head_dim)
    bos = token_ids(config.get("bos_token_id"))
    return ModelSpec(
        family=family, vocab_size=integer(config, "vocab_size"), hidden_size=width, num_layers=layers,
        num_heads=heads, num_kv_heads=kv_heads, head_dim=head_dim, ffn_size=integer(config, "intermediate_size"),
        max_positions=context(config, rope), norm="rms",
        norm_eps=float(number(config, "rms_norm_eps", fields.pop("norm_eps", 1e-6), least=0, most=1)),
        activation=activation(config, "hidden_act", "silu"), rope=rope,
        windows=fields.pop("windows", (None,) * layers), tied_embeddings=flag(config, "tie_word_embeddings"),
        bos_id=bos[0] if bos else None, eos_ids=token_ids(config.get("eos_token_id")), **fields,
    )  # fmt: skip


@host
def spec(config: Mapping[str, Any]) -> ModelSpec:
    """Read a config of this family; every layer of Mistral slides, unless sliding_window is null."""
    if config["model_type"] == "mistral":
        check_keys(config, KEYS | {"sliding_window", "layer_types"})
        return llama_like(config, "llama", windows=layer_windows(config, layer_count(config), 0, 4096))
    check_keys(config, KEYS | {"attention_bias", "mlp_bias"})
    attention = ("b_q", "b_k", "b_v", "b_o") if flag(config, "attention_bias") else ()
    network = ("b_gate", "b_up", "b_down") if flag(config, "mlp_bias") else ()
    return llama_like(config, "llama", biases=attention + network)


@host
def weights(tensors: Mapping[str, Tensor], spec: ModelSpec) -> dict[str, Tensor]:
    """Name the tensors of a checkpoint of this kind."""
    ignored = ("lm_head.weight",) if spec.tied_embeddings else ()
    return name_weights(tensors, spec, TENSORS, prefix="model.", ignored=ignored)
