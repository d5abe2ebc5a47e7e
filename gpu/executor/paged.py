"""The paged cache on a device: one pool of blocks for all layers, dealt out by the specification's allocator."""

from dataclasses import dataclass, field

from gpu import device
from refimpl.contract import UsageError
from refimpl.efficient.allocator import allocate, blocks_for, free, new_allocator
from refimpl.models.spec import ModelSpec

__all__ = ["BLOCK_SIZE", "DeviceCache", "DeviceSequence"]

BLOCK_SIZE = 16


@dataclass(eq=False)
class DeviceSequence:
    """A request's place in a cache."""

    owner: "DeviceCache"
    longest: int  # the most tokens it may have
    prompt_length: int = 0  # tokens that scalings by length count from the start, however the prompt is cut
    length: int = 0
    blocks: list[int] = field(default_factory=list)
    closed: bool = False


class DeviceCache:
    """Keys and values [L, blocks, 16, K, H] in float32, room for ``capacity`` tokens in all."""

    def __init__(self, spec: ModelSpec, capacity: int) -> None:
        self.count = blocks_for(capacity, BLOCK_SIZE)
        shape = spec.num_layers, self.count, BLOCK_SIZE, spec.num_kv_heads, spec.head_dim
        self.k, self.v = device.empty(shape, "float32"), device.empty(shape, "float32")
        self._allocator = new_allocator(self.count)

    @property
    def tokens(self) -> int:
        """Return how many tokens it has room for."""
        return self.count * BLOCK_SIZE

    def extend(self, sequence: DeviceSequence, length: int) -> None:
        """Give a sequence the blocks that ``length`` tokens need."""
        self._own(sequence)
        if length > sequence.longest:
            raise UsageError(f"the sequence holds {sequence.longest} tokens, it would have {length}")
        more = blocks_for(length, BLOCK_SIZE) - len(sequence.blocks)
        if more > 0:
            self._allocator, dealt = allocate(self._allocator, more)
            sequence.blocks.extend(dealt)

    def release(self, sequence: DeviceSequence) -> None:
        """Take a sequence's blocks back."""
        self._own(sequence)
        self._allocator = free(self._allocator, sequence.blocks)
        sequence.blocks.clear()
        sequence.closed = True

    def _own(self, sequence: DeviceSequence) -> None:
        if sequence.owner is not self:
            raise UsageError("the sequence is another executor's")
