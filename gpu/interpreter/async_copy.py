"""cp.async: bytes that leave at once and arrive at their thread's wait; until then the destination is poison.

A queue has a ring of copies per warp, oldest first: what each lane took, where it goes, and the lane's group.
"""

from typing import Any, NamedTuple

import numpy as np

from gpu.interpreter.jit import jit
from gpu.interpreter.races import land
from gpu.interpreter.raw import load8
from refimpl.contract import host

__all__ = ["COPY", "MOST_COPIES", "Queue", "commit", "in_flight", "issue", "make_queue", "reset", "wait"]

MOST_COPIES = 1024  # instructions in flight per warp
COPY = np.dtype(
    [
        ("lanes", np.int64),
        ("size", np.int64),
        ("offsets", np.int64, 32),
        ("groups", np.int64, 32),
        ("bytes", np.uint8, (32, 16)),
    ],
    align=True,
)


class Queue(NamedTuple):
    """The copies under way in a block."""

    copies: Any  # COPY[warps, MOST_COPIES]
    ends: Any  # int64[warps, 2]: the number of the oldest copy and of the next
    groups: Any  # int64[warps, 32]: how many groups a lane has committed


@host
def make_queue(warps: int) -> Queue:
    """Return the empty queue of a block with so many warps."""
    copies = np.zeros((warps, MOST_COPIES), COPY)
    return Queue(copies, np.zeros((warps, 2), np.int64), np.zeros((warps, 32), np.int64))


@jit
def reset(queue):
    """Empty a queue: another block begins."""
    queue.ends[:] = 0
    queue.groups[:] = 0


@jit
def issue(queue, shared, warp, mask, offsets, sources, size, kept):
    """Take ``kept`` bytes of each lane's source, with zeros up to ``size``, and poison where they go.

    Return True where the warp has too many copies in flight.
    """
    oldest, newest = queue.ends[warp]
    if newest - oldest == MOST_COPIES:
        return True
    copy = queue.copies[warp, newest % MOST_COPIES]
    copy.lanes, copy.size = np.int64(mask), size
    for lane in range(32):
        if mask >> lane & 1:
            copy.offsets[lane], copy.groups[lane] = offsets[lane], queue.groups[warp, lane]
            for i in range(size):
                copy.bytes[lane, i] = load8(sources[lane] + i) if i < kept[lane] else 0
                shared[offsets[lane] + i] = 0xFF
    queue.ends[warp, 1] = newest + 1
    return False


@jit
def commit(queue, warp, mask):
    """Close the open group of copies of these lanes."""
    for lane in range(32):
        queue.groups[warp, lane] += mask >> lane & 1


@jit
def wait(queue, watch, shadow, shared, warp, mask, groups_left):
    """Deliver the copies of these lanes but for their last ``groups_left`` committed groups; -1 delivers all."""
    oldest, newest = queue.ends[warp]
    for number in range(oldest, newest):
        copy = queue.copies[warp, number % MOST_COPIES]
        for lane in range(32):
            arrives = groups_left < 0 or copy.groups[lane] < queue.groups[warp, lane] - groups_left
            if copy.lanes & mask & 1 << lane and arrives:
                start = copy.offsets[lane]
                for i in range(copy.size):
                    shared[start + i] = copy.bytes[lane, i]
                land(watch, shadow, start, copy.size)
                copy.lanes &= ~(1 << lane)
        if copy.lanes == 0 and number == queue.ends[warp, 0]:
            queue.ends[warp, 0] += 1


@jit
def in_flight(queue):
    """Return 1 + the thread of a copy that no wait has delivered, 0 where there is none."""
    for warp in range(len(queue.ends)):
        for number in range(queue.ends[warp, 0], queue.ends[warp, 1]):
            lanes = queue.copies[warp, number % MOST_COPIES].lanes
            for lane in range(32):
                if lanes >> lane & 1:
                    return 32 * warp + lane + 1
    return 0
