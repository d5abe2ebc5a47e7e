"""What a family says about its GGUF files, beside what all of them have in common (see models/gguf_names.py)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from refimpl.contract import host

__all__ = ["MIXTURE", "NETWORK_NORM", "WINDOWS", "Architecture", "marked_layers"]

_PATTERN = "attention.sliding_window_pattern"
WINDOWS = {"attention.sliding_window": "sliding_window", _PATTERN: ""}
"""The metadata keys of files whose layers slide, some or all."""

MIXTURE = {
    "expert_count": "num_local_experts", "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
}  # fmt: skip
"""The metadata keys of mixtures of experts."""

NETWORK_NORM = {"post_attention_norm.weight": "mlp_norm.gain", "ffn_norm.weight": ""}
"""The tensors of files that name the norm before the network by the attention that it follows."""


@dataclass(frozen=True)
class Architecture:
    """How the files of an architecture, the value of general.architecture, become a config.json and weights."""

    model_type: str
    keys: Mapping[str, str] = field(default_factory=dict)  # metadata key to config key; to nothing: configure reads it
    absent: Mapping[str, Any] = field(default_factory=dict)  # config keys that hold where the file is silent
    tensors: Mapping[str, str] = field(default_factory=dict)  # of a layer, to weights, where most have another name
    configure: Callable[[dict[str, Any], Mapping[str, Any]], dict[str, Any]] = lambda config, meta: {}
    """Of the config made so far and the metadata without the architecture's name: what takes more than a name."""

    only: Mapping[str, Any] = field(default_factory=dict)  # metadata keys that have but one value that is supported
    paired: bool = False  # rows of q and k stand so that neighbours turn together, not the halves of a head
    rotary: bool = True


@host
def marked_layers(meta: Mapping[str, Any]) -> dict[str, Any]:
    """State layer_types where the metadata marks the layers that slide, or names the period of those that do not.

    >>> from refimpl.models.architecture import marked_layers
    >>> marked_layers({"attention.sliding_window_pattern": [True, False]})
    {'layer_types': ['sliding_attention', 'full_attention']}
    >>> marked_layers({"attention.sliding_window_pattern": 2, "block_count": 3})["layer_types"][1:]
    ['full_attention', 'sliding_attention']
    """
    marks, count = meta.get(_PATTERN), meta.get("block_count")
    if isinstance(marks, int) and isinstance(count, int) and 0 < count <= 4096:
        marks = [(number + 1) % marks != 0 for number in range(count)]
    return {"layer_types": ["sliding_attention" if mark else "full_attention" for mark in marks]} if marks else {}
