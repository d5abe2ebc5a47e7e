"""GLM-4.5 and 4.6: partial rotation, sigmoid routing in groups with a bias that only chooses, an expert for all."""

from collections.abc import Mapping
from typing import Any

from refimpl.contract import CheckpointError, host
from refimpl.models.architecture import MIXTURE, NETWORK_NORM, Architecture
from refimpl.models.config import check_keys, flag, integer, layer_count, number
from refimpl.models.families.llama import TENSORS
from refimpl.models.families.qwen_moe import EXPERTS
from refimpl.models.reading import KEYS, attention_spec, layers_of, mlp_spec, model_spec, moe_spec
from refimpl.models.spec import ModelSpec, MoeSpec
from refimpl.models.tensor import Tensor
from refimpl.models.weights import name_weights

__all__ = ["GGUF", "MODEL_TYPES", "spec", "weights"]

MODEL_TYPES = {
    "glm4_moe": KEYS | {
        "attention_bias", "use_qk_norm", "moe_intermediate_size", "n_routed_experts", "num_local_experts",
        "n_shared_experts", "num_experts_per_tok", "n_group", "topk_group", "norm_topk_prob", "routed_scaling_factor",
        "first_k_dense_replace", "num_nextn_predict_layers", "num_mtp_layers",
    },
}  # fmt: skip
GGUF = {
    "glm4moe": Architecture(
        "glm4_moe",
        MIXTURE | {
            "leading_dense_block_count": "first_k_dense_replace", "expert_weights_scale": "routed_scaling_factor",
            "expert_weights_norm": "norm_topk_prob", "expert_shared_count": "n_shared_experts",
            "expert_group_count": "n_group", "expert_group_used_count": "topk_group",
        },
        {"n_shared_experts": 0, "first_k_dense_replace": 0, "norm_topk_prob": False}, NETWORK_NORM,
        only={"expert_gating_func": 2},  # a sigmoid
    ),
}  # fmt: skip

_TENSORS = TENSORS | EXPERTS | {"model.layers.{i}.mlp.gate.e_score_correction_bias": "layers.{i}.router.correction"} | {
    f"model.layers.{{i}}.mlp.shared_experts.{name}_proj.weight": f"layers.{{i}}.shared.w_{name}"
    for name in ("gate", "up", "down")
}  # fmt: skip


@host
def spec(config: Mapping[str, Any]) -> ModelSpec:
    """Read a config of this family."""
    check_keys(config, MODEL_TYPES["glm4_moe"])
    mixer = attention_spec(
        config, partial=0.5, biases="qkv" if flag(config, "attention_bias") else "",
        qk_norm="head" if flag(config, "use_qk_norm") else "none",
    )  # fmt: skip
    dense, mlp, moe = integer(config, "first_k_dense_replace", 1, least=0), mlp_spec(config), _moe(config)
    layers = layers_of([mixer] * layer_count(config), lambda number: mlp if number < dense else moe)
    return model_spec(config, "glm4_moe", layers, eps=1e-5)


def _moe(config: Mapping[str, Any]) -> MoeSpec:
    groups, size = integer(config, "n_group", 1), integer(config, "moe_intermediate_size", 1408)
    best = integer(config, "topk_group", 1, most=groups)
    routing: dict[str, Any] = {"groups": groups, "top_groups": best}
    routing["scale"] = float(number(config, "routed_scaling_factor", 1.0, least=1e-6, most=1e6))
    routing["renormalise"] = flag(config, "norm_topk_prob", True)
    moe = moe_spec(
        config, ("n_routed_experts", integer(config, "num_local_experts", 128)), ("num_experts_per_tok", 8), size,
        router="sigmoid_group_top_k", routing=tuple(routing.items()), correction=True,
        shared_size=size * integer(config, "n_shared_experts", 1, least=0),
    )  # fmt: skip
    experts, active = moe.num_experts, moe.num_active
    if experts % groups or active > best * (experts // groups):
        raise CheckpointError(f"config.json: n_group {groups} of {experts} experts, the best {best} for {active}")
    return moe


@host
def weights(tensors: Mapping[str, Tensor], spec: ModelSpec) -> dict[str, Tensor]:
    """Name the tensors of a checkpoint of this family; layers that only guess further tokens are left out."""
    own = {name: tensor for name, tensor in tensors.items() if not name.startswith(f"model.layers.{spec.num_layers}.")}
    return name_weights(own, spec, _TENSORS, prefix="model.")
