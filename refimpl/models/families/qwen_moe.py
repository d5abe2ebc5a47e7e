"""Qwen2-MoE and Qwen3-MoE: Qwen with mixtures of many small experts; those of Qwen2 have a gated expert for all."""

from collections.abc import Callable, Mapping
from typing import Any

from refimpl.contract import CheckpointError, host
from refimpl.models import reading
from refimpl.models.architecture import MIXTURE, Architecture
from refimpl.models.config import check_keys, flag, integer, layer_count
from refimpl.models.families.llama import TENSORS
from refimpl.models.families.qwen2 import WINDOW_KEYS
from refimpl.models.spec import MlpSpec, ModelSpec, MoeSpec
from refimpl.models.tensor import Tensor
from refimpl.models.weights import name_weights

__all__ = ["GGUF", "EXPERTS", "MODEL_TYPES", "spec", "weights"]

_SHARED_SIZE = "shared_expert_intermediate_size"
_KEYS = reading.KEYS | WINDOW_KEYS | {
    "num_experts", "num_local_experts", "num_experts_per_tok", "moe_intermediate_size", "norm_topk_prob",
    "decoder_sparse_step", "mlp_only_layers",
}  # fmt: skip
MODEL_TYPES = {"qwen2_moe": _KEYS | {_SHARED_SIZE, "qkv_bias"}, "qwen3_moe": _KEYS | {"attention_bias"}}
GGUF = {
    "qwen2moe": Architecture(
        "qwen2_moe", MIXTURE | {"expert_shared_feed_forward_length": _SHARED_SIZE}, {"norm_topk_prob": False}
    ),
    "qwen3moe": Architecture("qwen3_moe", MIXTURE, {"norm_topk_prob": True}),
}

EXPERTS = {"model.layers.{i}.mlp.gate.weight": "layers.{i}.router"} | {
    f"model.layers.{{i}}.mlp.experts.{{e}}.{name}_proj.weight": f"layers.{{i}}.experts.w_{name}"
    for name in ("gate", "up", "down")
}
_SHARED = {"model.layers.{i}.mlp.shared_expert_gate.weight": "layers.{i}.shared.w_share"} | {
    f"model.layers.{{i}}.mlp.shared_expert.{name}_proj.weight": f"layers.{{i}}.shared.w_{name}"
    for name in ("gate", "up", "down")
}


@host
def spec(config: Mapping[str, Any]) -> ModelSpec:
    """Read a config of this family."""
    kind = config["model_type"]
    check_keys(config, MODEL_TYPES[kind])
    if kind == "qwen2_moe":
        mixer = reading.attention_spec(config, biases="qkv" if flag(config, "qkv_bias", True) else "")
    else:
        biases = "qkvo" if flag(config, "attention_bias") else ""
        mixer = reading.attention_spec(config, head_dim=128, biases=biases, qk_norm="head")
    mixers = [mixer] * layer_count(config)
    if slides := flag(config, "use_sliding_window"):
        if kind == "qwen2_moe" and not config.get("layer_types"):
            raise CheckpointError("config.json: use_sliding_window needs layer_types: readers disagree who slides")
        mixers = reading.windows(config, mixer, lambda _: True, 4096)
    if kind == "qwen3_moe" and set(reading.layer_kinds(config, lambda _: slides)) != {reading.KINDS[slides]}:
        raise CheckpointError("config.json: layer_types: by use_sliding_window all layers of qwen3_moe slide, or none")
    return reading.model_spec(config, "qwen_moe", reading.layers_of(mixers, _networks(config)))


def _networks(config: Mapping[str, Any]) -> Callable[[int], MlpSpec | MoeSpec]:
    """Say of a layer's number what its network is: dense where mlp_only_layers or decoder_sparse_step say so."""
    step, dense = integer(config, "decoder_sparse_step", 1), reading.layer_numbers(config, "mlp_only_layers")
    key = "num_local_experts" if config.get("num_experts") is None else "num_experts"
    mlp, gated = reading.mlp_spec(config), config["model_type"] == "qwen2_moe"
    experts, active, size = (60, 4, 1408) if gated else (128, 8, 768)
    moe = reading.moe_spec(
        config, (key, experts), ("num_experts_per_tok", active), integer(config, "moe_intermediate_size", size),
        routing=(("renormalise", flag(config, "norm_topk_prob")),), shared_gate=gated,
        shared_size=integer(config, _SHARED_SIZE, 5632) if gated else 0,
    )  # fmt: skip
    return lambda number: mlp if number in dense or (number + 1) % step else moe


@host
def weights(tensors: Mapping[str, Tensor], spec: ModelSpec) -> dict[str, Tensor]:
    """Name the tensors of a checkpoint of this family."""
    return name_weights(tensors, spec, TENSORS | EXPERTS | _SHARED, prefix="model.")
