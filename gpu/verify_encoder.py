"""--verify of encoders and encoder-decoders: hidden states and ids beside those of the specification."""

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gpu.cli.output import Answer
from gpu.encoders import rounded_weights
from gpu.verify import layer_errors
from refimpl.contract import Array, host
from refimpl.model import open_model
from refimpl.seq2seq_model import other_model

__all__ = ["verify_answer", "verify_texts"]


def _references(options: argparse.Namespace) -> tuple[Any, Any]:
    """Load the specification in float64 and in float32, with the weights that the model on the device holds."""
    source = open_model(options.model, offline=options.offline)
    weights = rounded_weights(source, None if options.dtype == "auto" else options.dtype)
    wide = {name: weight.astype(np.float64) for name, weight in weights.items()}
    truth, plain = (other_model(source.spec, w, source.tokenizer, source.path) for w in (wide, weights))
    return truth, plain


def _compared(
    outputs: Mapping[str, Array], plain: Mapping[str, Array], truth: Mapping[str, Array]
) -> tuple[bool, list[str]]:
    """Compare the hidden states of all layers of one text."""
    lines, same = list[str](), True
    for name in (name for name in truth if name.endswith("hidden_states")):
        side = "decoder " if name.startswith("decoder") else "encoder "
        errors = layer_errors(*(list(x[name][:, 0]) for x in (outputs, plain, truth)))
        lines += [f"verify   {side}{e.name}: error {e.error:.1e}, rounding allows {e.allowed:.1e}" for e in errors]
        same = same and all(e.rounding for e in errors)
    return same, lines


@host
def verify_texts(
    model: Any, texts: Sequence[Sequence[int]], options: argparse.Namespace
) -> tuple[bool, list[str]]:
    """Run the specification on the first text; return whether all layers agree, and the lines that say so."""
    truth, plain = (reference.forward([texts[0]]) for reference in _references(options))
    same, lines = _compared(model.forward([texts[0]]), plain, truth)
    return same, [*lines, f"verify   {'no' if same else 'a'} layer differs beyond float32 rounding"]


@host
def verify_answer(
    model: Any, answer: Answer, options: argparse.Namespace, settings: dict[str, Any]
) -> tuple[bool, list[str]]:
    """Run the specification on the answer's text; return whether ids and layers agree, and the lines that say so."""
    truth, plain = _references(options)
    given = [answer.prompt_ids], [[*model.spec.start_ids, *answer.ids[:-1]]]
    same, lines = _compared(*(some.forward(*given) for some in (model, plain, truth)))
    expected = [token.id for token in plain.generate(answer.prompt_ids, **{**settings, "max_tokens": len(answer.ids)})]
    lines.append(f"verify   {'no' if same else 'a'} layer differs beyond float32 rounding")
    place = next((i for i, (a, b) in enumerate(zip(answer.ids, expected, strict=False)) if a != b), None)
    lines.append(
        f"verify   all {len(answer.ids)} ids are the reference's" if place is None
        else f"verify   id {place} is {answer.ids[place]}, the reference's is {expected[place]}"
    )  # fmt: skip
    return same and place is None, lines
