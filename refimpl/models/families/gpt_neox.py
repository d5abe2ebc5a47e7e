"""GPT-NeoX, Pythia: attention and network read the same x, heads turn in part, q, k and v are stored head by head."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from refimpl.contract import host
from refimpl.models import reading
from refimpl.models.architecture import Architecture
from refimpl.models.config import activation, check_keys, flag, integer, layer_count, number
from refimpl.models.spec import MlpSpec, ModelSpec
from refimpl.models.tensor import Tensor
from refimpl.models.weights import name_weights

__all__ = ["GGUF", "MODEL_TYPES", "spec", "weights"]

MODEL_TYPES = {
    "gpt_neox": reading.KEYS - {"rms_norm_eps", "num_key_value_heads", "head_dim"} | {
        "layer_norm_eps", "rotary_pct", "rotary_emb_base", "use_parallel_residual", "attention_bias", "hidden_dropout",
    },
}  # fmt: skip
GGUF = {
    "gptneox": Architecture(
        "gpt_neox",
        {"attention.layer_norm_epsilon": "layer_norm_eps", "use_parallel_residual": "use_parallel_residual"},
        {"use_parallel_residual": False},
    ),
}

_STACK = "attention.query_key_value"
_TENSORS = {"gpt_neox.embed_in.weight": "embedding", "embed_out.weight": "lm_head"} | {
    f"gpt_neox.{name}.{kind}": " ".join(ours.replace("*", part) for ours in targets.split())
    for name, targets, parts in (
        ("final_layer_norm", "final_norm.*", ("gain", "bias")),
        ("layers.{i}.input_layernorm", "layers.{i}.attention_norm.*", ("gain", "bias")),
        ("layers.{i}.post_attention_layernorm", "layers.{i}.mlp_norm.*", ("gain", "bias")),
        (f"layers.{{i}}.{_STACK}", "layers.{i}.*_q layers.{i}.*_k layers.{i}.*_v", ("w", "b")),
        ("layers.{i}.attention.dense", "layers.{i}.*_o", ("w", "b")),
        ("layers.{i}.mlp.dense_h_to_4h", "layers.{i}.*_up", ("w", "b")),
        ("layers.{i}.mlp.dense_4h_to_h", "layers.{i}.*_down", ("w", "b")),
    )
    for kind, part in zip(("weight", "bias"), parts, strict=True)
}


@host
def spec(config: Mapping[str, Any]) -> ModelSpec:
    """Read a config of this family; an absent rotary_pct is 0.25."""
    check_keys(config, MODEL_TYPES["gpt_neox"])
    old = {"partial_rotary_factor": config.get("rotary_pct", 0.25), "rope_theta": config.get("rotary_emb_base")}
    biases = "qkvo" if flag(config, "attention_bias", True) else ""
    mixer = reading.attention_spec({**old, **config}, partial=0.25, biases=biases)
    act = activation(config, "hidden_act", "gelu")
    network = MlpSpec(integer(config, "intermediate_size"), act, gated=False, biases=("b_up", "b_down"))
    norms = "parallel" if flag(config, "use_parallel_residual", True) else "before"
    layers = reading.layers_of([mixer] * layer_count(config), network, norms)
    eps = float(number(config, "layer_norm_eps", 1e-5, least=0, most=1))
    return reading.model_spec(config, "gpt_neox", layers, norm="layer", eps=eps)


@host
def weights(tensors: Mapping[str, Tensor], spec: ModelSpec) -> dict[str, Tensor]:
    """Name the tensors of a checkpoint of this family, with all queries first, then all keys, then all values."""
    rows = np.arange(3 * spec.num_heads * spec.head_dim).reshape(spec.num_heads, 3, -1).swapaxes(0, 1).reshape(-1)
    sorted_tensors = {
        name: tensor.take_rows(rows) if _STACK in name and len(rows) == tensor.shape[0] else tensor
        for name, tensor in tensors.items()
    }
    return name_weights(sorted_tensors, spec, _TENSORS, prefix="gpt_neox.")
