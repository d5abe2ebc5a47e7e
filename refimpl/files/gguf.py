"""GGUF files: metadata and tensors of llama.cpp's format, mapped into memory and never copied.

    "GGUF" | u32 version | u64 tensors | u64 pairs | pairs: key, type, value | tensors: name, axes, type, offset | data

Counts and sizes are checked against the bytes that are left before anything is made of them.
"""

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from refimpl.blocks import FORMATS
from refimpl.contract import Array, CheckpointError, host
from refimpl.files.checkpoint import map_file
from refimpl.models.tensor import Tensor

__all__ = ["read_gguf"]

_NUMBERS: Mapping[int, np.dtype[Any]] = {
    0: np.dtype("u1"), 1: np.dtype("i1"), 2: np.dtype("<u2"), 3: np.dtype("<i2"), 4: np.dtype("<u4"),
    5: np.dtype("<i4"), 6: np.dtype("<f4"), 7: np.dtype("?"), 10: np.dtype("<u8"), 11: np.dtype("<i8"),
    12: np.dtype("<f8"),
}
_STRING, _ARRAY = 8, 9

_PLAIN: Mapping[int, np.dtype[Any]] = {
    0: np.dtype("<f4"), 1: np.dtype("<f2"), 24: np.dtype("i1"), 25: np.dtype("<i2"), 26: np.dtype("<i4"),
    27: np.dtype("<i8"), 28: np.dtype("<f8"), 30: np.dtype(ml_dtypes.bfloat16),
}
_BLOCKS: Mapping[int, str] = {
    2: "q4_0", 3: "q4_1", 6: "q5_0", 7: "q5_1", 8: "q8_0", 10: "q2_k", 11: "q3_k", 12: "q4_k", 13: "q5_k", 14: "q6_k",
    39: "mxfp4",
}
_UNREAD: Mapping[int, str] = {
    9: "q8_1", 15: "q8_k", 16: "iq2_xxs", 17: "iq2_xs", 18: "iq3_xxs", 19: "iq1_s", 20: "iq4_nl", 21: "iq3_s",
    22: "iq2_s", 23: "iq4_xs", 29: "iq1_m", 34: "tq1_0", 35: "tq2_0",
}
_MAX_ENTRIES = 2**22  # of an array: the largest vocabularies have 2**18
_MAX_AXES = 4


@dataclass
class _Cursor:
    """A position in the file; each method reads one thing there and moves on."""

    path: Path
    data: Array
    at: int = 0

    def need(self, size: int) -> int:
        """Return where ``size`` bytes from here end, if the file has them."""
        if size > len(self.data) - self.at:
            raise CheckpointError(
                f"{self.path} is truncated or damaged: {size} bytes are due at {self.at} of {len(self.data)}"
            )
        return self.at + size

    def unpack(self, form: str) -> tuple[int, ...]:
        begin, self.at = self.at, self.need(struct.calcsize(form))
        return struct.unpack_from(form, self.data, begin)

    def numbers(self, kind: int, count: int) -> list[Any]:
        if kind not in _NUMBERS:
            raise CheckpointError(f"{self.path}: no metadata type {kind} at {self.at} (and arrays do not nest)")
        begin, self.at = self.at, self.need(count * _NUMBERS[kind].itemsize)
        values: list[Any] = self.data[begin : self.at].view(_NUMBERS[kind]).tolist()
        return values

    def strings(self, count: int) -> list[str]:
        """Read many strings; vocabularies make this the hot loop of opening a file."""
        self.need(8 * count)
        view, size_at, texts = memoryview(self.data), struct.Struct("<Q").unpack_from, []
        end = len(view)
        for _ in range(count):
            begin = self.at + 8
            if begin > end or (size := size_at(view, self.at)[0]) > end - begin:
                self.need(end)
            self.at = begin + size
            texts.append(str(view[begin : self.at], "utf-8"))
        return texts

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.strings(1)[0]
        if kind != _ARRAY:
            return self.numbers(kind, 1)[0]
        inner, count = self.unpack("<IQ")
        if count > _MAX_ENTRIES:
            raise CheckpointError(f"{self.path}: an array of {count} at {self.at}; at most {_MAX_ENTRIES} are read")
        return self.strings(count) if inner == _STRING else self.numbers(inner, count)


def _read_counts(cursor: _Cursor) -> tuple[int, int]:
    """Check magic and version; read the numbers of tensors and of pairs."""
    path = cursor.path
    if cursor.data[:4].tobytes() != b"GGUF":
        raise CheckpointError(f"{path} is not a GGUF file: it begins with {cursor.data[:4].tobytes()!r}")
    _, version, tensors, pairs = cursor.unpack("<IIQQ")
    if version not in (2, 3):
        hint = " (a big-endian file)" if version in (2 << 24, 3 << 24) else ""
        raise CheckpointError(f"{path} has GGUF version {version}{hint}; versions 2 and 3, little-endian, are read")
    return tensors, pairs


