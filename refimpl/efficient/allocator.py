"""The allocator of a paged cache: which blocks are held, and by how many sequences."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from refimpl.contract import UsageError, host, whole

__all__ = ["BlockAllocator", "new_allocator", "blocks_for", "allocate", "fork", "free"]


@dataclass(frozen=True)
class BlockAllocator:
    """How many sequences hold each block, and which blocks nobody holds; the last of these is dealt out next."""

    holders: tuple[int, ...]
    unused: tuple[int, ...]


@host
def new_allocator(num_blocks: int) -> BlockAllocator:
    """Return the allocator of a cache of which nothing is in use.

    >>> new_allocator(3).unused
    (2, 1, 0)
    """
    if whole("num_blocks", num_blocks) < 0:
        raise UsageError(f"a cache of {num_blocks} blocks")
    return BlockAllocator((0,) * num_blocks, tuple(reversed(range(num_blocks))))


@host
def blocks_for(tokens: int, block_size: int) -> int:
    """Return how many blocks that many tokens fill, the last of them perhaps in part.

    >>> [blocks_for(tokens, 16) for tokens in (0, 1, 16, 17)]
    [0, 1, 1, 2]
    """
    if whole("tokens", tokens) < 0 or whole("block_size", block_size) < 1:
        raise UsageError(f"{tokens} tokens in blocks of {block_size}")
    return -(-int(tokens) // int(block_size))


@host
def allocate(allocator: BlockAllocator, count: int) -> tuple[BlockAllocator, tuple[int, ...]]:
    """Deal out ``count`` blocks that nobody holds; return the allocator after it, and the blocks.

    >>> allocate(new_allocator(3), 2)
    (BlockAllocator(holders=(1, 1, 0), unused=(2,)), (0, 1))
    >>> allocate(new_allocator(3), 4)
    Traceback (most recent call last):
    ...
    refimpl.contract.UsageError: 4 blocks are needed, 3 of 3 are left
    """
    unused = allocator.unused
    if not 0 <= whole("count", count) <= len(unused):
        raise UsageError(f"{count} blocks are needed, {len(unused)} of {len(allocator.holders)} are left")
    dealt, left = unused[len(unused) - count :][::-1], unused[: len(unused) - count]
    return BlockAllocator(_counted(allocator, dealt, 1), left), dealt


@host
def fork(allocator: BlockAllocator, blocks: Sequence[int]) -> BlockAllocator:
    """Let one more sequence hold blocks that are in use, as for a common prefix.

    A block of several holders is only read: who has more to write takes a block of its own and copies.

    >>> allocator, blocks = allocate(new_allocator(3), 1)
    >>> fork(allocator, blocks).holders
    (2, 0, 0)
    """
    _demand_held(allocator, blocks)
    return replace(allocator, holders=_counted(allocator, blocks, 1))


@host
def free(allocator: BlockAllocator, blocks: Sequence[int]) -> BlockAllocator:
    """Take blocks back from one sequence; what nobody holds any more is dealt out again, the first of it first.

    >>> allocator, blocks = allocate(new_allocator(3), 2)
    >>> free(allocator, blocks) == new_allocator(3)
    True
    >>> free(new_allocator(3), [1])
    Traceback (most recent call last):
    ...
    refimpl.contract.UsageError: block 1 of 3: 1 holders expected, 0 found
    """
    _demand_held(allocator, blocks)
    holders = _counted(allocator, blocks, -1)
    idle = [block for block in dict.fromkeys(blocks) if holders[block] == 0]
    return BlockAllocator(holders, allocator.unused + tuple(reversed(idle)))


def _counted(allocator: BlockAllocator, blocks: Sequence[int], change: int) -> tuple[int, ...]:
    holders = list(allocator.holders)
    for block in blocks:
        holders[block] += change
    return tuple(holders)


def _demand_held(allocator: BlockAllocator, blocks: Sequence[int]) -> None:
    """Refuse blocks that are not in use, or not as often as they are named."""
    for block, times in Counter(blocks).items():
        known = 0 <= block < len(allocator.holders)
        held = allocator.holders[block] if known else 0
        if held < times:
            raise UsageError(f"block {block} of {len(allocator.holders)}: {times} holders expected, {held} found")
