"""Phi-3: a Llama whose files stack query, key and value, and gate and up, in one matrix each."""

from collections.abc import Mapping
from typing import Any

from refimpl.contract import host
from refimpl.models.config import check_keys, layer_count, layer_windows
from refimpl.models.families import llama
from refimpl.models.spec import ModelSpec
from refimpl.models.tensor import Tensor
from refimpl.models.weights import name_weights

__all__ = ["MODEL_TYPES", "spec", "weights"]

MODEL_TYPES = ("phi3",)

_TENSORS = {name: targets for name, targets in llama.TENSORS.items() if "_proj" not in name} | {
    "model.layers.{i}.self_attn.qkv_proj.weight": "layers.{i}.w_q layers.{i}.w_k layers.{i}.w_v",
    "model.layers.{i}.self_attn.o_proj.weight": "layers.{i}.w_o",
    "model.layers.{i}.mlp.gate_up_proj.weight": "layers.{i}.w_gate layers.{i}.w_up",
    "model.layers.{i}.mlp.down_proj.weight": "layers.{i}.w_down",
}


@host
def spec(config: Mapping[str, Any]) -> ModelSpec:
    """Read a config of this family; every layer slides where sliding_window is set."""
    unused = {"full_attn_mod", "interpolate_factor"}  # Phi-4-mini states them, its model reads neither
    check_keys(config, llama.KEYS | {"sliding_window"} | unused)
    slides = layer_windows(config, layer_count(config), 0)
    return llama.llama_like(config, "phi3", norm_eps=1e-5, windows=slides)


@host
def weights(tensors: Mapping[str, Tensor], spec: ModelSpec) -> dict[str, Tensor]:
    """Name the tensors of a checkpoint of this family."""
    ignored = ("lm_head.weight",) if spec.tied_embeddings else ()
    return name_weights(tensors, spec, _TENSORS, prefix="model.", ignored=ignored)
