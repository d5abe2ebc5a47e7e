"""Weights in tiles of 32 output rows, so that lanes are rows and one stream of memory is read.

    stored   row:    block 0 | block 1 | ...          block: the bytes of ``elements`` columns of that row
    packed   tile:   block 0 of 32 rows | block 1 of 32 rows | ...
             block:  unit 0 of 32 rows | unit 1 of 32 rows | ...    a unit is a float16 or four bytes side by side

It is a pure transpose: a field at byte ``f`` of a stored block stands at byte ``32 f`` of the packed one, row after
row, and no byte is added but rows of zeros that fill the last tile. A plain number is a block of one element. Only the
scale of mxfp4, a byte, first becomes the bfloat16 that it stands for, so that all that follows lies on even places.
"""

from collections.abc import Mapping
from typing import NamedTuple

import ml_dtypes
import numpy as np
from numba.extending import intrinsic

from refimpl.blocks import LAYOUTS, read_scales
from refimpl.contract import Array, host, require
from refimpl.models.tensor import Tensor

from .jit import jit
from .lanes import ROWS, emit, load_shorts, load_words, store
from .memory import aligned

__all__ = ["FORMATS", "Layout", "Packed", "pack"]


class Layout(NamedTuple):
    """A block: its elements, and its bytes as ``head`` floats of 16 bits, ``words`` of four bytes, ``tail`` floats."""

    elements: int
    head: int
    words: int
    tail: int

    @property
    def bytes(self) -> int:
        """Return the bytes of a block of one row."""
        return 2 * self.head + 4 * self.words + 2 * self.tail


FORMATS: Mapping[str, Layout] = {
    "float32": Layout(1, 0, 1, 0),
    "float16": Layout(1, 1, 0, 0),
    "bfloat16": Layout(1, 1, 0, 0),
    "q8_0": Layout(32, 1, 8, 0),
    "q4_0": Layout(32, 1, 4, 0),
    "q4_1": Layout(32, 2, 4, 0),
    "q5_0": Layout(32, 1, 5, 0),
    "q5_1": Layout(32, 2, 5, 0),
    "q2_k": Layout(256, 0, 20, 2),
    "q3_k": Layout(256, 0, 27, 1),
    "q4_k": Layout(256, 2, 35, 0),
    "q5_k": Layout(256, 2, 43, 0),
    "q6_k": Layout(256, 0, 52, 1),
    "mxfp4": Layout(32, 1, 4, 0),
}
"""The formats of a weight; its code in the kernels is its place in this table."""


class Packed(NamedTuple):
    """A weight matrix [rows, columns] as the kernels read it; ``data`` keeps the memory at ``address`` alive."""

    code: int
    rows: int
    columns: int
    data: Array

    @property
    def tiles(self) -> int:
        """Return how many tiles there are, the last perhaps with rows of zeros."""
        return -(-self.rows // ROWS)

    @property
    def address(self) -> int:
        """Return where the first tile begins, a multiple of 64."""
        return self.data.ctypes.data


@intrinsic
def _move_half(context, source, target):
    """Copy two bytes."""
    return emit(lambda source, target: store(target, load_shorts(source, 0)), (source, target))


@intrinsic
def _move_word(context, source, target):
    """Copy four bytes."""
    return emit(lambda source, target: store(target, load_words(source, 0)), (source, target))


@jit
def _transpose(source, stride, rows, target, blocks, head, words, tail):
    """Copy rows of blocks, ``stride`` bytes apart, to tiles; head, words and tail are those of ``Layout``."""
    for first in range(0, rows, 32):
        count = min(32, rows - first)
        place = source + first * stride
        for _ in range(blocks):
            for unit in range(head + words + tail):
                size = 4 if head <= unit < head + words else 2
                for row in range(count):
                    if size == 4:
                        _move_word(place + row * stride, target + row * 4)
                    else:
                        _move_half(place + row * stride, target + row * 2)
                place += size
                target += 32 * size


def _with_wide_scales(data: Array) -> Array:
    """Return rows of mxfp4 with their scales as bfloat16, which holds every one of them."""
    stored = np.ascontiguousarray(data).view(LAYOUTS["mxfp4"])
    wide = np.empty(stored.shape, [("d", "<u2"), ("low", "u1", 16)])
    wide["d"] = read_scales(stored, "mxfp4")[0][..., 0].astype(ml_dtypes.bfloat16).view(np.uint16)
    wide["low"] = stored["low"]
    return wide.view(np.uint8)


@host
def pack(tensor: Tensor) -> Packed:
    """Lay out a matrix in tiles.

    Cost: reads and writes each byte once, on one thread at the speed of memory.
    Numerics: bytes are moved, not changed; float64 is rounded to float32 first.
    Constraints: (C1) a matrix; (C2) of a format in FORMATS or float64.
    """
    require(len(tensor.shape) == 2, "C1", f"a linear map has a matrix of weights, got shape {tensor.shape}")
    data, name = tensor.data, tensor.format
    if name == "float64":
        data, name = data.astype(np.float32), "float32"
    require(name in FORMATS, "C2", f"weights are one of {', '.join(FORMATS)}, got {name!r}")
    if name == "mxfp4":
        data = _with_wide_scales(data)
    layout, (rows, columns) = FORMATS[name], tensor.shape
    blocks = columns // layout.elements
    target = aligned(-(-rows // ROWS) * ROWS * blocks * layout.bytes)
    if target.size:
        source, stride = np.ascontiguousarray(data), blocks * layout.bytes
        _transpose(source.ctypes.data, stride, rows, target.ctypes.data, blocks, layout.head, layout.words, layout.tail)
    return Packed(list(FORMATS).index(name), rows, columns, target)
