"""Qwen2-MoE and Qwen3-MoE: Qwen with mixtures of many small experts; those of Qwen2 have a gated expert for all."""

from collections.abc import Callable, Mapping
from typing import Any

from refimpl.contract import CheckpointError, host
from refimpl.models.config import activation, check_keys, flag, integer, layer_count, shown
from refimpl.models.families.llama import TENSORS
from refimpl.models.families.qwen2 import WINDOW_KEYS
from refimpl.models.reading import KEYS, attention_spec, layers_of, mlp_spec, model_spec, windows
from refimpl.models.spec import MlpSpec, ModelSpec, MoeSpec
from refimpl.models.tensor import Tensor
from refimpl.models.weights import name_weights

__all__ = ["EXPERTS", "MODEL_TYPES", "spec", "weights"]

_KEYS = KEYS | WINDOW_KEYS | {
    "num_experts", "num_local_experts", "num_experts_per_tok", "moe_intermediate_size", "norm_topk_prob",
    "decoder_sparse_step", "mlp_only_layers",
}  # fmt: skip
MODEL_TYPES = {
    "qwen2_moe": _KEYS | {"shared_expert_intermediate_size", "qkv_bias"},
    "qwen3_moe": _KEYS | {"attention_bias"},
}
GGUF = {"qwen2moe": "qwen2_moe", "qwen3moe": "qwen3_moe"}

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
        biases = "qkv" if flag(config, "qkv_bias", True) else ""
        mixer = attention_spec(config, biases=biases)
    else:
        biases = "qkvo" if flag(config, "attention_bias") else ""
        mixer = attention_spec(config, head_dim=128, biases=biases, qk_norm="head")
    mixers = [mixer] * layer_count(config)
    if flag(config, "use_sliding_window"):
        if kind == "qwen2_moe" and not config.get("layer_types"):
            raise CheckpointError("config.json: use_sliding_window needs layer_types: readers disagree who slides")
        mixers = windows(config, mixer, lambda _: True, 4096)
    return model_spec(config, "qwen_moe", layers_of(mixers, _networks(config)))


def _networks(config: Mapping[str, Any]) -> Callable[[int], MlpSpec | MoeSpec]:
    """Say of a layer's number what its network is: dense where mlp_only_layers or decoder_sparse_step say so."""
    kind, step = config["model_type"], integer(config, "decoder_sparse_step", 1)
    dense = config.get("mlp_only_layers") or []
    if not isinstance(dense, list) or any(type(number) is not int for number in dense):
        raise CheckpointError(f"config.json: mlp_only_layers must list numbers of layers, not {shown(dense)}")
    key = "num_local_experts" if config.get("num_experts") is None else "num_experts"
    experts = integer(config, key, {"qwen2_moe": 60, "qwen3_moe": 128}[kind], most=4096)
    active = integer(config, "num_experts_per_tok", {"qwen2_moe": 4, "qwen3_moe": 8}[kind], most=experts)
    size = integer(config, "moe_intermediate_size", {"qwen2_moe": 1408, "qwen3_moe": 768}[kind])
    routing = (("renormalise", flag(config, "norm_topk_prob")),)
    act, gated = activation(config, "hidden_act", "silu"), kind == "qwen2_moe"
    shared = integer(config, "shared_expert_intermediate_size", 5632) if gated else 0
    moe = MoeSpec(experts, active, size, act, routing=routing, shared_size=shared, shared_gate=gated)
    mlp = mlp_spec(config)
    return lambda number: mlp if number in dense or (number + 1) % step else moe


@host
def weights(tensors: Mapping[str, Tensor], spec: ModelSpec) -> dict[str, Tensor]:
    """Name the tensors of a checkpoint of this family."""
    ignored = ("lm_head.weight",) if spec.tied_embeddings else ()
    return name_weights(tensors, spec, TENSORS | EXPERTS | _SHARED, prefix="model.", ignored=ignored)
