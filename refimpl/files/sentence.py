"""How a folder of a sentence encoder says that texts become vectors: modules.json and what it names."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from refimpl.contract import Array, CheckpointError, Float, host
from refimpl.files.checkpoint import read_json
from refimpl.models.config import flag, integer

__all__ = ["Recipe", "pool", "read_recipe"]

_POOLS = ("cls_token", "max_tokens", "mean_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken")
"""Ways from the states of tokens to a vector, in the order in which several are put together."""


@dataclass(frozen=True)
class Recipe:
    """From the states of a text's tokens to its vector."""

    pools: tuple[str, ...] = ("mean_tokens",)
    normalize: bool = False  # to length 1
    max_tokens: int | None = None  # of a text, with its special ones; the rest is left out
    lower: bool = False  # the text, before it is cut into tokens


@host
def read_recipe(folder: Path) -> Recipe | None:
    """Read the recipe of a folder in the layout of sentence-transformers; None where there is none.

    Errors: CheckpointError where it holds modules that are not understood, or damaged files.
    Source: sbert.net, sentence_transformers.models.
    """
    try:
        modules = json.loads((folder / "modules.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{folder / 'modules.json'} cannot be read: {str(error)[:200]}") from error
    entries = [entry if isinstance(entry, dict) else {} for entry in modules] if isinstance(modules, list) else [{}]
    kinds = [str(entry.get("type", "")).rpartition(".")[2] for entry in entries]
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        listed = ", ".join(kinds)[:120] or "nothing"
        raise CheckpointError(f"modules.json must list Transformer, Pooling and perhaps Normalize, not {listed}")
    path = str(entries[1].get("path", ""))
    if not path.replace("_", "").isalnum():
        raise CheckpointError(f"modules.json: the path of Pooling must be a folder beside it, not {path[:80]!r}")
    settings = read_json(where) if (where := folder / "sentence_bert_config.json").is_file() else {}
    most = settings.get("max_seq_length")
    return Recipe(
        _read_pools(read_json(folder / path / "config.json")), "Normalize" in kinds,
        None if most is None else integer(settings, "max_seq_length"), flag(settings, "do_lower_case"),
    )  # fmt: skip


def _read_pools(config: dict[str, Any]) -> tuple[str, ...]:
    prefix = "pooling_mode_"
    known = {f"{prefix}{name}": name for name in _POOLS}
    for key, value in config.items():
        if key.startswith(prefix) and key not in known and value:
            raise CheckpointError(f"the config of Pooling: {key} is not supported; supported: {', '.join(known)}")
    pools = tuple(name for key, name in known.items() if flag(config, key))
    if not pools:
        raise CheckpointError(f"the config of Pooling names no way to pool: one of {', '.join(known)}")
    return pools


@host
def pool(states: Float[Array, "T D"], recipe: Recipe) -> Float[Array, " width"]:
    """Make one vector of the states of a text's tokens, special ones included and padding not.

    Math: of the rows x[t]: the first, the largest of each column, sum_t x[t] / T, sum_t x[t] / sqrt(T),
        sum_t (t + 1) x[t] / sum_t (t + 1), the last; of several, one behind the other; y / max(|y|, 1e-12).
    Source: Reimers, Gurevych, Sentence-BERT, 2019; sentence_transformers.models.Pooling.

    >>> pool(np.array([[3.0, 0.0], [3.0, 8.0]]), Recipe(("mean_tokens",), normalize=True))
    array([0.6, 0.8])
    """
    T, each = len(states), np.arange(1, len(states) + 1, dtype=states.dtype)
    ways = {
        "cls_token": lambda: states[0], "max_tokens": lambda: states.max(0), "mean_tokens": lambda: states.sum(0) / T,
        "mean_sqrt_len_tokens": lambda: states.sum(0) / T**0.5,
        "weightedmean_tokens": lambda: each @ states / each.sum(), "lasttoken": lambda: states[-1],
    }  # fmt: skip
    vector = np.concatenate([ways[name]() for name in recipe.pools])
    return vector / max(float(np.linalg.norm(vector)), 1e-12) if recipe.normalize else vector
