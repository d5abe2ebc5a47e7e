"""The paged cache: keys and values of many sequences in pages of 16 tokens, dealt out from one reservation.

A page holds 16 tokens of every layer: for each layer and key/value head first the keys [H, 16], then the values
[16, H padded to 32]. Its memory is reserved at the start and backed by the system when a page is first written, so
resident memory follows use; a freed page is the next to be dealt out.
"""

from dataclasses import dataclass, field

import numpy as np

from refimpl.contract import Array, UsageError
from refimpl.models.spec import ModelSpec

from .attention import PAGE
from .memory import aligned

__all__ = ["PagedCache", "Sequence", "head_bytes", "page_bytes", "value_dim"]


def value_dim(spec: ModelSpec) -> int:
    """Return the floats that a value takes in a page."""
    return -(-spec.head_dim // 32) * 32


def head_bytes(spec: ModelSpec) -> int:
    """Return the bytes of a page's keys and values of one layer and head."""
    return 4 * PAGE * (spec.head_dim + value_dim(spec))


def page_bytes(spec: ModelSpec) -> int:
    """Return the bytes of a page: 16 tokens in every layer."""
    return spec.num_layers * spec.num_kv_heads * head_bytes(spec)


@dataclass(eq=False)
class Sequence:
    """A request's place in the cache."""

    table: Array  # int64: the addresses of its pages
    prompt_length: int = 0  # tokens that scalings by length count from the start, however the prompt is cut
    length: int = 0
    pages: list[int] = field(default_factory=list)
    closed: bool = False

    @property
    def capacity(self) -> int:
        """Return the most tokens it may have."""
        return len(self.table) * PAGE


class PagedCache:
    """Pages for ``capacity`` tokens in all."""

    def __init__(self, spec: ModelSpec, capacity: int) -> None:
        self.count = -(-capacity // PAGE)
        self._page_bytes = page_bytes(spec)
        try:
            self.memory = aligned(self.count * self._page_bytes).view(np.float32)
        except MemoryError:
            size = self.count * self._page_bytes / 1e9
            raise UsageError(f"a cache for {capacity} tokens needs {size:.1f} GB, more than this machine lends") from None
        self._address = self.memory.ctypes.data
        self._free = list(range(self.count))[::-1]

    @property
    def free_pages(self) -> int:
        """Return how many pages nobody holds."""
        return len(self._free)

    def extend(self, sequence: Sequence, length: int) -> None:
        """Give a sequence the pages that ``length`` tokens need."""
        if length > sequence.capacity:
            raise UsageError(f"the context holds {sequence.capacity} tokens, the sequence would have {length}")
        needed = -(-length // PAGE) - len(sequence.pages)
        if needed > len(self._free):
            raise UsageError(f"the cache has {len(self._free)} of {self.count} pages left, {needed} more are needed")
        for _ in range(needed):
            page = self._free.pop()
            sequence.table[len(sequence.pages)] = self._address + page * self._page_bytes
            sequence.pages.append(page)

    def release(self, sequence: Sequence) -> None:
        """Take a sequence's pages back."""
        self._free.extend(reversed(sequence.pages))
        sequence.pages.clear()
        sequence.closed = True
