"""Faults of samplers: boundaries, ties, order, and draws at the edge."""

from typing import Any

import numpy as np

from golden.derive import sampler as derive
from golden.derive.activation import softmax
from golden.values import Array

__all__ = [
    "all_ties_parted", "best_is_last", "bias_replaces", "counts_all", "counts_once", "cut_by_value",
    "cut_tokens_return", "cuts_on_one_distribution", "divides_always", "divides_by_zero", "draw_counts_from_above",
    "draw_last_if_none", "draw_may_stop_at_zero", "draw_of_any_positive", "every_step_acts", "k_always_first",
    "k_wraps", "k_zero_is_one", "lengths_of_output", "mass_above", "mass_crossing_dropped", "mass_in_float32",
    "mass_of_rounded", "min_p_absolute", "output_only", "presence_over_prompt", "prompt_counts_as_output",
    "race_ignores_probs", "race_is_lost", "race_of_all", "race_of_logarithms", "race_with_epsilon",
    "repeats_compound", "sample_ignores_chain", "sample_overflows", "temperature_first", "temperature_inverted",
    "temperature_last", "ties_kept",
]  # fmt: skip


def _only(logits: Array, kept: Array) -> Array:
    return np.where(np.isin(np.arange(len(logits)), kept), logits, -np.inf)


def best_is_last(logits: Array) -> Array:
    """The last of equal maxima."""
    return derive.greedy(logits[::-1])[::-1]


def divides_by_zero(logits: Array, t: float) -> Array:
    """Logits over the temperature, in their own dtype, whatever it is."""
    return logits / logits.dtype.type(t)


def temperature_inverted(logits: Array, t: float) -> Array:
    """Multiplied by the temperature."""
    return logits * t


def ties_kept(logits: Array, k: int) -> Array:
    """All that reach the k-th value stay (Hugging Face, vLLM)."""
    return logits if k == 0 else np.where(logits >= np.sort(logits)[::-1][min(k, len(logits)) - 1], logits, -np.inf)


def mass_above(logits: Array, p: float) -> Array:
    """A token stays while the mass ranked above it is at most p (Meta, Mistral, SGLang)."""
    order = np.argsort(-logits, kind="stable")
    probs = softmax(logits)[order]
    above = np.cumsum(probs) - probs
    return _only(logits, order[above <= p])


def mass_crossing_dropped(logits: Array, p: float) -> Array:
    """The token that crosses p goes too."""
    order = np.argsort(-logits, kind="stable")
    return _only(logits, order[np.cumsum(softmax(logits)[order]) <= p])


def cut_by_value(logits: Array, p: float) -> Array:
    """All that equal the last kept token stay."""
    kept = derive.top_p(logits, p)
    return np.where(logits >= kept[np.isfinite(kept)].min(), logits, -np.inf)


def min_p_absolute(logits: Array, p: float) -> Array:
    """The threshold is p, not p times the best."""
    return np.where(softmax(logits) >= p, logits, -np.inf)


def divides_always(logits: Array, ids: Array, penalty: float) -> Array:
    """Negative logits are divided too, and become likelier."""
    return np.where(np.isin(np.arange(len(logits)), ids), logits / penalty, logits)


def repeats_compound(logits: Array, ids: Array, penalty: float) -> Array:
    """Every mention counts, not every token."""
    for i in ids:
        logits = derive.repetition_penalty(logits, [i], penalty)
    return logits


def counts_once(logits: Array, ids: Array, penalty: float) -> Array:
    """Presence where frequency is meant."""
    return derive.presence_penalty(logits, ids, penalty)


def counts_all(logits: Array, ids: Array, penalty: float) -> Array:
    """Frequency where presence is meant."""
    return derive.frequency_penalty(logits, ids, penalty)


def bias_replaces(logits: Array, bias: Any) -> Array:
    """The bias takes the place of the logit."""
    y = logits.copy()
    for i, value in bias:
        y[i] = value
    return y


def draw_may_stop_at_zero(probs: Array, u: float) -> int:
    """The first running sum that reaches u: u = 0 lands on a probability of 0."""
    return int(np.searchsorted(np.cumsum(probs), u * probs.sum(), side="left"))


def draw_counts_from_above(probs: Array, u: float) -> int:
    """Compares with u and not with u times the total, and falls off the end."""
    return min(int(np.searchsorted(np.cumsum(probs), u, side="right")), len(probs) - 1)


def temperature_last(logits: Array, prompt_ids: Any, output_ids: Any, chain: Any) -> Array:
    """The temperature acts after the cuts, wherever it stands (llama.cpp)."""
    moved = sorted(chain, key=lambda step: step[0] == "temperature")
    return derive.apply_chain(logits, prompt_ids, output_ids, moved)


def temperature_first(logits: Array, prompt_ids: Any, output_ids: Any, chain: Any) -> Array:
    """The temperature acts before the cuts, wherever it stands."""
    moved = sorted(chain, key=lambda step: step[0] != "temperature")
    return derive.apply_chain(logits, prompt_ids, output_ids, moved)


def cuts_on_one_distribution(logits: Array, prompt_ids: Any, output_ids: Any, chain: Any) -> Array:
    """Every cut judges the distribution before all cuts: top-p sees what top-k has dropped."""
    kept = [derive.apply_chain(logits, prompt_ids, output_ids, (step,)) for step in chain]
    return np.where(np.all(np.isfinite(kept), axis=0), logits, -np.inf)


