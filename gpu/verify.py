"""--verify: the same ids through the reference, and the hidden states layer by layer.

The reference has the weights that the executor holds: matrices converted as --dtype says, vectors in float32. With
--activations int8 its linear maps round their inputs as the specification's ``linear_int8`` does.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from gpu.cli.output import Answer
from gpu.executor.weights import DTYPES
from refimpl import operations
from refimpl.basics import activation as activations
from refimpl.basics.gated import swiglu_clamped
from refimpl.blocks import FORMATS
from refimpl.contract import Array, host
from refimpl.llm.quantize import linear_int8
from refimpl.model import Model, open_model
from refimpl.models.tensor import Tensor

__all__ = ["LayerError", "layer_errors", "reference", "verify"]

_SPREAD = {"float32": 8.0, "int8": 2.0}


@dataclass(frozen=True)
class LayerError:
    """How far one hidden state is from the float64 truth, relative to the largest value in its row."""

    name: str
    error: float  # of the executor
    allowed: float  # what rounding explains, see ``layer_errors``

    @property
    def rounding(self) -> bool:
        """Whether rounding explains the difference."""
        return self.error <= self.allowed


def _error(x: Any, truth: Any) -> float:
    scale = np.maximum(np.abs(truth).max(axis=-1, keepdims=True), np.finfo(np.float32).tiny)
    return float((np.abs(x - truth) / scale).max())


@host
def layer_errors(
    states: Sequence[Any], reference: Sequence[Any], truth: Sequence[Any], rounding: str = "float32"
) -> list[LayerError]:
    """Compare hidden states (embeddings, each layer, the final norm) with the reference in float64.

    What rounding costs is known from the reference itself, run with it. The maxima of two such errors differ by twice.
    In float32 its sums run in 16 lanes or more, and one that adds term after term errs sqrt(16) times as much. Inputs
    rounded to int8 err so much more that the order of a sum no longer counts, though it does decide here and there
    to which integer an input goes: two right answers are as far apart as each is from the truth. Beside that, four
    units in the last place of the row's largest value are allowed.
    """
    ulps = 4 * float(np.finfo(np.float32).eps)
    names = ["embedding", *(f"layer {i}" for i in range(len(truth) - 2)), f"layer {len(truth) - 2} and final norm"]
    return [
        LayerError(name, _error(x, t), _SPREAD[rounding] * _error(r, t) + ulps)
        for name, x, r, t in zip(names, states, reference, truth, strict=True)
    ]


def _linear(x: Array, w: Array | Tensor, b: Array | None = None) -> Array:
    if not isinstance(w, Tensor):
        return operations.linear(x, w, b)
    y = linear_int8(x, w.data, w.format)
    return y if b is None else y + b


def _mlp(x: Array, up: Any, down: Any, b_up: Any = None, b_down: Any = None, *, activation: str) -> Array:
    return _linear(getattr(activations, activation)(_linear(x, up, b_up)), down, b_down)


def _gated_mlp(
    x: Array, gate: Any, up: Any, down: Any, b_gate: Any = None, b_up: Any = None, b_down: Any = None, *,
    activation: str,
) -> Array:  # fmt: skip
    opened = getattr(activations, activation)(_linear(x, gate, b_gate))
    return _linear(opened * _linear(x, up, b_up), down, b_down)


def _grouped_moe(
    x: Array, ids: Array, shares: Array, *stacks: Any, activation: str, limit: float, weight_inputs: bool
) -> Array:
    """Mix the experts of each token, expert by expert."""
    given = np.zeros((*ids.shape, x.shape[1]), x.dtype)
    for e in map(int, np.unique(ids)):
        tokens, places = np.nonzero(ids == e)
        rows = x[tokens] * (shares[tokens, places, None] if weight_inputs else 1)
        gate, up, down, *biases = (_entry(stack, e) for stack in stacks)
        opened = _opened(activation, _linear(rows, gate, biases[0]), _linear(rows, up, biases[1]), limit)
        given[tokens, places] = _linear(opened, down, biases[2])
    return (given if weight_inputs else given * shares[:, :, None]).sum(1)


def _entry(stack: Any, e: int) -> Any:
    return None if stack is None else stack.part(e) if isinstance(stack, Tensor) else stack[e]


def _opened(activation: str, gate: Array, up: Array, limit: float) -> Array:
    if activation == "swiglu_clamped":
        return swiglu_clamped(gate, up, limit=limit)
    return getattr(activations, activation)(gate) * up


def _add_shared_expert(
    y: Array, x: Array, gate: Any, up: Any, down: Any, share: Any = None, *, activation: str
) -> Array:
    part = 1 if share is None else activations.sigmoid(_linear(x, share))
    return y + part * _gated_mlp(x, gate, up, down, activation=activation)


_ROUNDED = {
    "linear": _linear, "mlp": _mlp, "gated_mlp": _gated_mlp, "grouped_moe": _grouped_moe,
    "add_shared_expert": _add_shared_expert,
}  # fmt: skip


@host
def reference(options: argparse.Namespace, dtype: Any, rounding: str = "float32") -> Model:
    """Load the reference in ``dtype``, with the weights that an executor with these options holds."""
    source = open_model(options.model, offline=options.offline)
    narrow = np.float32 if options.dtype == "auto" else DTYPES[options.dtype]
    matrices = {name for name, tensor in source.weights.items() if len(tensor.shape) > 1 and ".b_" not in name}
    matrices -= {"position_embedding"}
    weights: dict[str, Any] = {
        name: tensor.read(narrow if name in matrices else np.float32).astype(dtype, copy=False)
        for name, tensor in source.weights.items()
    }
    if rounding != "int8":
        return Model(source.spec, weights, source.tokenizer)
    for name in matrices:
        tensor = source.weights[name]
        if options.dtype == "auto" and tensor.format in FORMATS and FORMATS[tensor.format].elements == 32:
            if name != "embedding":
                weights[name] = tensor
            elif "lm_head" not in source.weights:  # tied: rows are looked up as they are, but multiplied in int8
                weights["lm_head"] = tensor
    spec = replace(source.spec, tied_embeddings="lm_head" not in weights)
    return Model(spec, weights, source.tokenizer, SimpleNamespace(**vars(operations) | _ROUNDED))


def _first_difference(ids: Sequence[int], expected: Sequence[int]) -> int | None:
    return next((i for i, (a, b) in enumerate(zip(ids, expected, strict=False)) if a != b), None)


@host
def verify(model: Any, answer: Answer, options: argparse.Namespace, settings: dict[str, Any]) -> tuple[bool, list[str]]:
    """Run the reference on the answer's prompt; return whether ids and layers agree, and the lines that say so."""
    rounding, ids = options.activations, [*answer.prompt_ids, *answer.ids[:-1]]
    truth = reference(options, np.float64).hidden_states(ids)
    plain = reference(options, np.float32, rounding)
    expected = [token.id for token in plain.generate(answer.prompt_ids, **{**settings, "max_tokens": len(answer.ids)})]
    errors = layer_errors(model.hidden_states(ids), plain.hidden_states(ids), truth, rounding)
    lines = [f"verify   {e.name}: error {e.error:.1e}, rounding allows {e.allowed:.1e}" for e in errors]
    beyond = next((e for e in errors if not e.rounding), None)
    lines.append(
        f"verify   {beyond.name} is the first to differ beyond {rounding} rounding"
        if beyond else f"verify   no layer differs beyond {rounding} rounding"
    )
    place = _first_difference(answer.ids, expected)
    lines.append(
        f"verify   all {len(answer.ids)} ids are the reference's"
        if place is None else f"verify   id {place} is {answer.ids[place]}, the reference's is {expected[place]}"
    )
    return beyond is None and place is None, lines
