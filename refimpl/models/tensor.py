"""A weight as its file holds it, carried from file to model."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from refimpl.blocks import FORMATS
from refimpl.contract import Array, Int, require
from refimpl.llm.quantize import dequantize

__all__ = ["Tensor"]


@dataclass(frozen=True, eq=False)
class Tensor:
    """A weight as its file holds it, in plain numbers or in quantised blocks; usually a view of a memory map.

    ``data`` has the shape of the tensor; in a block format its last axis counts bytes (uint8).

    >>> Tensor("float16", (2, 3), np.ones((2, 3), np.float16)).take_rows(slice(1, 2)).read()
    array([[1., 1., 1.]], dtype=float32)
    """

    format: str
    shape: tuple[int, ...]
    data: Array

    def __post_init__(self) -> None:
        dtype, width = self.format, self.shape[-1:]
        if self.format in FORMATS:
            form = FORMATS[self.format]
            require(self.shape[-1] % form.elements == 0, "C1", f"{self.format} needs rows of {form.elements} elements")
            dtype, width = "uint8", (self.shape[-1] // form.elements * form.bytes,)
        expected = (dtype, (*self.shape[:-1], *width))
        seen = (self.data.dtype.name, self.data.shape)
        require(seen == expected, "C2", f"{self.format} {self.shape} is held as {expected}, got {seen}")

    def take_rows(self, rows: slice | Int[Array, " rows"]) -> "Tensor":
        """Take entries of the first axis; a slice stays a view of the file."""
        data = self.data[rows]
        return Tensor(self.format, (len(data), *self.shape[1:]), data)

    def transposed(self) -> "Tensor":
        """Swap the axes of a plain tensor; blocks run along rows and cannot be turned."""
        require(self.format not in FORMATS, "C3", f"blocks of {self.format} cannot be transposed")
        return Tensor(self.format, self.shape[::-1], self.data.T)

    def read(self, dtype: Any = np.float32) -> Array:
        """Return the numbers as an array of ``dtype``; a plain tensor of that dtype is not copied."""
        if self.format in FORMATS:
            rows = self.data.reshape(-1, self.data.shape[-1])
            return dequantize(rows, self.format).reshape(self.shape).astype(dtype, copy=False)
        return np.asarray(self.data, dtype)
