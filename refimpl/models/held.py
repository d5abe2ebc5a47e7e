"""Weights that are read from their files when they are asked for: kept as far as there is room, else read again."""

import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from refimpl.contract import Array, host
from refimpl.models.tensor import Tensor

__all__ = ["HeldWeights", "free_memory"]


class HeldWeights(Mapping[str, Array]):
    """The numbers of tensors in one dtype, read when they are asked for.

    What fits into ``room`` bytes is kept, a quarter of the free memory unless stated: first what every step reads
    beside the layers, then one layer after the other. The rest is read anew each time, so that a model runs in the
    memory of its largest layer. A view of the file takes no room.

    >>> tensors = {"a": Tensor("float16", (2,), np.ones(2, np.float16)), "b": Tensor("float16", (3,), np.ones(3, "f2"))}
    >>> weights = HeldWeights(tensors, np.float32, room=8)
    >>> weights["a"] is weights["a"], weights["b"] is weights["b"], weights["b"].dtype
    (True, False, dtype('float32'))
    """

    def __init__(self, tensors: Mapping[str, Tensor], dtype: Any, room: int | None = None) -> None:
        self._tensors, self._dtype = tensors, np.dtype(dtype)
        self._held, self._kept = dict[str, Array](), set[str]()
        left = free_memory() // 4 if room is None else room
        for name in sorted(tensors, key=lambda name: ".layers." in f".{name}"):  # the order of the file otherwise
            needed = self._needed(tensors[name])
            if needed <= left:
                self._kept.add(name)
                left -= needed

    def __getitem__(self, name: str) -> Array:
        if name in self._held:
            return self._held[name]
        numbers = self._tensors[name].read(self._dtype)
        if name in self._kept:
            self._held[name] = numbers
        return numbers

    def __contains__(self, name: object) -> bool:
        return name in self._tensors

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def _needed(self, tensor: Tensor) -> int:
        is_view = tensor.format == self._dtype.name and not tensor.is_made
        return 0 if is_view else math.prod(tensor.shape) * self._dtype.itemsize


@host
def free_memory() -> int:
    """Return the bytes that the system can give without swapping; where it does not say, half of what it has."""
    try:
        lines = Path("/proc/meminfo").read_text("ascii").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, ValueError, StopIteration):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
