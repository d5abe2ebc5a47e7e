"""The tensors of a file under the names of ModelSpec, each checked against its shape."""

import re
from collections.abc import Iterator, Mapping
from itertools import accumulate

import numpy as np

from refimpl.blocks import FORMATS
from refimpl.contract import CheckpointError, host
from refimpl.models.spec import ModelSpec, weight_shapes
from refimpl.models.tensor import Tensor, stack

__all__ = ["check_copy", "name_weights", "take_tensors"]

_NUMBERS = ("float64", "float32", "float16", "bfloat16")

_HARMLESS = re.compile(r"\.(rotary_emb\.inv_freq|attn\.bias|attn\.masked_bias|attn_rot_embd)$")
"""What old checkpoints keep beside their weights: tables and masks that the model computes."""


@host
def name_weights(
    tensors: Mapping[str, Tensor],
    spec: ModelSpec,
    table: Mapping[str, str],
    *,
    prefix: str = "",
    transposed: tuple[str, ...] = (),
    interleaved: tuple[str, ...] = (),
    ignored: tuple[str, ...] = (),
) -> dict[str, Tensor]:
    """Rename, split, stack and check the tensors of a file.

    ``table`` maps a tensor of the file to the weights whose rows it stacks, by their names with blanks between;
    ``{i}`` stands for every layer, ``{e}`` for every expert where each has tensors of its own. The prefix may be absent
    from the file. Tensors whose names end in one of ``transposed`` are stored [in, out], unless in blocks; those in
    ``interleaved`` hold the rows of their weights in turn.
    """
    shapes, weights, used = weight_shapes(spec), dict[str, Tensor](), set[str]()

    def take(name: str, wanted: list[str], first: int) -> dict[str, Tensor]:
        bare = name.removeprefix(prefix)
        name = bare if name not in tensors and bare in tensors else name
        used.add(name)
        turned = name.endswith(transposed) and (name not in tensors or tensors[name].format not in FORMATS)
        return _split(tensors, name, {key: shapes[key][first:] for key in wanted}, turned, name.endswith(interleaved))

    for name, targets in _entries(table, spec.num_layers):
        wanted = [target for target in targets if target in shapes]
        if wanted and "{e}" in name:
            each = [take(name.replace("{e}", str(e)), wanted, 1) for e in range(shapes[wanted[0]][0])]
            weights |= {key: _stack(key, [parts[key] for parts in each]) for key in wanted}
        elif wanted:
            weights |= take(name, wanted, 0)
    if spec.tied_embeddings and "lm_head.weight" in tensors:
        check_copy("lm_head.weight", tensors["lm_head.weight"], weights["embedding"])
        ignored += ("lm_head.weight",)
    left = [name for name in tensors if name not in used and name not in ignored and not _HARMLESS.search(name)]
    if left:
        raise CheckpointError(f"tensor {left[0]} is not part of this {spec.family} model ({len(left)} such tensors)")
    return {name: weights[name] for name in shapes}


@host
def take_tensors(
    tensors: Mapping[str, Tensor], table: Mapping[str, tuple[str, tuple[int, ...]]], model: str
) -> dict[str, Tensor]:
    """Take the tensors of a file by our names: of each, the table says how the file names it, and its shape.

    >>> import numpy as np
    >>> take_tensors({"proj.bias": Tensor("float32", (2,), np.zeros(2, np.float32))}, {"b": ("proj.bias", (3,))}, "DiT")
    Traceback (most recent call last):
    ...
    refimpl.contract.CheckpointError: tensor proj.bias: expected [3], found [2]
    """
    taken = {ours: _checked(tensors, name, shape) for ours, (name, shape) in table.items()}
    left = sorted(tensors.keys() - {name for name, _ in table.values()})
    if left:
        raise CheckpointError(f"tensor {left[0]} is not part of this {model} model ({len(left)} such tensors)")
    return taken


@host
def check_copy(name: str, tensor: Tensor, embedding: Tensor) -> None:
    """Refuse a head of its own beside a config that says that the embedding is the head: readers disagree then.

    Sixteen rows are compared, from the first to the last: heads that were trained apart differ in all of them.
    """
    rows = np.linspace(0, embedding.shape[0] - 1, 16).astype(int)
    fits = tensor.shape == embedding.shape
    if not fits or not np.array_equal(tensor.take_rows(rows).read(), embedding.take_rows(rows).read(), equal_nan=True):
        raise CheckpointError(f"tensor {name} is not the embedding, as tie_word_embeddings says (or is, by default)")


def _entries(table: Mapping[str, str], num_layers: int) -> Iterator[tuple[str, list[str]]]:
    for name, targets in table.items():
        for i in range(num_layers if "{i}" in name else 1):
            yield name.replace("{i}", str(i)), [target.replace("{i}", str(i)) for target in targets.split()]


def _checked(tensors: Mapping[str, Tensor], name: str, expected: tuple[int, ...]) -> Tensor:
    if name not in tensors:
        raise CheckpointError(f"tensor {name} is missing; expected {list(expected)}")
    tensor = tensors[name]
    if tuple(tensor.shape) != expected:
        raise CheckpointError(f"tensor {name}: expected {list(expected)}, found {list(tensor.shape)}")
    if tensor.format not in _NUMBERS and tensor.format not in FORMATS:
        raise CheckpointError(f"tensor {name}: expected one of {', '.join(_NUMBERS)}, found {tensor.format}")
    return tensor


def _split(
    tensors: Mapping[str, Tensor], name: str, shapes: Mapping[str, tuple[int, ...]], turned: bool, interleaved: bool
) -> dict[str, Tensor]:
    """Check a tensor of the file against the weights whose rows it holds, and take it apart into them."""
    first, shape = next(iter(shapes.items()))
    axis = max(len(shape) - (1 if first.rpartition(".")[2].startswith("b_") else 2), 0)  # experts stand before rows
    sizes = [own[axis] for own in shapes.values()]
    expected = (*shape[:axis], sum(sizes), *shape[axis + 1 :])
    tensor = _checked(tensors, name, (*expected[:-2], *expected[:-3:-1]) if turned else expected)
    tensor = tensor.transposed() if turned else tensor
    if len(shapes) == 1:
        return {first: tensor}
    starts, count = accumulate(sizes, initial=0), len(shapes)
    rows = (
        slice(i, None, count) if interleaved else slice(start, start + size)
        for i, (start, size) in enumerate(zip(starts, sizes, strict=False))
    )
    return {key: tensor.take(own, axis) for key, own in zip(shapes, rows, strict=True)}


def _stack(name: str, tensors: list[Tensor]) -> Tensor:
    formats = sorted({tensor.format for tensor in tensors})
    if len(formats) > 1:
        raise CheckpointError(f"the experts of {name} must have one format, found {', '.join(formats)}")
    return stack(tensors)
