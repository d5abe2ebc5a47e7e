"""Prompts that begin alike share blocks of the paged cache: which hold a prefix already, and when one must be copied.

A full block is known by a hash of its tokens and of the block before it, so one look-up for each block finds the
longest prefix. A block of several holders is only read; who has more to write into it takes a copy.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from refimpl.contract import Array, Float, Int, UsageError, host, op, require, whole
from refimpl.efficient.allocator import BlockAllocator, allocate, blocks_for, fork, free

__all__ = ["PrefixIndex", "block_hashes", "find_prefix", "remember", "evict", "copy_on_write", "copy_blocks"]


@dataclass(frozen=True)
class PrefixIndex:
    """Which block holds which tokens. The index holds its blocks as a sequence does, so they outlive their sequences.

    What stands first is let go first: prefixes that were remembered long ago, and of each prefix its end.
    """

    block_size: int
    blocks: Mapping[bytes, int] = field(default_factory=dict)


@host
def block_hashes(token_ids: Sequence[int], block_size: int) -> tuple[bytes, ...]:
    """Return a hash of each full block of a sequence, which tells all tokens up to its end.

    Math: h[m] = SHA-256(h[m - 1], the tokens of block m); tokens beyond the last full block have none.
    Source: Kwon et al., PagedAttention, 2023; the chain of hashes as in vLLM's prefix cache.

    >>> one, other = block_hashes([1, 2, 3, 4, 5], 2), block_hashes([1, 2, 9, 4], 2)
    >>> len(one), one[0] == other[0], one[1] == other[1]
    (2, True, False)
    """
    if whole("block_size", block_size) < 1:
        raise UsageError(f"blocks of {block_size} tokens")
    ids, hashes, before = np.array([whole("a token id", each) for each in token_ids], "<i8"), [], b""
    for start in range(0, len(ids) - block_size + 1, block_size):
        before = hashlib.sha256(before + ids[start : start + block_size].tobytes()).digest()
        hashes.append(before)
    return tuple(hashes)


@host
def find_prefix(index: PrefixIndex, token_ids: Sequence[int]) -> tuple[int, ...]:
    """Return the blocks that hold the longest known prefix of a prompt, but never all of it: a token must be run.

    The sequence must ``fork`` them before it reads them.

    >>> index, _ = remember(PrefixIndex(2), *allocate(BlockAllocator((0, 0), (0, 1)), 2), [5, 6, 7, 8])
    >>> find_prefix(index, [5, 6, 7, 8]), find_prefix(index, [5, 6, 7, 8, 9]), find_prefix(index, [6, 5, 7])
    ((1,), (1, 0), ())
    """
    found: list[int] = []
    for key in block_hashes(token_ids[: max(0, len(token_ids) - 1)], index.block_size):
        if key not in index.blocks:
            break
        found.append(index.blocks[key])
    return tuple(found)


@host
def remember(
    index: PrefixIndex, allocator: BlockAllocator, blocks: Sequence[int], token_ids: Sequence[int]
) -> tuple[PrefixIndex, BlockAllocator]:
    """Let the index hold the full blocks of a sequence, whose tokens are in the cache; what it knows it keeps.

    >>> index, allocator = remember(PrefixIndex(2), BlockAllocator((1, 1), ()), (0, 1), [5, 6, 7])
    >>> sorted(index.blocks.values()), allocator.holders
    ([0], (2, 1))
    """
    chain = block_hashes(token_ids, index.block_size)
    held = {key: index.blocks.get(key, block) for key, block in zip(chain, blocks, strict=False)}
    new = [block for key, block in held.items() if key not in index.blocks]
    rest = {key: block for key, block in index.blocks.items() if key not in held}
    return replace(index, blocks=rest | dict(reversed(held.items()))), fork(allocator, new)


@host
def evict(index: PrefixIndex, allocator: BlockAllocator, count: int) -> tuple[PrefixIndex, BlockAllocator]:
    """Let go of up to ``count`` blocks that the index alone holds, those of the prefix remembered longest ago first.

    >>> index, allocator = remember(PrefixIndex(1), BlockAllocator((1, 1), ()), (0, 1), [5, 6])
    >>> evict(index, free(allocator, (0, 1)), 1)[1].unused
    (1,)
    """
    if whole("count", count) < 0:
        raise UsageError(f"{count} blocks to let go")
    idle = [(key, block) for key, block in index.blocks.items() if allocator.holders[block] == 1]
    gone = dict(idle[:count])
    kept = {key: block for key, block in index.blocks.items() if key not in gone}
    return replace(index, blocks=kept), free(allocator, list(gone.values()))


@host
def copy_on_write(
    allocator: BlockAllocator, blocks: Sequence[int], start: int, stop: int, block_size: int
) -> tuple[BlockAllocator, tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Make the blocks that the tokens from ``start`` to ``stop`` - 1 go into the sequence's own.

    Return the allocator and the blocks after it, and which blocks ``copy_blocks`` must copy to which.

    >>> copy_on_write(BlockAllocator((2, 2, 0), (2,)), (0, 1), 3, 4, 2)
    (BlockAllocator(holders=(2, 1, 1), unused=()), (0, 2), (1,), (2,))
    """
    end = blocks_for(stop, block_size)
    if not 0 <= start <= stop:
        raise UsageError(f"tokens from {start} to {stop}")
    written = range(start // block_size, end)
    if written.stop > len(blocks):
        raise UsageError(f"{stop} tokens lie in {written.stop} blocks of {block_size}, the sequence has {len(blocks)}")
    unknown = [block for block in blocks if not 0 <= block < len(allocator.holders)]
    if unknown:
        raise UsageError(f"blocks {unknown} of {len(allocator.holders)}")
    shared = [m for m in written if allocator.holders[blocks[m]] > 1]
    sources = tuple(blocks[m] for m in shared)
    allocator, targets = allocate(allocator, len(shared))
    own = list(blocks)
    for m, block in zip(shared, targets, strict=True):
        own[m] = block
    return free(allocator, sources), tuple(own), sources, targets


@op
def copy_blocks(
    k_cache: Float[Array, "num_blocks block_size K H"], v_cache: Float[Array, "num_blocks block_size K H2"],
    sources: Int[Array, " copies"], targets: Int[Array, " copies"],
) -> tuple[Float[Array, "num_blocks block_size K H"], Float[Array, "num_blocks block_size K H2"]]:
    """Copy whole blocks of the paged cache to others, in place.

    Math: k_cache[targets[c]] = k_cache[sources[c]], and so v_cache.
    Cost: no flop, copies block_size K (H + H2) elements read and written: bound by memory.
    Numerics: exact, unused slots and their NaN included.
    Constraints:
        (C1) the caches agree on blocks, block_size and K.
        (C2) sources and targets are integers, as many of both, and blocks of the cache.
        (C3) no two copies have one target, and no target is a source: in whatever order, they give the same.
    Source: Kwon et al., PagedAttention, 2023: copy on write.

    >>> cache = np.arange(3.0).reshape(3, 1, 1, 1)
    >>> copy_blocks(cache, cache.copy(), np.array([2]), np.array([0]))[0].ravel()
    array([2., 1., 2.])
    """
    require(k_cache.shape[:3] == v_cache.shape[:3], "C1", f"caches {k_cache.shape} and {v_cache.shape}")
    rows = sources.shape == targets.shape and sources.ndim == 1 and {sources.dtype.kind, targets.dtype.kind} <= {*"iu"}
    named = np.append(sources, targets) if rows else sources
    inside = rows and bool(((named >= 0) & (named < len(k_cache))).all())
    require(inside, "C2", f"copies of {sources} to {targets} in {len(k_cache)} blocks")
    apart = len(np.unique(targets)) == len(targets) and not np.isin(targets, sources).any()
    require(apart, "C3", f"copies of {sources} to {targets} depend on their order")
    for cache in (k_cache, v_cache):
        cache[targets] = cache[sources]
    return k_cache, v_cache
