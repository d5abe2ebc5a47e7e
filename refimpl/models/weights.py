"""The tensors of a file under the names of ModelSpec, each checked against its shape."""

import re
from collections.abc import Iterator, Mapping

from refimpl.blocks import FORMATS
from refimpl.contract import CheckpointError, host
from refimpl.models.spec import ModelSpec, weight_shapes
from refimpl.models.tensor import Tensor

__all__ = ["name_weights", "take_tensors"]

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
    ignored: tuple[str, ...] = (),
) -> dict[str, Tensor]:
    """Rename, split and check the tensors of a file.

    ``table`` maps a tensor of the file to the weights whose rows it stacks, by their names with blanks between;
    ``{i}`` stands for every layer. The prefix may be absent from the file. Tensors whose names end in one of
    ``transposed`` are stored [in, out].
    """
    shapes, weights, used = weight_shapes(spec), dict[str, Tensor](), set[str]()
    for name, targets in _entries(table, spec.num_layers):
        wanted = [target for target in targets if target in shapes]
        if not wanted:
            continue
        bare = name.removeprefix(prefix)
        name = bare if name not in tensors and bare in tensors else name
        turned = name.endswith(transposed)
        expected = _stacked(shapes, wanted)[:: -1 if turned else 1]
        tensor = _checked(tensors, name, expected)
        weights |= _split(tensor.transposed() if turned else tensor, shapes, wanted)
        used.add(name)
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


def _stacked(shapes: Mapping[str, tuple[int, ...]], names: list[str]) -> tuple[int, ...]:
    return (sum(shapes[name][0] for name in names), *shapes[names[0]][1:])


def _split(tensor: Tensor, shapes: Mapping[str, tuple[int, ...]], names: list[str]) -> dict[str, Tensor]:
    if len(names) == 1:
        return {names[0]: tensor}
    parts, start = dict[str, Tensor](), 0
    for name in names:
        stop = start + shapes[name][0]
        parts[name] = tensor.take_rows(slice(start, stop))
        start = stop
    return parts

