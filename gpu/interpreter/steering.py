"""Which lanes an instruction runs for, and where they go on."""

import numpy as np

from gpu.interpreter.barrier import arrive
from gpu.interpreter.codes import CODE, MEMBERS, OFFSET, SOURCE_OFFSET, TARGET
from gpu.interpreter.collective import WARP_BARRIER
from gpu.interpreter.control import ACTIVE, ARRIVE, BARRIER, BRANCH, EXIT, SWITCH, TRAP
from gpu.interpreter.faults import ABSENT, BAD_INDEX, PARTIAL_WARP, TRAPPED
from gpu.interpreter.groups import FAR, fail, park
from gpu.interpreter.jit import jit, spliced
from gpu.interpreter.lanes import ALL, LANES
from gpu.interpreter.pattern import first_lane
from gpu.interpreter.state import DIVERGED, LIVE, SYNCING, WAITING
from gpu.interpreter.units import run_collective, sync_warp

__all__ = ["gather_warp", "guarded", "join", "steer"]


@spliced
def guarded(row, active, negated):
    """Return the active lanes whose predicate lets the instruction run."""
    mask = np.int64(0)
    for lane in range(LANES):
        mask |= np.int64(row[lane] & np.uint64(1)) << lane
    return active & (mask ^ ALL if negated else mask)


@jit
def steer(jumps, line, rows, regs, warp, words, place, active, mask):
    """Run a control instruction. Return where the group goes on, and who is left of it: 0 when lanes part."""
    what = line[CODE] & 255
    if what == BRANCH:
        if mask == active:
            return line[TARGET], active
        if mask == 0:
            return place + 1, active
        words[DIVERGED] += 1
        park(warp, mask, line[TARGET])
        park(warp, active & ~mask, place + 1)
        return place, 0
    rest = active & ~mask
    if what == EXIT:
        warp[LIVE] &= ~mask
        return place + 1, rest
    if what == SWITCH:
        park(warp, rest, place + 1)
        for lane in range(LANES):
            if (mask >> lane) & 1:
                choice = np.int64(regs[rows[0], lane])
                if choice >= line[SOURCE_OFFSET]:
                    fail(words, BAD_INDEX, place, lane)
                    return place, 0
                warp[lane] = jumps[line[OFFSET] + choice]
        return place, 0
    if what == BARRIER and line[CODE] >> 8 != ARRIVE:
        park(warp, mask, place)
        warp[WAITING] |= mask
        return place + 1, rest
    if what == BARRIER:
        arrive(words, regs, rows[1], mask)
    elif what == ACTIVE:
        for lane in range(LANES):
            if (mask >> lane) & 1:
                regs[rows[0], lane] = np.uint64(active)
    elif what == TRAP and mask:
        fail(words, TRAPPED, place, first_lane(mask))
        return place, 0
    return place + 1, active


@spliced
def join(watch, w, line, rows, regs, warp, words, place, active, mask, limit):
    """Run an instruction that lanes do together, at once when all are here that it names, else when they have come."""
    if limit == FAR and mask and mask == warp[LIVE]:
        row, agree = regs[line[MEMBERS]], True
        members = np.int64(row[first_lane(mask)]) & ALL
        for lane in range(LANES):
            agree = agree and (not (mask >> lane) & 1 or np.int64(row[lane]) & ALL == members)
        if agree and members & mask == mask:
            asker = run_collective(regs, rows, np.uint32(mask), line[CODE])
            if line[CODE] == WARP_BARRIER:
                sync_warp(watch, w, np.uint32(members))
            if asker >= 0:
                fail(words, ABSENT, place, asker)
                return place, 0
            return place + 1, active
    park(warp, mask, place)
    warp[SYNCING] |= mask
    return place + 1, active & ~mask


@jit
def gather_warp(warp, words, place, active, mask):
    """Have lanes wait at an instruction of the whole warp for the others; where there are no others it is a fault."""
    if mask == warp[LIVE]:
        fail(words, PARTIAL_WARP, place, first_lane(mask))
        return place, 0
    park(warp, mask, place)
    warp[SYNCING] |= mask
    return place + 1, active & ~mask
