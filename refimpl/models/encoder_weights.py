"""The tensors of a file as the weights of an encoder or an encoder-decoder, module by module."""

import re
from collections.abc import Mapping

from refimpl.contract import host
from refimpl.models.encoder_spec import (
    HEADS,
    EncoderDecoderSpec,
    EncoderSpec,
    encoder_decoder_shapes,
    encoder_shapes,
)
from refimpl.models.tensor import Tensor
from refimpl.models.weights import check_copy, take_tensors

__all__ = ["take_modules"]

_BARE = ("embedding", "lm_head", "distance_bias")  # modules whose weight has their own name
_MATRICES_OF_HEADS = {
    "cls.predictions.decoder.weight", "lm_head.decoder.weight", "lm_head.weight", "vocab_projector.weight",
}  # fmt: skip
_COMPUTED = ("position_ids", "rotary_emb.inv_freq")  # what old files keep beside their weights


@host
def take_modules(
    tensors: Mapping[str, Tensor], spec: EncoderSpec | EncoderDecoderSpec, modules: Mapping[str, str], *,
    prefix: str = "", ignored: tuple[str, ...] = (),
) -> dict[str, Tensor]:
    """Take the tensors of a file by our names, each checked against its shape.

    ``modules`` maps a module of the file to ours, ``{i}`` standing for every layer: of "layers.{i}.q", weight and bias
    become "w_q" and "b_q", of a norm "gain" and "bias", of an embedding the name itself. A head may be absent as a
    whole, the prefix in all names. Tensors whose names begin or end with one of ``ignored`` stay where they are.
    """
    shapes = encoder_shapes(spec) if isinstance(spec, EncoderSpec) else encoder_decoder_shapes(spec)
    table = {name: theirs for module, ours in modules.items() for name, theirs in _weights(module, ours).items()}
    bare = {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}
    ignored += _COMPUTED
    known = {n: tensor for n, tensor in bare.items() if not n.startswith(ignored) and not n.endswith(ignored)}
    named = {name: theirs for name in shapes if (theirs := _of_layer(name, table)) is not None}
    there = {name.split(".")[0] for name, theirs in named.items() if theirs in known}
    wanted = {name: theirs for name, theirs in named.items() if name.split(".")[0] in there or not _is_head(name)}
    taken = take_tensors(known, {name: (theirs, shapes[name]) for name, theirs in wanted.items()}, spec.family)
    has_head = isinstance(spec, EncoderDecoderSpec) or "mask.w_map" in taken
    for name in sorted(_MATRICES_OF_HEADS & bare.keys()) if has_head and spec.tied_embeddings else ():
        check_copy(name, bare[name], taken["embedding"])
    return taken


def _is_head(name: str) -> bool:
    return name.split(".")[0] in HEADS


def _weights(module: str, ours: str) -> dict[str, str]:
    """Return the names of a module's weight and bias, ours and those of the file."""
    stem, _, last = ours.rpartition(".")
    stem += "." if stem else ""
    names = f"{stem}w_{last}", f"{stem}b_{last}"
    if last.endswith("norm"):
        names = f"{ours}.gain", f"{ours}.bias"
    elif last.endswith(_BARE):
        names = ours, f"{ours}.bias"
    return dict(zip(names, (f"{module}.weight", f"{module}.bias"), strict=True))


def _of_layer(name: str, table: Mapping[str, str]) -> str | None:
    """Return how the file names one of our weights; None where the family has no such head."""
    number = re.search(r"(?<=layers\.)\d+", name)
    if number is None:
        return table.get(name) if _is_head(name) else table[name]
    return table[name.replace(f"layers.{number[0]}.", "layers.{i}.")].replace("{i}", number[0])
