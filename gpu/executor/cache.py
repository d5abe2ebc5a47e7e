"""The paged cache: keys and values of many sequences in pages of 16 tokens, dealt out from one reservation.

A page holds 16 tokens of every layer and key/value head. Sixteen pages make a block, and in it the pages of one head
lie side by side, [L, K, keys or values, 16 pages, 16 H floats] (H padded to 32), so that a long sequence is read in
long stretches: pages of their own, 8 KB here and there, came at half the speed. Memory is reserved at the start and
backed by the system when it is first written, so resident memory follows use; a freed page is the next to be dealt out.
"""

from dataclasses import dataclass, field

import numpy as np

from gpu.executor.memory import aligned
from gpu.executor.page import BLOCK, PAGE
from refimpl.contract import Array, UsageError, host
from refimpl.models.spec import ModelSpec

__all__ = ["PagedCache", "Sequence", "block_bytes", "head_bytes", "value_dim"]


@host
def value_dim(spec: ModelSpec) -> int:
    """Return the floats that a token's key or value takes in a page."""
    return -(-spec.head_dim // 32) * 32


@host
def head_bytes(spec: ModelSpec) -> int:
    """Return the bytes of a block's keys and values of one layer and head."""
    return 2 * BLOCK * 4 * PAGE * value_dim(spec)


@host
def block_bytes(spec: ModelSpec) -> int:
    """Return the bytes of a block: 16 pages of 16 tokens in every layer."""
    return spec.num_layers * spec.num_kv_heads * head_bytes(spec)


@dataclass(eq=False)
class Sequence:
    """A request's place in a cache."""

    owner: "PagedCache"
    longest: int  # the most tokens it may have
    prompt_length: int = 0  # tokens that scalings by length count from the start, however the prompt is cut
    length: int = 0
    pages: list[int] = field(default_factory=list)
    closed: bool = False
    table: Array = field(init=False, repr=False)  # int64: the addresses of its pages

    def __post_init__(self) -> None:
        self.table = np.zeros(-(-self.longest // PAGE), np.int64)


class PagedCache:
    """Pages for ``capacity`` tokens in all."""

    def __init__(self, spec: ModelSpec, capacity: int) -> None:
        blocks = -(-capacity // (PAGE * BLOCK))
        self.count = blocks * BLOCK
        try:
            self.memory = aligned(blocks * block_bytes(spec)).view(np.float32)
        except (MemoryError, OverflowError, ValueError):  # the last two: more than an address can count
            size = blocks * block_bytes(spec) / 1e9
            raise UsageError(
                f"the context is too large for the memory that is there: a cache for {capacity} tokens takes "
                f"{size:.1f} GB; a smaller context (--ctx-size) needs less"
            ) from None
        block, place = np.divmod(np.arange(self.count), BLOCK)
        self._addresses = self.memory.ctypes.data + block * block_bytes(spec) + place * 4 * PAGE * value_dim(spec)
        self._free = list(range(self.count))[::-1]

    @property
    def free_pages(self) -> int:
        """Return how many pages nobody holds."""
        return len(self._free)

    @property
    def tokens(self) -> int:
        """Return how many tokens it has room for."""
        return self.count * PAGE

    def extend(self, sequence: Sequence, length: int) -> None:
        """Give a sequence the pages that ``length`` tokens need."""
        self._own(sequence)
        if length > sequence.longest:
            raise UsageError(f"the sequence holds {sequence.longest} tokens, it would have {length}")
        needed = -(-length // PAGE) - len(sequence.pages)
        if needed > len(self._free):
            raise UsageError(f"the cache has {len(self._free)} of {self.count} pages left, {needed} more are needed")
        for _ in range(needed):
            page = self._free.pop()
            sequence.table[len(sequence.pages)] = self._addresses[page]
            sequence.pages.append(page)

    def release(self, sequence: Sequence) -> None:
        """Take a sequence's pages back."""
        self._own(sequence)
        self._free.extend(reversed(sequence.pages))
        sequence.pages.clear()
        sequence.closed = True

    def _own(self, sequence: Sequence) -> None:
        if sequence.owner is not self:
            raise UsageError("the sequence is another executor's")
