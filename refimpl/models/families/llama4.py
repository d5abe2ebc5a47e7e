"""Llama 4, its text model: attention by chunks, every fourth layer without positions but with growing queries; a
mixture that weighs what its experts read, beside an expert for all.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from refimpl.contract import CheckpointError, host
from refimpl.models.config import activation, check_keys, flag, integer, number, shown
from refimpl.models.families.llama import TENSORS
from refimpl.models.families.smollm3 import turning
from refimpl.models.reading import FULL, KEYS, attention_spec, layer_kinds, layers_of, mlp_spec, model_spec
from refimpl.models.spec import AttentionSpec, ModelSpec, MoeSpec
from refimpl.models.tensor import Tensor
from refimpl.models.weights import name_weights

__all__ = ["MODEL_TYPES", "spec", "weights"]

MODEL_TYPES = {
    "llama4_text": KEYS | {
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
    experts, size = integer(config, "num_local_experts", 16, most=4096), integer(config, "intermediate_size")
    moe = MoeSpec(
        experts, integer(config, "num_experts_per_tok", 1, most=experts), size, activation(config, "hidden_act", "silu"),
        router="top_k_sigmoid", weight_inputs=True, shared_size=size,
    )  # fmt: skip
    every, dense = integer(config, "interleave_moe_layer_step", 1), mlp_spec(config, size="intermediate_size_mlp")
    mixers, chosen = _mixers(config), config.get("moe_layers")
    if chosen is not None and (not isinstance(chosen, list) or any(type(layer) is not int for layer in chosen)):
        raise CheckpointError(f"config.json: moe_layers must list numbers of layers, not {shown(chosen)}")
    sparse = range(every - 1, len(mixers), every) if chosen is None else chosen
    return model_spec(config, "llama4", layers_of(mixers, lambda layer: moe if layer in sparse else dense), eps=1e-5)


def _mixers(config: Mapping[str, Any]) -> list[AttentionSpec]:
    mixer = attention_spec(config, head_dim=128, biases="qkvo" if flag(config, "attention_bias") else "")
    rope, turns = mixer.rope, turning(config)
    assert rope is not None
    turned = replace(mixer, rope=replace(rope, interleaved=True))
    turned = replace(turned, qk_norm="head" if flag(config, "use_qk_norm", True) else "none")
    floor = float(number(config, "floor_scale", 8192, least=1, most=1e9))
    still = replace(mixer, rope=None)
    if config.get("attn_temperature_tuning", True):  # some files say 4 for true
        still = replace(still, temperature=(floor, float(number(config, "attn_scale", 0.1, least=0, most=1e6))))
    chunk = integer(config, "attention_chunk_size", 8192)
    kinds = layer_kinds(config, lambda layer: turns[layer], (FULL, "chunked_attention"))
    return [
        replace(turned if turns[layer] else still, chunk=None if kind == FULL else chunk)
        for layer, kind in enumerate(kinds)
    ]


@host
def weights(tensors: Mapping[str, Tensor], spec: ModelSpec) -> dict[str, Tensor]:
    """Name the tensors of a checkpoint of this family.

    Its norm of queries and keys has no gain and comes after the rotation, which keeps the length of a head: with
    gains of 1 it may as well come before.
    """
    ones = Tensor("float32", (spec.head_dim,), np.ones(spec.head_dim, np.float32))
    gains = {
        f"model.layers.{i}.self_attn.{name}_norm.weight": ones
        for i, mixer in enumerate(spec.mixers)
        for name in ("q", "k")
        if mixer.qk_norm == "head"
    }
    ignored = ("lm_head.weight",) if spec.tied_embeddings else ()
    table = {**tensors, **gains}
    turned = ("experts.gate_up_proj", "experts.down_proj")
    return name_weights(table, spec, _TENSORS, prefix="model.", ignored=ignored, transposed=turned)
