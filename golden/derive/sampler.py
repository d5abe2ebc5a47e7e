"""Samplers as sets: each cut sorts the tokens by value and index, and says which of them stay."""

import math
from collections.abc import Callable, Iterable
from fractions import Fraction
from typing import Any

import numpy as np

from golden.derive import bans, tail_cuts
from golden.derive.activation import log_softmax, softmax
from golden.values import Array

__all__ = [
    "apply_chain", "draw", "draw_race", "frequency_penalty", "greedy", "logit_bias", "min_p", "presence_penalty",
    "repetition_penalty", "sample", "temperature", "top_k", "top_p",
]  # fmt: skip


def _order(logits: Array) -> list[int]:
    return sorted(range(len(logits)), key=lambda i: (-logits[i], i))


def _keep(logits: Array, kept: Iterable[int]) -> Array:
    cut = np.full(len(logits), -np.inf)
    for i in kept:
        cut[i] = logits[i]
    return cut


def greedy(logits: Array) -> Array:
    return _keep(logits, _order(logits)[:1])


def temperature(logits: Array, t: float) -> Array:
    return greedy(logits) if t == 0 else logits / t


def top_k(logits: Array, k: int, ties: str = "first") -> Array:
    first = _order(logits)[: k or None]
    return _keep(logits, first if ties == "first" else [i for i in _order(logits) if logits[i] >= logits[first[-1]]])


def _units(weight: float, unit: Fraction) -> int:
    return round(Fraction(weight) / unit)


def top_p(logits: Array, p: float) -> Array:
    mass = {i: _units(math.exp(logits[i] - max(logits)), Fraction(1, 2**40)) for i in _order(logits)}
    kept: list[int] = []
    for i in mass:
        if kept and p < 1 and sum(mass[j] for j in kept) * 2**53 >= math.floor(p * 2**53) * sum(mass.values()):
            break
        kept.append(i)
    return _keep(logits, kept)


def min_p(logits: Array, p: float) -> Array:
    probs = softmax(logits)
    return _keep(logits, [i for i in range(len(logits)) if probs[i] >= p * max(probs)])


def repetition_penalty(logits: Array, ids: Array, penalty: float) -> Array:
    y = logits.copy()
    for i in {int(i) for i in ids}:
        y[i] = y[i] / penalty if y[i] > 0 else y[i] * penalty
    return y


def presence_penalty(logits: Array, ids: Array, penalty: float) -> Array:
    return np.array([value - penalty * (i in ids) for i, value in enumerate(logits)])


def frequency_penalty(logits: Array, ids: Array, penalty: float) -> Array:
    return np.array([value - penalty * list(ids).count(i) for i, value in enumerate(logits)])


def logit_bias(logits: Array, bias: Iterable[tuple[int, float]]) -> Array:
    y = logits.copy()
    for i, value in bias:
        y[i] += value
    return y


def draw(probs: Array, u: float) -> int:
    unit = Fraction(2) ** (math.frexp(max(probs))[1] - 40)
    units = [_units(p, unit) for p in probs]
    for i in range(len(units)):
        if sum(units[: i + 1]) * 2**53 > math.floor(u * 2**53) * sum(units):
            return i
    raise ValueError("u is not below 1")


def draw_race(probs: Array, noise: Array) -> int:
    return min((float(noise[i]) / float(probs[i]), i) for i in range(len(probs)) if probs[i] > 0)[1]


def apply_chain(logits: Array, prompt_ids: Any, output_ids: Any, chain: Any) -> Array:
    text = [*prompt_ids, *output_ids]
    steps: dict[str, Callable[[Array, Any], Array]] = {
        "greedy": lambda x, _: greedy(x), "temperature": temperature, "logit_bias": logit_bias,
        "top_k": lambda x, k: top_k(x, *k) if isinstance(k, tuple) else top_k(x, k), "top_p": top_p, "min_p": min_p,
        "typical": tail_cuts.typical, "epsilon_cutoff": tail_cuts.epsilon_cutoff, "eta_cutoff": tail_cuts.eta_cutoff,
        "top_n_sigma": tail_cuts.top_n_sigma, "top_h": tail_cuts.top_h, "log_softmax": lambda x, _: log_softmax(x),
        "no_repeat_ngram": lambda x, n: bans.no_repeat_ngram(x, text, n),
        "bad_words": lambda x, words: bans.bad_words(x, text, words),
        "sequence_bias": lambda x, biases: bans.sequence_bias(x, text, biases),
        "suppress_tokens": bans.suppress_tokens,
        "min_length": lambda x, value: bans.suppress_tokens(x, value[1] if len(text) < value[0] else ()),
        "min_tokens": lambda x, value: bans.suppress_tokens(x, value[1] if len(output_ids) < value[0] else ()),
        "force_tokens": lambda x, value: bans.force_tokens(x, value[1]) if len(text) == value[0] else x,
        "exponential_decay": lambda x, value: bans.exponential_decay(
            x, value[2], value[1], max(len(output_ids) - value[0], 0)
        ),
        "repetition_penalty": lambda x, penalty: repetition_penalty(x, text, penalty),
        "presence_penalty": lambda x, penalty: presence_penalty(x, output_ids, penalty),
        "frequency_penalty": lambda x, penalty: frequency_penalty(x, output_ids, penalty),
    }  # fmt: skip
    for name, value in chain:
        logits = steps[name](logits, value)
    return logits


def sample(logits: Array, prompt_ids: Any, output_ids: Any, chain: Any, u: float) -> int:
    return draw(softmax(apply_chain(logits, prompt_ids, output_ids, chain)), u)
