"""Llama 4, its text model: chunks, layers without positions, a mixture that weighs what its experts read."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from refimpl.contract import host
from refimpl.models import reading
from refimpl.models.config import check_keys, flag, integer, number
from refimpl.models.families.llama import TENSORS
from refimpl.models.families.smollm3 import turning
from refimpl.models.spec import AttentionSpec, ModelSpec
from refimpl.models.tensor import Tensor
from refimpl.models.weights import name_weights

__all__ = ["MODEL_TYPES", "spec", "weights"]

MODEL_TYPES = {
    "llama4_text": reading.KEYS | {
        "attention_bias", "attention_chunk_size", "attn_scale", "attn_temperature_tuning", "floor_scale",
        "for_llm_compressor", "interleave_moe_layer_step", "intermediate_size_mlp", "layer_types", "moe_layers",
        "no_rope_layer_interval", "no_rope_layers", "num_experts_per_tok", "num_local_experts", "use_qk_norm",
    },
}  # fmt: skip

_TENSORS = {name.replace(".mlp.", ".feed_forward."): ours for name, ours in TENSORS.items()} | {
    "model.layers.{i}.feed_forward.router.weight": "layers.{i}.router",
    "model.layers.{i}.feed_forward.experts.gate_up_proj": "layers.{i}.experts.w_gate layers.{i}.experts.w_up",
    "model.layers.{i}.feed_forward.experts.down_proj": "layers.{i}.experts.w_down",
} | {
    f"model.layers.{{i}}.feed_forward.shared_expert.{name}_proj.weight": f"layers.{{i}}.shared.w_{name}"
    for name in ("gate", "up", "down")
}  # fmt: skip


@host
def spec(config: Mapping[str, Any]) -> ModelSpec:
    """Read a config of this family."""
    check_keys(config, MODEL_TYPES["llama4_text"])
    size, mixers = integer(config, "intermediate_size"), _mixers(config)
    moe = reading.moe_spec(
        config, ("num_local_experts", 16), ("num_experts_per_tok", 1), size, router="top_k_sigmoid", weight_inputs=True,
        shared_size=size,
    )  # fmt: skip
    every = integer(config, "interleave_moe_layer_step", 1)
    sparse = reading.layer_numbers(config, "moe_layers", range(every - 1, len(mixers), every))
    dense = reading.mlp_spec(config, size="intermediate_size_mlp")
    layers = reading.layers_of(mixers, lambda layer: moe if layer in sparse else dense)
    return reading.model_spec(config, "llama4", layers, eps=1e-5)


def _mixers(config: Mapping[str, Any]) -> list[AttentionSpec]:
    biases = "qkvo" if flag(config, "attention_bias") else ""
    mixer = reading.attention_spec(config, head_dim=128, biases=biases, theta=5e5)
    turns, normed = turning(config), "head" if flag(config, "use_qk_norm", True) else "none"
    assert mixer.rope is not None
    turned = replace(mixer, rope=replace(mixer.rope, interleaved=True), qk_norm=normed)
    floor = float(number(config, "floor_scale", 8192, least=1, most=1e9))
    growth = (floor, float(number(config, "attn_scale", 0.1, least=0, most=1e6)))
    still = replace(mixer, rope=None, temperature=growth if config.get("attn_temperature_tuning", True) else None)
    chunk = integer(config, "attention_chunk_size", 8192)
    kinds = reading.layer_kinds(config, lambda layer: turns[layer], (reading.FULL, "chunked_attention"))
    pairs = zip(turns, kinds, strict=True)
    return [replace(turned if turn else still, chunk=None if kind == reading.FULL else chunk) for turn, kind in pairs]


@host
def weights(tensors: Mapping[str, Tensor], spec: ModelSpec) -> dict[str, Tensor]:
    """Name the tensors of a checkpoint of this family.

    Its norm of queries and keys comes after the rotation, which keeps lengths: with gains of 1 it may come before.
    """
    ones = Tensor("float32", (spec.head_dim,), np.ones(spec.head_dim, np.float32))
    normed = [i for i, mixer in enumerate(spec.mixers) if mixer.qk_norm == "head"]
    gains = {f"model.layers.{i}.self_attn.{name}_norm.weight": ones for i in normed for name in ("q", "k")}
    turned = "experts.gate_up_proj", "experts.down_proj"
    return name_weights({**tensors, **gains}, spec, _TENSORS, prefix="model.", transposed=turned)
