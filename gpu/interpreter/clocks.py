"""What happens before what: the clock of a launch and what barriers, warp barriers and fences make known.

The clock ticks at every synchronisation, so an access is stamped with the time of the last one. Whoever has since
synchronised with the accessor holds a later time for it: ``seen`` for the threads of the block, ``full[warp]`` for the
lanes of a warp, ``lanes[warp, a, b]`` for what lane a knows of lane b after barriers of some lanes, ``warps[a, b]``
for what warp a knows of warp b after barriers of some warps. Times never go back, so nothing is cleared between
blocks: what is older than ``start`` belongs to a block before this one, what is older than ``origin`` to no block.
"""

from typing import Any

import numpy as np

from gpu.interpreter.jit import jit
from refimpl.contract import host

__all__ = [
    "MOST_BLOCKS", "MOST_RELEASES", "MOST_SLOTS", "ORDERED", "PENDING", "WATCH", "begin_block", "begin_order",
    "make_watch", "ordered", "sync_block", "sync_warp",
]  # fmt: skip

PENDING = 0xFFFFFFFF  # the time of a cp.async write before its wait: ordered before nothing
ORDERED = -1
MOST_BLOCKS, MOST_RELEASES, MOST_SLOTS = 1 << 16, 1 << 14, 1 << 14
_FAULT = [(name, np.int64) for name in ("space", "offset", "warp", "pair", "kind", "place", "time", "who")]
WATCH = np.dtype(
    [
        ("now", np.int64),
        ("origin", np.int64),
        ("start", np.int64),
        ("seen", np.int64),
        ("threads", np.int64),
        ("fences", np.int64),  # whether the kernel has any, so that atomics can order blocks
        ("full", np.uint32, 32),
        ("partial", np.uint32, 32),  # when some lanes of the warp last did what the others did not
        ("lanes", np.uint32, (32, 32, 32)),
        ("warps", np.uint32, (32, 32)),
        ("fault", _FAULT),
        ("starts", np.uint32, MOST_BLOCKS),
        # The rest is for the order between blocks: gpu/interpreter/releases.py.
        ("fenced", np.uint32, (1024, 3)),  # per thread its last fence: when, what it had seen of its block, its warp
        ("atomics", np.uint32, (1024, 4)),  # a ring of this block's strong accesses: thread, time, slot, releases
        ("acquired", np.uint32, (4096, 4)),  # those that a fence has followed: the same columns
        ("releases", np.uint32, (MOST_RELEASES, 7)),  # time, start, thread, slot, seen, fence, full
        ("links", np.uint32, (4096, 4)),  # who acquires the first slot after so many releases has the second's
        ("keys", np.int64, MOST_SLOTS),  # a hash table: 1 + byte offset of a word that orders blocks
        ("counts", np.int64, 4),  # of atomics, acquired, releases, links
    ],
    align=True,
)


@host
def make_watch(threads: int, fences: bool) -> Any:
    """Return the clocks of a launch with so many threads a block."""
    watch = np.zeros(1, WATCH)
    watch["threads"], watch["fences"] = threads, fences
    begin_order(watch)
    return watch


@jit
def begin_order(watch):
    """Forget what was before: another order of the same launch begins."""
    state = watch[0]
    state.now += 1
    state.origin = state.now
    state.keys[:] = 0
    state.counts[:] = 0


@jit
def begin_block(watch, ordinal):
    """Begin the block that runs after ``ordinal`` others."""
    state = watch[0]
    state.now += 1
    state.start = state.seen = state.now
    if ordinal < MOST_BLOCKS:
        state.starts[ordinal] = state.now
    state.counts[0] = state.counts[1] = 0


@jit
def sync_block(watch, warps):
    """Order the warps in the mask at a barrier that opens."""
    state = watch[0]
    state.now += 1
    everyone = (1 << ((state.threads + 31) >> 5)) - 1
    if warps & everyone == everyone:
        state.seen = state.now
        return
    for warp in range(32):
        if warps >> warp & 1:
            state.full[warp] = state.now
            for other in range(32):
                if warps >> other & 1:
                    state.warps[warp, other] = state.now
                else:  # what one of them knew of a third, all know now
                    for one in range(32):
                        if warps >> one & 1:
                            state.warps[warp, other] = max(state.warps[warp, other], state.warps[one, other])


@jit
def sync_warp(watch, warp, lanes):
    """Order the lanes in the mask of a warp: bar.warp.sync."""
    state = watch[0]
    state.now += 1
    existing = (1 << min(32, state.threads - 32 * warp)) - 1
    if lanes & existing == existing:
        state.full[warp] = state.now
        return
    state.partial[warp] = state.now
    for other in range(32):
        latest = np.uint32(state.now)
        if not lanes >> other & 1:
            latest = np.uint32(0)
            for one in range(32):
                if lanes >> one & 1:
                    latest = max(latest, state.lanes[warp, one, other])
        for one in range(32):
            if lanes >> one & 1:
                state.lanes[warp, one, other] = latest


@jit
def ordered(state, time, warp, lanes, to_warp, to_lanes):
    """Return ORDERED if what ``lanes`` of a warp of this block did at ``time`` comes before what others do now.

    Otherwise the first pair that nothing orders: 32 times the lane of now plus the lane of then.
    """
    if time != PENDING:
        if time < state.seen:
            return ORDERED
        if warp != to_warp and state.warps[to_warp, warp] > time:
            return ORDERED
        if warp == to_warp and (time < state.full[warp] or (lanes == to_lanes and lanes & (lanes - 1) == 0)):
            return ORDERED
    for now in range(32):
        for then in range(32):
            if to_lanes >> now & 1 and lanes >> then & 1:
                known = warp == to_warp and (now == then or state.lanes[warp, now, then] > time)
                if time == PENDING or not known:
                    return 32 * now + then
    return ORDERED
