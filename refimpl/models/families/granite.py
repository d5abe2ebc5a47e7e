"""Granite: a Llama with four multipliers: of embeddings, scores, what the parts add, and logits."""

from collections.abc import Mapping
from typing import Any

from refimpl.contract import host
from refimpl.models.architecture import Architecture
from refimpl.models.config import check_keys, flag, layer_count, number
from refimpl.models.families.llama import weights
from refimpl.models.reading import KEYS, attention_spec, layers_of, mlp_spec, model_spec
from refimpl.models.spec import ModelSpec

__all__ = ["GGUF", "MODEL_TYPES", "spec", "weights"]

_SCALES = ("embedding_multiplier", "attention_multiplier", "residual_multiplier", "logits_scaling")
MODEL_TYPES = {"granite": KEYS | {"attention_bias", "mlp_bias", *_SCALES}}
GGUF = {
    "granite": Architecture(
        "granite",
        dict(zip(("embedding_scale", "attention.scale", "residual_scale", "logit_scale"), _SCALES, strict=True)),
        configure=lambda config, meta: {"attention_multiplier": config["head_dim"] ** -0.5} | config,
        only={"rope.scaling.finetuned": True}, paired=True,
    ),
}


@host
def spec(config: Mapping[str, Any]) -> ModelSpec:
    """Read a config of this family; logits_scaling divides."""
    check_keys(config, MODEL_TYPES["granite"])
    embedding, attention, residual, logits = (float(number(config, key, 1.0, least=1e-6, most=1e6)) for key in _SCALES)
    mixer = attention_spec(config, biases="qkvo" if flag(config, "attention_bias") else "", scale=attention)
    layers = layers_of([mixer] * layer_count(config), mlp_spec(config, biased=flag(config, "mlp_bias")))
    return model_spec(
        config, "granite", layers, embedding_scale=embedding, residual_scale=residual, logit_scale=1 / logits
    )