def output_only(logits: Array, prompt_ids: Any, output_ids: Any, chain: Any) -> Array:
    """The repetition penalty forgets the prompt."""
    return derive.apply_chain(logits, (), output_ids, chain)


def mass_in_float32(logits: Array, p: float) -> Array:
    """The mass summed in float32 reaches 1 before the last tokens."""
    order = np.argsort(-logits, kind="stable")
    mass = np.cumsum(softmax(logits)[order].astype(np.float32), dtype=np.float32)
    return _only(logits, order[: int(np.searchsorted(mass, min(p, mass[-1]))) + 1])


def k_wraps(logits: Array, k: int) -> Array:
    """k is taken modulo the vocabulary."""
    return derive.top_k(logits, k % len(logits))


def cut_tokens_return(logits: Array, k: int) -> Array:
    """Tokens cut before are made up for, with a finite logit."""
    return derive.top_k(np.nan_to_num(logits, neginf=-1e30), k)


def k_zero_is_one(logits: Array, k: int) -> Array:
    """k = 0 keeps the best alone."""
    return derive.top_k(logits, max(k, 1))


def sample_overflows(logits: Array, prompt_ids: Any, output_ids: Any, chain: Any, u: float) -> int:
    """Logits over T in float16: several are inf, their softmax NaN, and the search runs to an end."""
    scaled = logits
    for _, t in chain:
        scaled = divides_by_zero(scaled, t)
    weights = np.exp(scaled - scaled.max())
    return int(np.searchsorted(np.cumsum(weights / weights.sum()), u, side="right")) % len(logits)


def sample_ignores_chain(logits: Array, prompt_ids: Any, output_ids: Any, chain: Any, u: float) -> int:
    """Draws from the whole distribution."""
    return derive.draw(softmax(logits), u)


def k_always_first(logits: Array, prompt_ids: Any, output_ids: Any, chain: Any) -> Array:
    """The cuts have one fixed order: k before p."""
    moved = sorted(chain, key=lambda step: step[0] != "top_k")
    return derive.apply_chain(logits, prompt_ids, output_ids, moved)


def presence_over_prompt(logits: Array, prompt_ids: Any, output_ids: Any, chain: Any) -> Array:
    """The presence penalty counts the prompt too."""
    for step in chain:
        said = [*prompt_ids, *output_ids]
        logits = derive.apply_chain(logits, prompt_ids, said, (step,))
    return logits


def mass_of_rounded(logits: Array, p: float) -> Array:
    """The mass is a running sum of rounded probabilities."""
    order = np.argsort(-logits, kind="stable")
    return _only(logits, order[: int(np.searchsorted(np.cumsum(softmax(logits)[order]), p)) + 1])


def draw_of_any_positive(probs: Array, u: float) -> int:
    """The running sum in float64: at u = 0 the first positive probability is drawn, however small."""
    return int(np.searchsorted(np.cumsum(probs, dtype=np.float64), u * probs.sum(dtype=np.float64), side="right"))


def draw_last_if_none(probs: Array, u: float) -> int:
    """The last token where the search finds none in float32: its probability may be 0."""
    running = np.cumsum(probs, dtype=np.float32)
    above = np.flatnonzero(running > np.float32(np.nextafter(np.float32(1), np.float32(2)) * u))
    return int(above[0]) if len(above) else len(probs) - 1


def all_ties_parted(logits: Array, k: int, ties: str) -> Array:
    """Exactly k, whatever is asked for."""
    return derive.top_k(logits, k)


def race_is_lost(probs: Array, noise: Array) -> int:
    """The last one wins."""
    return int(np.argmax(np.where(probs > 0, noise / probs, 0)))


def race_of_all(probs: Array, noise: Array) -> int:
    """A token of probability 0 runs too: at once, where its time is 0."""
    return int(np.nanargmax(np.where(noise == 0, np.inf, probs / noise)))


def race_ignores_probs(probs: Array, noise: Array) -> int:
    """All are equally fast."""
    return int(np.argmin(np.where(probs > 0, noise, np.inf)))


def race_with_epsilon(probs: Array, noise: Array) -> int:
    """A small number is added, lest a probability be 0: those that are smaller are drawn at random."""
    return int(np.argmin(noise / (probs + 1e-9)))


def race_of_logarithms(probs: Array, noise: Array) -> int:
    """log p - e in place of log p - log e: the noise is that of another race."""
    return int(np.argmax(np.log(probs) - noise))


def lengths_of_output(logits: Array, prompt_ids: Any, output_ids: Any, chain: Any) -> Array:
    """Lengths are those of the output where prompt and output are meant."""
    return derive.apply_chain(logits, (), output_ids, chain)


def every_step_acts(logits: Array, prompt_ids: Any, output_ids: Any, chain: Any) -> Array:
    """What is forced at a length is forced from the start."""
    said = [*prompt_ids, *output_ids]
    moved = [(name, (len(said), *value[1:])) if name == "force_tokens" else (name, value) for name, value in chain]
    return derive.apply_chain(logits, prompt_ids, output_ids, moved)


def prompt_counts_as_output(logits: Array, prompt_ids: Any, output_ids: Any, chain: Any) -> Array:
    """The tokens of the prompt are counted where those of the output are meant."""
    return derive.apply_chain(logits, (), [*prompt_ids, *output_ids], chain)
