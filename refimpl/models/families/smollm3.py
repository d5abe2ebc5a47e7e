"""SmolLM3: a Llama in which every fourth layer has no positions."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from refimpl.contract import CheckpointError, host
from refimpl.models.architecture import Architecture
from refimpl.models.config import check_keys, flag, integer, layer_count, shown
from refimpl.models.families.llama import weights
from refimpl.models.reading import KEYS, attention_spec, layers_of, mlp_spec, model_spec, windows
from refimpl.models.spec import ModelSpec

__all__ = ["GGUF", "MODEL_TYPES", "spec", "turning", "weights"]

MODEL_TYPES = {
    "smollm3": KEYS | {
        "attention_bias", "mlp_bias", "no_rope_layers", "no_rope_layer_interval", "use_sliding_window",
        "sliding_window", "layer_types", "max_window_layers",
    },
}  # fmt: skip
GGUF = {"smollm3": Architecture("smollm3", paired=True)}


@host
def turning(config: Mapping[str, Any]) -> list[bool]:
    """State which layers turn queries and keys: no_rope_layers marks them with 1; else all but every fourth."""
    count, every = layer_count(config), integer(config, "no_rope_layer_interval", 4)
    marks = config.get("no_rope_layers") or [int((number + 1) % every != 0) for number in range(count)]
    if not isinstance(marks, list) or len(marks) != count or any(mark not in (0, 1) for mark in marks):
        raise CheckpointError(f"config.json: no_rope_layers must hold {count} of 0 and 1, not {shown(marks)}")
    return [mark == 1 for mark in marks]


@host
def spec(config: Mapping[str, Any]) -> ModelSpec:
    """Read a config of this family; with use_sliding_window the layers without positions slide."""
    check_keys(config, MODEL_TYPES["smollm3"])
    turns = turning(config)
    mixer = attention_spec(config, biases="qkvo" if flag(config, "attention_bias") else "", theta=2e6)
    mixers = [mixer] * len(turns)
    if flag(config, "use_sliding_window") or config.get("layer_types"):
        mixers = windows(config, mixer, lambda number: not turns[number])
    mixers = [m if turned else replace(m, rope=None) for m, turned in zip(mixers, turns, strict=True)]
    network = mlp_spec(config, biased=flag(config, "mlp_bias"))
    return model_spec(config, "smollm3", layers_of(mixers, network), tied=True)
