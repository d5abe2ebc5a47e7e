"""What orders one block after another: a fence and then an atomic here, an atomic on the same word and a fence there.

The first pair is a release, the second acquires every release on that word so far. A release covers what its thread
did before its fence, and what barriers had ordered before that. Blocks run one after another, so a release stands in
the log in the order of time, and only the block that runs now acquires.
"""

from gpu.interpreter.clocks import MOST_RELEASES, MOST_SLOTS, ORDERED, ordered
from gpu.interpreter.jit import jit

__all__ = ["fence", "published", "strong_access"]

_ATOMICS, _ACQUIRED, _RELEASES, _LINKS = 0, 1, 2, 3  # places in state.counts
_REMEMBERED = 1024


@jit
def _acquire(state, thread, slot, releases):
    """Note that a thread now has the first ``releases`` of a slot, and what their threads had of other slots."""
    known = state.counts[_ACQUIRED]
    for i in range(known):
        row = state.acquired[i]
        if row[0] == thread and row[2] == slot and row[3] == releases:
            return
    if known < len(state.acquired):
        row = state.acquired[known]
        row[0], row[1], row[2], row[3] = thread, state.now, slot, releases
        state.counts[_ACQUIRED] = known + 1


@jit
def fence(watch, warp, lanes):
    """Fence the memory of the device for these lanes: membar.gl, fence.acq_rel.gpu and stronger ones."""
    state = watch[0]
    state.now += 1
    for lane in range(32):
        if not lanes >> lane & 1:
            continue
        thread = 32 * warp + lane
        row = state.fenced[thread]
        row[0], row[1], row[2] = state.now, state.seen, state.full[warp]
        for i in range(min(state.counts[_ATOMICS], _REMEMBERED)):
            then = state.atomics[i]
            if ordered(state, then[1], then[0] >> 5, 1 << (then[0] & 31), warp, 1 << lane) == ORDERED:
                _acquire(state, thread, then[2], then[3])
                for link in state.links[: state.counts[_LINKS]]:
                    if link[0] == then[2] and link[1] < then[3]:
                        _acquire(state, thread, link[2], link[3])
    state.partial[warp] = state.now


@jit
def _slot_of(state, offset):
    """Return the place of a word in the table of those that order blocks; MOST_SLOTS where it is full."""
    word = (offset >> 2) + 1
    place = (word * 0x9E3779B1 >> 16) % MOST_SLOTS
    for _ in range(64):
        if state.keys[place] == 0:
            state.keys[place] = word
        if state.keys[place] == word:
            return place
        place = (place + 1) % MOST_SLOTS
    return MOST_SLOTS


@jit
def _fenced_by_all(state):
    """Return the time before which every thread of the block has fenced what it did; a barrier must have followed."""
    common = state.now
    for thread in range(state.threads):
        at = state.fenced[thread, 0]
        if at >= state.seen:
            return 0
        common = min(common, at)
    return common


@jit
def _release(state, thread, slot):
    """Log that a thread of this block publishes on a slot what its last fence covers."""
    last = state.fenced[thread]
    count = state.counts[_RELEASES]
    if last[0] < state.start or count == MOST_RELEASES:
        return
    row = state.releases[count]
    row[0], row[1], row[2], row[3] = state.now, state.start, thread, slot
    row[4], row[5], row[6] = max(last[1], _fenced_by_all(state)), last[0], last[2]
    state.counts[_RELEASES] = count + 1
    for i in range(state.counts[_ACQUIRED]):
        had = state.acquired[i]
        links = state.counts[_LINKS]
        order = ordered(state, had[1], had[0] >> 5, 1 << (had[0] & 31), thread >> 5, 1 << (thread & 31))
        if had[2] != slot and order == ORDERED and links < len(state.links):
            link = state.links[links]
            link[0], link[1], link[2], link[3] = slot, count, had[2], had[3]
            state.counts[_LINKS] = links + 1


@jit
def strong_access(state, warp, offsets, mask, reads, writes):
    """Let an access that is atomic acquire and release on its words. Return True where the tables are full."""
    for lane in range(32):
        if not mask >> lane & 1:
            continue
        slot = _slot_of(state, offsets[lane])
        if slot == MOST_SLOTS or state.counts[_RELEASES] == MOST_RELEASES:
            return True
        if reads:
            row = state.atomics[state.counts[_ATOMICS] % _REMEMBERED]
            row[0], row[1], row[2], row[3] = 32 * warp + lane, state.now, slot, state.counts[_RELEASES]
            state.counts[_ATOMICS] += 1
        if writes:
            _release(state, 32 * warp + lane, slot)
    return False


@jit
def published(state, time, thread, warp, lane):
    """Say whether what a thread of an earlier block did at ``time`` comes before what a lane does now."""
    low, high = 0, state.counts[_RELEASES]
    while low < high:  # the first release at or after that time
        middle = (low + high) >> 1
        if state.releases[middle, 0] < time:
            low = middle + 1
        else:
            high = middle
    while low < state.counts[_RELEASES] and state.releases[low, 1] <= time:
        row = state.releases[low]
        covered = time < row[4] or (thread == row[2] and time < row[5])
        covered |= thread >> 5 == row[2] >> 5 and time < row[6]
        if covered:
            for i in range(state.counts[_ACQUIRED]):
                had = state.acquired[i]
                order = ordered(state, had[1], had[0] >> 5, 1 << (had[0] & 31), warp, 1 << lane)
                if had[2] == row[3] and low < had[3] and order == ORDERED:
                    return True
        low += 1
    return False
