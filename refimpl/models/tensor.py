"""A weight as its file holds it, carried from file to model."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np

from refimpl.blocks import FORMATS
from refimpl.contract import Array, Int, host, require
from refimpl.llm.quantize import dequantize

__all__ = ["Tensor", "stack"]

_Index: TypeAlias = slice | Int[Array, " rows"]


@dataclass(frozen=True, eq=False)
class Tensor:
    """A weight as its file holds it, in plain numbers or in quantised blocks; usually a view of a memory map.

    ``source`` is an array, or a function that makes it each time it is asked for: nothing is kept, so that a model may
    be larger than the memory. ``parts`` gives the entries of the first axis one by one, where that spares the rest.

    >>> Tensor("float16", (2, 3), np.ones((2, 3), np.float16)).take_rows(slice(1, 2)).read()
    array([[1., 1., 1.]], dtype=float32)
    >>> Tensor("float32", (2, 3), lambda: np.ones((2, 3), np.float32)).part(0).nbytes    # nothing is made
    12
    """

    format: str
    shape: tuple[int, ...]
    source: Array | Callable[[], Array] = field(repr=False)
    parts: Callable[[int], "Tensor"] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.format in FORMATS:
            form = FORMATS[self.format]
            fits = len(self.shape) > 0 and self.shape[-1] % form.elements == 0
            require(fits, "C1", f"{self.format} needs rows of {form.elements} elements")
        if not self.is_made:
            self._checked(self.source)

    @property
    def is_made(self) -> bool:
        """Whether ``data`` is made when it is asked for, and costs time and memory each time."""
        return not isinstance(self.source, np.ndarray)

    @property
    def data(self) -> Array:
        """The array: of the tensor's shape, or in a block format with a last axis that counts bytes (uint8)."""
        return self._checked(self.source()) if callable(self.source) else self.source

    @property
    def nbytes(self) -> int:
        """The bytes of ``data``, whether it is there or not."""
        shape, itemsize = self._held(), 1 if self.format in FORMATS else _dtype(self.format).itemsize
        return math.prod(shape) * itemsize

    def part(self, i: int) -> "Tensor":
        """Return entry i of the first axis, the matrix of an expert; it is a view, or made by itself."""
        require(len(self.shape) > 0 and 0 <= i < self.shape[0], "C4", f"{self.shape} has no entry {i}")
        if self.parts is not None:
            return self.parts(i)
        return Tensor(self.format, self.shape[1:], (lambda: self.data[i]) if self.is_made else self.data[i, ...])

    def take(self, index: _Index, axis: int = 0) -> "Tensor":
        """Take entries of an axis, which in blocks is not the last: a slice is a view, the rest made when asked for."""
        require(axis < len(self.shape) - (self.format in FORMATS), "C3", f"{self.format} has no rows on axis {axis}")
        picked, place = np.arange(self.shape[axis])[index], (*(slice(None),) * axis, index)
        shape = (*self.shape[:axis], len(picked), *self.shape[axis + 1 :])
        if isinstance(index, slice) and not self.is_made:
            return Tensor(self.format, shape, self.data[place])

        def part(i: int) -> Tensor:
            return self.part(i).take(index, axis - 1) if axis else self.part(int(picked[i]))

        return Tensor(self.format, shape, lambda: self.data[place], None if self.parts is None else part)

    def take_rows(self, rows: _Index) -> "Tensor":
        """Take entries of the first axis."""
        return self.take(rows)

    def transposed(self) -> "Tensor":
        """Swap the last two axes of a plain tensor; blocks run along rows and cannot be turned."""
        require(self.format not in FORMATS, "C3", f"blocks of {self.format} cannot be transposed")
        if len(self.shape) < 2:
            return self
        shape = (*self.shape[:-2], *self.shape[:-3:-1])
        if not self.is_made:
            return Tensor(self.format, shape, self.data.swapaxes(-1, -2))
        parts = (lambda i: self.part(i).transposed()) if self.parts is not None and len(shape) > 2 else None
        return Tensor(self.format, shape, lambda: self.data.swapaxes(-1, -2), parts)

    def read(self, dtype: Any = np.float32) -> Array:
        """Return the numbers as an array of ``dtype``; a plain tensor of that dtype is not copied."""
        if len(self.shape) > 2 and (self.parts is not None or self.format in FORMATS):
            numbers = np.empty(self.shape, dtype)
            for i in range(self.shape[0]):
                numbers[i] = self.part(i).read(dtype)
            return numbers
        data = self.data
        if self.format in FORMATS:
            numbers = dequantize(data.reshape(-1, data.shape[-1]), self.format)
            return numbers.reshape(self.shape).astype(dtype, copy=False)
        return np.asarray(data, dtype)

    def _held(self) -> tuple[int, ...]:
        if self.format not in FORMATS:
            return self.shape
        form = FORMATS[self.format]
        return (*self.shape[:-1], self.shape[-1] // form.elements * form.bytes)

    def _checked(self, data: Array) -> Array:
        expected = ("uint8" if self.format in FORMATS else self.format, self._held())
        seen = (data.dtype.name, data.shape)
        require(seen == expected, "C2", f"{self.format} {self.shape} is held as {expected}, got {seen}")
        return data


@host
def stack(tensors: Sequence[Tensor]) -> Tensor:
    """Make one tensor of many of the same format and shape, a new axis first; nothing is copied until it is asked for.

    >>> rows = [Tensor("float32", (2,), np.float32([i, 2 * i])) for i in range(3)]
    >>> stack(rows).shape, stack(rows).part(1) is rows[1], stack(rows).read()[2]
    ((3, 2), True, array([2., 4.], dtype=float32))
    """
    require(len(tensors) > 0, "C1", "a stack holds a tensor or more")
    kinds = {(tensor.format, tensor.shape) for tensor in tensors}
    require(len(kinds) == 1, "C2", f"what is stacked has one format and shape, got {sorted(kinds)[:2]}")
    held, (format, shape) = tuple(tensors), kinds.pop()
    return Tensor(format, (len(held), *shape), lambda: np.stack([tensor.data for tensor in held]), held.__getitem__)


def _dtype(name: str) -> np.dtype[Any]:
    return np.dtype(getattr(ml_dtypes, name, name))
