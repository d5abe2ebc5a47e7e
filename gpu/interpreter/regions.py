"""The address space of a kernel: every array and variable is a region, and an address says which one it belongs to.

A region has 64 GiB of addresses, of which those of its bytes are valid; so an address that runs out of one array is
never one of another; they lie in the middle, so that one before an array's start is known as such. The first regions
are windows on the memory of a block, a thread, and the parameters.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpu.interpreter.errors import KernelError

__all__ = ["END", "FIRST", "MIDDLE", "OFFSET", "REGION_BITS", "START", "WINDOWS", "WRITABLE", "Memory", "Region"]

REGION_BITS = 36
MIDDLE = 1 << (REGION_BITS - 1)
WINDOWS = {"shared": 1, "local": 2, "param": 3}
FIRST = 4
START, END, OFFSET, WRITABLE = range(4)  # the columns of the machine's table; a place in memory is address + OFFSET
_ALIGNMENT = 256


@dataclass(frozen=True)
class Region:
    """A range of addresses, and the place in this process's memory where its bytes stand."""

    name: str
    start: int
    size: int
    place: int
    is_writable: bool = True

    def row(self) -> tuple[int, int, int, int]:
        """Return the region as a row of the machine's table."""
        return self.start, self.start + self.size, self.place - self.start, int(self.is_writable)


class Memory:
    """Arrays as global memory. Those that overlap share a region, in which a view keeps its place."""

    def __init__(self, arrays: Sequence[np.ndarray[Any, Any]], names: Sequence[str] = ()) -> None:
        self.arrays = list(arrays)
        names = [*names, *(f"array {i}" for i in range(len(names), len(self.arrays)))]
        self.regions: list[Region] = []
        for first, last, members in _merged({i: _span(array) for i, array in enumerate(self.arrays) if array.size}):
            base = (FIRST + len(self.regions) << REGION_BITS) + MIDDLE
            origin = _origin(self.arrays[members[0]])
            name = ", ".join(dict.fromkeys(names[i] for i in members))
            writable = any(self.arrays[i].flags.writeable for i in members)
            self.regions.append(Region(name, base + (first - origin) % _ALIGNMENT, last - first, first, writable))

    def address(self, array: np.ndarray[Any, Any]) -> int:
        """Return the address of an array's first element, and 0 for an array that has none."""
        if not array.size:
            return 0
        place = array.__array_interface__["data"][0]
        for region in self.regions:
            if region.place <= place < region.place + region.size:
                return region.start + place - region.place
        raise KernelError("an array is handed to a kernel that is not among those it may reach")


def _span(array: np.ndarray[Any, Any]) -> tuple[int, int]:
    """Return where an array's bytes begin and end."""
    first, last = np.lib.array_utils.byte_bounds(array)
    return int(first), int(last)


def _origin(array: np.ndarray[Any, Any]) -> int:
    """Return where the array begins whose memory this one looks at: there a GPU's allocation would begin."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return int(array.__array_interface__["data"][0])


def _merged(spans: dict[int, tuple[int, int]]) -> list[tuple[int, int, list[int]]]:
    """Return the spans with those that overlap joined: first byte, end, and the numbers of the spans in it."""
    joined: list[tuple[int, int, list[int]]] = []
    for i in sorted(spans, key=lambda i: (*spans[i], i)):
        first, last = spans[i]
        if joined and first < joined[-1][1]:
            start, end, members = joined.pop()
            joined.append((start, max(end, last), [*members, i]))
        else:
            joined.append((first, last, [i]))
    return joined
