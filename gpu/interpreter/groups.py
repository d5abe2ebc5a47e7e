"""Groups of lanes: who is where, who runs next, and who waits for whom in a warp."""

import numpy as np

from gpu.interpreter.codes import CODE, COLLECTIVE, FAMILY, MEMBERS
from gpu.interpreter.collective import WARP_BARRIER
from gpu.interpreter.faults import ABSENT, NOT_A_MEMBER
from gpu.interpreter.jit import jit, spliced
from gpu.interpreter.lanes import ALL, LANES
from gpu.interpreter.pattern import first_lane
from gpu.interpreter.state import FAULT, FAULT_LANE, FAULT_PLACE, LIVE, SYNCING
from gpu.interpreter.units import run_collective, sync_warp

__all__ = ["FAR", "fail", "meet", "next_group", "park"]

FAR = 1 << 40


@spliced
def fail(words, fault, place, lane):
    """Note what goes wrong, and where."""
    words[FAULT], words[FAULT_PLACE], words[FAULT_LANE] = fault, place, lane


@jit
def park(warp, lanes, place):
    """Put lanes at a place."""
    for lane in range(LANES):
        if (lanes >> lane) & 1:
            warp[lane] = place


@jit
def next_group(warp, able):
    """Return the lowest place of the lanes that can run, the lanes there, and the next place where others are."""
    lowest, limit, lanes = FAR, FAR, 0
    for lane in range(LANES):
        if (able >> lane) & 1:
            lowest = min(lowest, warp[lane])
    for lane in range(LANES):
        if (able >> lane) & 1:
            if warp[lane] == lowest:
                lanes |= 1 << lane
            else:
                limit = min(limit, warp[lane])
    return lowest, lanes, limit


@jit
def meet(table, rows, regs, warp, words, watch, w):
    """Let one group of lanes go on whose named lanes have all come to the instruction. Return whether there was one."""
    waiting = warp[SYNCING]
    for lane in range(LANES):
        if (waiting >> lane) & 1:
            place = warp[lane]
            line = table[place]
            members = np.int64(regs[line[MEMBERS], lane]) & ALL
            group = 0
            for other in range(LANES):
                same = (waiting >> other) & 1 and warp[other] == place
                if same and np.int64(regs[line[MEMBERS], other]) & ALL == members:
                    group |= 1 << other
            if group & ~members:
                fail(words, NOT_A_MEMBER, place, first_lane(group & ~members))
                return False
            if members & warp[LIVE] & ~group == 0:
                warp[SYNCING] = waiting & ~group
                if line[FAMILY] != COLLECTIVE:  # one for the whole warp, which now comes to it together
                    return True
                asker = run_collective(regs, rows[place], np.uint32(group), line[CODE])
                if asker >= 0:
                    fail(words, ABSENT, place, asker)
                if line[CODE] == WARP_BARRIER:
                    sync_warp(watch, w, np.uint32(members))
                park(warp, group, place + 1)
                return True
    return False
