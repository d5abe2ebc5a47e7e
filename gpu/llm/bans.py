"""Bans and what else ids decide: a block owns a run of the vocabulary, and every block reads all ids.

Biases and growth are float64, as the specification adds them.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from gpu import device
from gpu.grid import blocks_for
from gpu.llm.ban_kernels import RUN, marked_kernel, sequence_kernel
from gpu.number import DTYPES, named
from gpu.registry import Variant
from refimpl.contract import Array, Float, Int, kernel, op, require, whole

__all__ = [
    "VARIANTS", "bad_words", "bad_words_into", "exponential_decay", "exponential_decay_into", "force_tokens",
    "force_tokens_into", "no_repeat_ngram", "no_repeat_ngram_into", "sequence_bias", "sequence_bias_into",
    "suppress_tokens", "suppress_tokens_into",
]

_THREADS = 256


@op
def suppress_tokens(logits: Float[Array, " V"], tokens: Int[Array, " tokens"]) -> Float[Array, " V"]:
    """A block of 256 threads to 2048 tokens; those among the ids are counted in shared memory."""
    _check(logits, tokens)
    return _made(suppress_tokens_into, logits, tokens)


@kernel
def suppress_tokens_into(out: Float[Array, " V"], logits: Float[Array, " V"], tokens: Int[Array, " tokens"]) -> None:
    """Write the logits, -inf for the tokens; they are int64, ``out`` may be ``logits``."""
    _mark("suppress", out, logits, tokens)


@op
def force_tokens(logits: Float[Array, " V"], tokens: Int[Array, " tokens"]) -> Float[Array, " V"]:
    """As ``suppress_tokens``."""
    _check(logits, tokens)
    require(len(tokens) > 0, "C1", "at least one token is forced")
    return _made(force_tokens_into, logits, tokens)


@kernel
def force_tokens_into(out: Float[Array, " V"], logits: Float[Array, " V"], tokens: Int[Array, " tokens"]) -> None:
    """Write 0 for the tokens and -inf for all others; they are int64, ``out`` may be ``logits``."""
    _mark("force", out, logits, tokens)


@op
def no_repeat_ngram(logits: Float[Array, " V"], ids: Int[Array, " ids"], n: int) -> Float[Array, " V"]:
    """As ``suppress_tokens``; a thread compares the n - 1 ids before its own with the last ones of the text."""
    _check(logits, ids)
    require(whole("n", n) >= 0, "C2", f"n is 0 or more, got {n}")
    if n == 0 or len(ids) < n:
        return device.array(logits)
    return _made(no_repeat_ngram_into, logits, ids, n)


@kernel
def no_repeat_ngram_into(
    out: Float[Array, " V"], logits: Float[Array, " V"], ids: Int[Array, " ids"], n: int
) -> None:
    """Write the logits, -inf for what would repeat n ids, n > 0; ids are int64, ``out`` may be ``logits``."""
    _mark("ngram", out, logits, ids, n=n)


@op
def sequence_bias(
    logits: Float[Array, " V"], ids: Int[Array, " ids"], biases: Sequence[tuple[Sequence[int], float]]
) -> Float[Array, " V"]:
    """A block of 256 threads to 2048 tokens copies them, waits, and adds the biases that are its own.

    A thread takes a sequence, whose ids stand in one row with those of all others.
    """
    sequences = [sequence for sequence, _ in biases]
    bad = [bias for _, bias in biases if not bias < np.inf]
    tokens, starts = _flat(logits, ids, sequences)
    require(not bad, "C3", f"a bias is a number below +inf, got {bad[:1]}")
    return _made(sequence_bias_into, logits, ids, tokens, starts, np.array([bias for _, bias in biases], np.float64))


@kernel
def sequence_bias_into(
    out: Float[Array, " V"], logits: Float[Array, " V"], ids: Int[Array, " ids"], tokens: Int[Array, " tokens"],
    starts: Int[Array, " starts"], values: Float[Array, " sequences"],
) -> None:  # fmt: skip
    """Add values, float64, to the tokens that complete a sequence; sequence j is tokens[starts[j] : starts[j + 1]].

    Ids, tokens and starts are int64; ``out`` may be ``logits``.
    """
    made = sequence_kernel(named(logits))
    device.launch(made, blocks_for(len(logits), RUN), _THREADS, out, logits, ids, tokens, starts, values)


@op
def bad_words(
    logits: Float[Array, " V"], ids: Int[Array, " ids"], words: Sequence[Sequence[int]]
) -> Float[Array, " V"]:
    """As ``sequence_bias``, with biases of -inf."""
    tokens, starts = _flat(logits, ids, words)
    return _made(bad_words_into, logits, ids, tokens, starts)


@kernel
def bad_words_into(
    out: Float[Array, " V"], logits: Float[Array, " V"], ids: Int[Array, " ids"], tokens: Int[Array, " tokens"],
    starts: Int[Array, " starts"],
) -> None:  # fmt: skip
    """Write the logits, -inf for what would complete a word; arguments as those of ``sequence_bias_into``."""
    sequence_bias_into(out, logits, ids, tokens, starts, device.array(np.full(len(starts) - 1, -np.inf)))


@op
def exponential_decay(
    logits: Float[Array, " V"], tokens: Int[Array, " tokens"], factor: float, excess: int
) -> Float[Array, " V"]:
    """As ``suppress_tokens``; the power is the host's."""
    _check(logits, tokens)
    require(0 < factor < np.inf, "C2", f"the factor is positive and finite, got {factor}")
    require(whole("excess", excess) >= 0, "C3", f"the excess is 0 or more tokens, got {excess}")
    with np.errstate(over="ignore"):
        growth = min(np.float64(factor) ** excess, np.finfo(np.float64).max) - 1
    return _made(exponential_decay_into, logits, tokens, float(growth))


