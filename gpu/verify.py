"""--verify: the same ids through the reference, and the hidden states layer by layer."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpu.cli.output import Answer
from refimpl.contract import host

__all__ = ["LayerError", "layer_errors", "verify"]


@dataclass(frozen=True)
class LayerError:
    """How far one hidden state is from the float64 truth, relative to the largest value in its row."""

    name: str
    error: float  # of the executor
    allowed: float  # what rounding explains, see ``layer_errors``

    @property
    def rounding(self) -> bool:
        """Whether float32 rounding explains the difference."""
        return self.error <= self.allowed


def _error(x: Any, truth: Any) -> float:
    scale = np.maximum(np.abs(truth).max(axis=-1, keepdims=True), np.finfo(np.float32).tiny)
    return float((np.abs(x - truth) / scale).max())


@host
def layer_errors(states: Sequence[Any], reference: Sequence[Any], truth: Sequence[Any]) -> list[LayerError]:
    """Compare hidden states (embeddings, each layer, the final norm) with the reference in float64.

    What float32 costs is known from the reference itself, run in float32. Its sums run in 16 lanes or more; one that
    adds term after term errs sqrt(16) times as much, and the maxima of two such errors differ by twice: eight times
    that, and four units in the last place of the row's largest value.
    """
    ulps = 4 * float(np.finfo(np.float32).eps)
    names = ["embedding", *(f"layer {i}" for i in range(len(truth) - 2)), f"layer {len(truth) - 2} and final norm"]
    return [
        LayerError(name, _error(x, t), 8 * _error(r, t) + ulps)
        for name, x, r, t in zip(names, states, reference, truth, strict=True)
    ]


def _first_difference(ids: Sequence[int], expected: Sequence[int]) -> int | None:
    return next((i for i, (a, b) in enumerate(zip(ids, expected, strict=False)) if a != b), None)


@host
def verify(model: Any, answer: Answer, options: argparse.Namespace, settings: dict[str, Any]) -> tuple[bool, list[str]]:
    """Run the reference on the answer's prompt; return whether the ids agree, and the lines that say so."""
    import refimpl

    exact = refimpl.load(options.model, dtype="float64", offline=options.offline)
    ids = [*answer.prompt_ids, *answer.ids[:-1]]
    truth = exact.hidden_states(ids)
    del exact
    plain = refimpl.load(options.model, dtype="float32", offline=options.offline)
    expected = [token.id for token in plain.generate(answer.prompt_ids, **{**settings, "max_tokens": len(answer.ids)})]
    errors = layer_errors(model.hidden_states(ids), plain.hidden_states(ids), truth)
    lines = [f"verify   {e.name}: error {e.error:.1e}, rounding allows {e.allowed:.1e}" for e in errors]
    beyond = next((e for e in errors if not e.rounding), None)
    lines.append(
        f"verify   {beyond.name} is the first to differ beyond float32 rounding"
        if beyond else "verify   no layer differs beyond float32 rounding"
    )
    place = _first_difference(answer.ids, expected)
    if place is None:
        return True, [*lines, f"verify   all {len(answer.ids)} ids are the reference's"]
    wrong = f"id {place} is {answer.ids[place]}, the reference's is {expected[place]}"
    return False, [*lines, f"verify   {wrong}"]
