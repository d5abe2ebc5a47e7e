"""Llama 2 and 3, Mistral, SmolLM: RMS norms, rotary positions, grouped queries, a gated network."""

from collections.abc import Mapping
from typing import Any

from refimpl.contract import host
from refimpl.models.architecture import Architecture
from refimpl.models.config import check_keys, flag, layer_count
from refimpl.models.reading import KEYS, attention_spec, layers_of, mlp_spec, model_spec, windows
from refimpl.models.spec import ModelSpec
from refimpl.models.tensor import Tensor
from refimpl.models.weights import name_weights

__all__ = ["GGUF", "ATTENTION", "MODEL_TYPES", "NETWORK", "TENSORS", "spec", "weights"]

MODEL_TYPES = {
    "llama": KEYS | {"attention_bias", "mlp_bias"},
    "mistral": KEYS | {"sliding_window", "layer_types"},
}
"""The model types of this family, and the keys that it reads of each."""

GGUF = {
    "llama": Architecture(
        "llama",
        {"attention.sliding_window": "sliding_window", "expert_count": "num_local_experts"}
        | {"expert_used_count": "num_experts_per_tok"},
        paired=True,
        configure=lambda config, meta: {
            "model_type": "mixtral" if "expert_count" in meta else "mistral" if "sliding_window" in config else "llama"
        },
    ),
}
"""Architectures of GGUF files; that of Llama holds Mistral and Mixtral too."""

_AROUND = {
    "model.embed_tokens.weight": "embedding",
    "model.norm.weight": "final_norm.gain",
    "lm_head.weight": "lm_head",
    "model.layers.{i}.input_layernorm.weight": "layers.{i}.attention_norm.gain",
    "model.layers.{i}.post_attention_layernorm.weight": "layers.{i}.mlp_norm.gain",
    "model.layers.{i}.self_attn.q_norm.weight": "layers.{i}.q_norm.gain",
    "model.layers.{i}.self_attn.k_norm.weight": "layers.{i}.k_norm.gain",
}
ATTENTION = {
    f"model.layers.{{i}}.self_attn.{name}_proj.{kind}": f"layers.{{i}}.{letter}_{name}"
    for name in "qkvo"
    for kind, letter in (("weight", "w"), ("bias", "b"))
}
NETWORK = {
    f"model.layers.{{i}}.mlp.{name}_proj.{kind}": f"layers.{{i}}.{letter}_{name}"
    for name in ("gate", "up", "down")
    for kind, letter in (("weight", "w"), ("bias", "b"))
}
TENSORS = _AROUND | ATTENTION | NETWORK


@host
def spec(config: Mapping[str, Any]) -> ModelSpec:
    """Read a config of this family; every layer of Mistral slides, unless sliding_window is null."""
    kind = config["model_type"]
    check_keys(config, MODEL_TYPES[kind])
    mixer = attention_spec(config, biases="qkvo" if flag(config, "attention_bias") else "")
    mixers = windows(config, mixer, lambda _: True, 4096) if kind == "mistral" else [mixer] * layer_count(config)
    return model_spec(config, "llama", layers_of(mixers, mlp_spec(config, biased=flag(config, "mlp_bias"))))


@host
def weights(tensors: Mapping[str, Tensor], spec: ModelSpec) -> dict[str, Tensor]:
    """Name the tensors of a checkpoint of this kind."""
    return name_weights(tensors, spec, TENSORS, prefix="model.")