@kernel
def exponential_decay_into(
    out: Float[Array, " V"], logits: Float[Array, " V"], tokens: Int[Array, " tokens"], growth: float
) -> None:
    """Write the logits, those of the tokens with ``growth`` times their size more; they are int64."""
    _mark("decay", out, logits, tokens, growth=growth)


def _check(logits: Array, *rows: Array) -> None:
    """Demand one row of logits, and rows of ids in the vocabulary."""
    fits = logits.ndim == 1 and all(ids.ndim == 1 and ids.dtype.kind in "iu" for ids in rows)
    shapes = ", ".join(f"{ids.dtype} {ids.shape}" for ids in rows)
    require(fits, "C1", f"logits are one row, ids rows of integers, got {logits.shape} and {shapes}")
    named(logits)
    ends = [int(end) for ids in rows if ids.size for end in (ids.min(), ids.max())]
    inside = all(0 <= end < len(logits) for end in ends)
    require(inside, "C1", f"ids are in [0, {len(logits)}), got {min(ends, default=0)} to {max(ends, default=0)}")


def _flat(logits: Array, ids: Array, sequences: Sequence[Sequence[int]]) -> tuple[Array, Array]:
    """Return the tokens of all sequences in one row, and where each of them starts."""
    tokens = np.array([token for sequence in sequences for token in sequence], np.int64)
    _check(logits, ids, tokens)
    require(all(len(sequence) > 0 for sequence in sequences), "C2", "a sequence holds at least one id")
    return tokens, np.cumsum([0, *map(len, sequences)]).astype(np.int64)


def _made(into: Any, logits: Array, ids: Array, *rest: Any) -> Array:
    """Return what a launcher writes, its arrays brought to the device."""
    out = device.empty(logits.shape, logits.dtype)
    arrays = (device.array(each) if isinstance(each, np.ndarray) else each for each in rest)
    into(out, device.array(logits), device.array(ids, np.int64), *arrays)
    return out


def _mark(rule: str, out: Array, logits: Array, ids: Array, n: int = 1, growth: float = 0.0) -> None:
    made = marked_kernel(named(logits), rule)
    device.launch(made, blocks_for(len(logits), RUN), _THREADS, out, logits, ids, n, growth)


def _takes(logits: Array, *_: Any, **__: Any) -> bool:
    return str(logits.dtype) in DTYPES


def _workload(ids: str, **setting: Any) -> dict[str, Any]:
    draw = np.random.default_rng(0)
    return {"logits": draw.standard_normal(32000).astype(np.float32), ids: draw.integers(0, 32000, 500)} | setting


_SEQUENCES = [((7,), 2.5), ((11, 13), -4.0), ((7, 19), 3.0)]

VARIANTS = (
    Variant("numba", "suppress_tokens", suppress_tokens, _takes, lambda: _workload("tokens")),
    Variant("numba", "force_tokens", force_tokens, _takes, lambda: _workload("tokens")),
    Variant("numba", "no_repeat_ngram", no_repeat_ngram, _takes, lambda: _workload("ids", n=3)),
    Variant("numba", "bad_words", bad_words, _takes, lambda: _workload("ids", words=[each for each, _ in _SEQUENCES])),
    Variant("numba", "sequence_bias", sequence_bias, _takes, lambda: _workload("ids", biases=_SEQUENCES)),
    Variant(
        "numba", "exponential_decay", exponential_decay, _takes, lambda: _workload("tokens", factor=1.1, excess=3)
    ),
)
