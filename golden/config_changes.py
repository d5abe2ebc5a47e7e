"""Every key of a config.json that may show in a model's answers, and configs in which it alone is another."""

from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["changed_configs"]

_INERT = {
    "model_type", "architectures", "vocab_size", "bos_token_id", "eos_token_id", "pad_token_id", "dtype", "torch_dtype",
    "max_position_embeddings", "n_positions", "use_cache", "type", "rope_type", "transformers_version",
    "intermediate_size", "tie_word_embeddings",
}  # fmt: skip
"""Keys that say what the rest means, or that short prompts do not show, or that the tensors of the file tell."""

_WORDS = ("silu", "gelu", "relu", "gelu_pytorch_tanh")
_KINDS = ("sliding_attention", "full_attention")


def _changes(value: Any) -> list[Any]:
    """List other values of a key, the most telling first."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int | float):
        near = [value * 2, value // 2, value + 1, value - 1] if isinstance(value, int) else [value * 1.25, value / 2]
        return [other for other in near if other > 0]
    if isinstance(value, str):
        return [word for word in _WORDS if word != value][:2]
    if isinstance(value, list) and value:
        marks = set(value) <= {0, 1}
        kinds = [kind for kind in _KINDS if kind != value[0]]
        others = [1 - value[0]] if marks else kinds if isinstance(value[0], str) else _changes(value[0])
        return [[other, *value[1:]] for other in others]
    return []


def changed_configs(config: Mapping[str, Any], within: str = "") -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yield every key that may show, and configs in which it alone has another value.

    >>> list(changed_configs({"model_type": "llama", "tie": True, "rope": {"theta": 8}}))[0]
    ('tie', [{'model_type': 'llama', 'tie': False, 'rope': {'theta': 8}}])
    >>> [name for name, _ in changed_configs({"model_type": "llama", "tie": True, "rope": {"theta": 8}})]
    ['tie', 'rope.theta']
    """
    for key, value in config.items():
        if isinstance(value, dict) and value:
            for name, others in changed_configs(value, f"{within}{key}."):
                yield name, [{**config, key: other} for other in others]
        elif key not in _INERT and _changes(value):
            yield f"{within}{key}", [{**config, key: other} for other in _changes(value)]
