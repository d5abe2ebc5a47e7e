"""The part of the adapter for ``compare.py`` that concerns chains of logits processors, by their Hugging Face names."""

import os
from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["chain_of", "process_logits"]


def _pairs(settings: dict[str, Any]) -> Any:
    return tuple((tuple(sequence), bias) for sequence, bias in settings["sequence_bias"])


STEPS: dict[str, tuple[str, Callable[[dict[str, Any], tuple[int, ...]], Any]]] = {
    "SequenceBiasLogitsProcessor": ("sequence_bias", lambda settings, eos: _pairs(settings)),
    "RepetitionPenaltyLogitsProcessor": ("repetition_penalty", lambda settings, eos: settings["repetition_penalty"]),
    "NoRepeatNGramLogitsProcessor": ("no_repeat_ngram", lambda settings, eos: settings["no_repeat_ngram_size"]),
    "NoBadWordsLogitsProcessor": ("bad_words", lambda settings, eos: settings["bad_words_ids"]),
    "MinLengthLogitsProcessor": ("min_length", lambda settings, eos: (settings["min_length"], eos)),
    "MinNewTokensLengthLogitsProcessor": ("min_tokens", lambda settings, eos: (settings["min_new_tokens"], eos)),
    "ForcedEOSTokenLogitsProcessor": (
        "force_tokens",
        lambda settings, eos: (settings["max_length"] - 1, (settings["forced_eos_token_id"],)),
    ),
    "ExponentialDecayLengthPenalty": (
        "exponential_decay",
        lambda settings, eos: (*settings["exponential_decay_length_penalty"], eos),
    ),
    "SuppressTokensLogitsProcessor": ("suppress_tokens", lambda settings, eos: settings["suppress_tokens"]),
    "SuppressTokensAtBeginLogitsProcessor": (
        "min_tokens",
        lambda settings, eos: (1, settings["begin_suppress_tokens"]),
    ),
    "TemperatureLogitsWarper": ("temperature", lambda settings, eos: settings["temperature"]),
    "TopHLogitsWarper": ("top_h", lambda settings, eos: settings["top_h"]),
    "TopKLogitsWarper": ("top_k", lambda settings, eos: (settings["top_k"], "all")),
    "TopPLogitsWarper": ("top_p", lambda settings, eos: settings["top_p"]),
    "MinPLogitsWarper": ("min_p", lambda settings, eos: settings["min_p"]),
    "TypicalLogitsWarper": ("typical", lambda settings, eos: settings["typical_p"]),
    "EpsilonLogitsWarper": ("epsilon_cutoff", lambda settings, eos: settings["epsilon_cutoff"]),
    "EtaLogitsWarper": ("eta_cutoff", lambda settings, eos: settings["eta_cutoff"]),
    "LogitNormalization": ("log_softmax", lambda settings, eos: None),
}


def chain_of(config: dict[str, Any]) -> tuple[tuple[str, Any], ...]:
    """Return the chain that a case's config describes, in its order."""
    chain: list[tuple[str, Any]] = []
    for name in config["order"]:
        if name not in STEPS:
            raise NotImplementedError(f"{name} is no step of ours")
        step, value = STEPS[name]
        chain += [("top_k", 100)] if step == "top_h" else []  # all that Hugging Face's looks at
        chain.append((step, value(config["generation"], (config["eos_token_id"],))))
    return tuple(chain)


def _top_p(row: np.ndarray, p: float) -> np.ndarray:
    """Cut by top-p; where the boundary parts equal tokens, in the order in which torch sorts them."""
    from refimpl.llm.cuts import top_p

    kept = top_p(row, p)
    lost = np.isneginf(kept) & ~np.isneginf(row)
    if not np.isin(row[lost], kept[~np.isneginf(kept)]).any():
        return kept
    try:
        import torch
    except ImportError:
        raise NotImplementedError("which of equal tokens survive is the choice of torch.sort: install torch") from None
    order = torch.sort(torch.from_numpy(row)).indices.flip(0).numpy()
    kept[order] = top_p(row[order], p)
    return kept


def process_logits(path: str, input_ids: Any, logits: Any, config: dict[str, Any]) -> np.ndarray:
    """Apply a case's chain to each row of logits; DTYPE=float64 computes in float64."""
    from refimpl.llm.sampler import apply_chain

    length = config["prompt_length"]
    rows = np.array(logits, os.environ.get("DTYPE", "float32"))
    for row, ids in zip(rows, np.asarray(input_ids).tolist(), strict=True):
        for name, value in chain_of(config):
            step = ((name, value),)
            row[:] = _top_p(row, value) if name == "top_p" else apply_chain(row, ids[:length], ids[length:], step)
    return rows