def _read_metadata(cursor: _Cursor, count: int) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    cursor.need(13 * count)
    for _ in range(count):
        key = cursor.strings(1)[0]
        if key in metadata:
            raise CheckpointError(f"{cursor.path}: metadata {key!r} comes twice")
        (kind,) = cursor.unpack("<I")
        metadata[key] = cursor.value(kind)
    return metadata


class _Entry(NamedTuple):
    """A tensor as the file lists it; ``held`` is the shape of its bytes: blocks for elements in a block format."""

    name: str
    format: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    held: tuple[int, ...]
    offset: int

    @property
    def size(self) -> int:
        return math.prod(self.held) * self.dtype.itemsize


def _read_entry(cursor: _Cursor) -> _Entry:
    """Read the listing of one tensor; axes come fastest first there, and last here."""
    name = cursor.strings(1)[0]
    (axes,) = cursor.unpack("<I")
    if axes > _MAX_AXES:
        raise CheckpointError(f"{cursor.path}: tensor {name!r} has {axes} axes, at most {_MAX_AXES} are read")
    shape = cursor.unpack(f"<{axes}Q")[::-1]
    kind, offset = cursor.unpack("<IQ")
    if kind in _PLAIN:
        return _Entry(name, _PLAIN[kind].name, shape, _PLAIN[kind], shape, offset)
    if kind not in _BLOCKS:
        label = _UNREAD.get(kind, f"number {kind}")
        readable = ", ".join([*(dtype.name for dtype in _PLAIN.values()), *_BLOCKS.values()])
        raise CheckpointError(f"{cursor.path}: tensor {name!r} has type {label}; readable are {readable}")
    block = FORMATS[_BLOCKS[kind]]
    if not shape or shape[-1] % block.elements:
        raise CheckpointError(
            f"{cursor.path}: tensor {name!r} {_BLOCKS[kind]} {shape} needs rows of a multiple of {block.elements}"
        )
    held = (*shape[:-1], shape[-1] // block.elements * block.bytes)
    return _Entry(name, _BLOCKS[kind], shape, np.dtype(np.uint8), held, offset)


def _check_places(path: Path, entries: list[_Entry], alignment: int, size: int) -> None:
    """Refuse tensors that repeat a name, are not aligned, overlap or leave the ``size`` bytes of data."""
    for first, second in pairwise(sorted(entry.name for entry in entries)):
        if first == second:
            raise CheckpointError(f"{path}: tensor {first!r} comes twice")
    reached = 0
    for entry in sorted(entries, key=lambda entry: (entry.offset, entry.size)):
        if entry.offset % alignment or entry.offset < reached or entry.offset + entry.size > size:
            raise CheckpointError(
                f"{path}: tensor {entry.name!r} needs {entry.size} bytes at a multiple of {alignment} "
                f"in {reached}..{size}, got offset {entry.offset}"
            )
        if math.prod(filter(None, entry.shape)) >= 2**60:
            raise CheckpointError(f"{path}: tensor {entry.name!r} has the shape {entry.shape}")
        reached = entry.offset + entry.size


def _tensor(data: Array, entry: _Entry) -> Tensor:
    held = data[entry.offset : entry.offset + entry.size].view(entry.dtype).reshape(entry.held)
    return Tensor(entry.format, entry.shape, held)


@host
def read_gguf(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Read a GGUF file: its metadata, and its tensors as views of the mapped file.

    Numbers, strings and arrays of metadata become Python values. Shapes are in our order, the fastest axis last.

    Cost: about 0.1 s for a vocabulary of 50,000; tensors cost nothing until they are read.
    Constraints: version 2 or 3, little-endian; keys and names without repetition; tensors aligned, apart from each
    other and inside the file.
    Errors: CheckpointError, before any large allocation; a tensor of a type we cannot read is named.
    Source: github.com/ggml-org/ggml, docs/gguf.md.
    """
    cursor = _Cursor(path, map_file(path))
    try:
        tensors, pairs = _read_counts(cursor)
        metadata = _read_metadata(cursor, pairs)
        cursor.need(24 * tensors)
        entries = [_read_entry(cursor) for _ in range(tensors)]
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{path} is damaged: the text before byte {cursor.at} is not UTF-8") from error
    if metadata.get("split.count", 1) != 1:
        raise CheckpointError(f"{path} is one of {metadata['split.count']} parts of a model; only whole files are read")
    alignment = metadata.get("general.alignment", 32)
    if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
        raise CheckpointError(f"{path}: general.alignment must be a power of two, got {alignment!r}")
    data = cursor.data[-(-cursor.at // alignment) * alignment :]
    _check_places(path, entries, alignment, len(data))
    return metadata, {entry.name: _tensor(data, entry) for entry in entries}
