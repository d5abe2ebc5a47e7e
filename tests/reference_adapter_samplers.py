"""The part of the adapter for ``compare.py`` that concerns chains of logits processors, by their Hugging Face names."""

import os
from typing import Any

import numpy as np

__all__ = ["chain_of", "process_logits"]

STEPS = {
    "RepetitionPenaltyLogitsProcessor": "repetition_penalty",
    "TemperatureLogitsWarper": "temperature",
    "TopKLogitsWarper": "top_k",
    "TopPLogitsWarper": "top_p",
    "MinPLogitsWarper": "min_p",
}


def chain_of(config: dict[str, Any]) -> tuple[tuple[str, Any], ...]:
    """Return the chain that a case's config describes, in its order."""
    settings, chain = config["generation"], []
    for name in config["order"]:
        if name == "SuppressTokensLogitsProcessor":
            chain.append(("logit_bias", tuple((i, -np.inf) for i in settings["suppress_tokens"])))
        elif name in STEPS:
            chain.append((STEPS[name], settings[STEPS[name]]))
        else:
            raise NotImplementedError(f"{name} is no step of ours")
    return tuple(chain)


def process_logits(path: str, input_ids: Any, logits: Any, config: dict[str, Any]) -> np.ndarray:
    """Apply a case's chain to each row of logits; DTYPE=float64 computes in float64."""
    from refimpl.llm.sampler import apply_chain

    chain = chain_of(config)
    rows = np.asarray(logits, os.environ.get("DTYPE", "float32"))
    prompts = np.asarray(input_ids).tolist()
    return np.stack([apply_chain(row, ids, [], chain) for row, ids in zip(rows, prompts, strict=True)])
