"""What the configs of encoders have in common."""

from collections.abc import Mapping
from typing import Any

from refimpl.contract import CheckpointError, host
from refimpl.models.config import activation, integer, layer_count, number
from refimpl.models.encoder_spec import EncoderSpec, StackSpec
from refimpl.models.spec import MlpSpec

__all__ = ["bert_like", "classes", "head_width"]


@host
def head_width(width: int, heads: int) -> int:
    """Divide a width among heads.

    >>> head_width(48, 5)
    Traceback (most recent call last):
    ...
    refimpl.contract.CheckpointError: config.json: 5 heads do not divide a width of 48
    """
    if width % heads:
        raise CheckpointError(f"config.json: {heads} heads do not divide a width of {width}")
    return width // heads


@host
def classes(config: Mapping[str, Any]) -> int:
    """Count the classes of a classifier, of which id2label has the names: 2 where it says nothing."""
    named = config.get("id2label")
    return len(named) if isinstance(named, dict) and named else integer(config, "num_labels", 2)


@host
def bert_like(config: Mapping[str, Any], family: str, **fields: Any) -> EncoderSpec:
    """Read what all these encoders share, by BERT's keys; ``fields`` sets the rest of the EncoderSpec."""
    width, heads = integer(config, "hidden_size"), integer(config, "num_attention_heads")
    act = activation(config, "hidden_act", "gelu")
    network = MlpSpec(integer(config, "intermediate_size"), act, gated=False, biases=("b_up", "b_down"))
    rows = integer(config, "max_position_embeddings", 512)
    eps = float(number(config, "layer_norm_eps", 1e-12, least=0, most=1))
    stack = StackSpec(layer_count(config), heads, head_width(width, heads), network, norm_eps=eps, positions=rows)
    return EncoderSpec(
        family, integer(config, "vocab_size"), width, stack, rows,
        **{"pad_id": integer(config, "pad_token_id", 0, least=0), **fields},
    )  # fmt: skip
