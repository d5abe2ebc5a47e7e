"""gpt-oss: sinks, every second layer slides, biases everywhere, a mixture of clamped experts, often in MXFP4."""

from collections.abc import Mapping
from typing import Any

from refimpl.contract import CheckpointError, host
from refimpl.models.architecture import MIXTURE, NETWORK_NORM, WINDOWS, Architecture, marked_layers
from refimpl.models.config import check_keys, flag, integer, number
from refimpl.models.families.llama import TENSORS
from refimpl.models.reading import KEYS, attention_spec, layers_of, model_spec, moe_spec, windows
from refimpl.models.spec import ModelSpec
from refimpl.models.tensor import Tensor
from refimpl.models.weights import name_weights

__all__ = ["GGUF", "MODEL_TYPES", "spec", "weights"]

MODEL_TYPES = {
    "gpt_oss": KEYS | {
        "attention_bias", "sliding_window", "layer_types", "num_local_experts", "num_experts", "num_experts_per_tok",
        "experts_per_token", "swiglu_limit", "swiglu_alpha", "initial_context_length",
    },
}  # fmt: skip

_ROTATION = {  # where a config states none
    "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
    "original_max_position_embeddings": 4096,
}  # fmt: skip
GGUF = {
    "gpt-oss": Architecture(
        "gpt_oss",
        WINDOWS | MIXTURE | {"expert_feed_forward_length": "intermediate_size", "feed_forward_length": ""},
        tensors=NETWORK_NORM,
        configure=lambda config, meta: marked_layers(meta) | {  # it says nothing of truncate, which was published false
            "rope_scaling": {"type": "default", **(config["rope_scaling"] or {}), "truncate": False}
        },
    ),
}

_PAIR = "layers.{i}.experts.%s_gate layers.{i}.experts.%s_up"
_TENSORS = TENSORS | {
    "model.layers.{i}.self_attn.sinks": "layers.{i}.sinks",
    "model.layers.{i}.mlp.router.weight": "layers.{i}.router",
    "model.layers.{i}.mlp.router.bias": "layers.{i}.router.bias",
    "model.layers.{i}.mlp.experts.gate_up_proj": _PAIR % ("w", "w"),
    "model.layers.{i}.mlp.experts.gate_up_proj_bias": _PAIR % ("b", "b"),
    "model.layers.{i}.mlp.experts.down_proj": "layers.{i}.experts.w_down",
    "model.layers.{i}.mlp.experts.down_proj_bias": "layers.{i}.experts.b_down",
}


@host
def spec(config: Mapping[str, Any]) -> ModelSpec:
    """Read a config of this family."""
    check_keys(config, MODEL_TYPES["gpt_oss"])
    if number(config, "swiglu_alpha", 1.702, least=0, most=1e3) != 1.702:
        raise CheckpointError(f"config.json: swiglu_alpha must be 1.702, not {config['swiglu_alpha']}")
    rotation = config.get("rope_parameters") or config.get("rope_scaling") or _ROTATION
    mixer = attention_spec(
        {**config, "rope_parameters": rotation}, head_dim=64, theta=150000.0, sinks=True,
        biases="qkvo" if flag(config, "attention_bias", True) else "",
    )  # fmt: skip
    key = "num_experts" if config.get("num_local_experts") is None else "num_local_experts"
    moe = moe_spec(
        config, (key, 128), ("num_experts_per_tok", 4), integer(config, "intermediate_size"),
        activation="swiglu_clamped", limit=float(number(config, "swiglu_limit", 7.0, least=1e-6, most=1e6)),
        router="top_k_softmax", router_bias=True, biases=True,
    )  # fmt: skip
    mixers = windows(config, mixer, lambda number: number % 2 == 0, 128)
    return model_spec(config, "gpt_oss", layers_of(mixers, moe), eps=1e-5)


@host
def weights(tensors: Mapping[str, Tensor], spec: ModelSpec) -> dict[str, Tensor]:
    """Name the tensors of a checkpoint of this family: gate and up are stored in turn."""
    return name_weights(
        tensors, spec, _TENSORS, prefix="model.", transposed=("gate_up_proj", "experts.down_proj"),
        interleaved=("gate_up_proj", "gate_up_proj_bias"),
    )
