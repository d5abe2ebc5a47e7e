"""Barriers of a block. One opens when all threads that are due have come: those that have not ended, or a number."""

import numpy as np

from gpu.interpreter.codes import CODE
from gpu.interpreter.control import AND, ARRIVE, COUNT
from gpu.interpreter.faults import DIVERGED_BARRIER
from gpu.interpreter.groups import fail, park
from gpu.interpreter.jit import jit, spliced
from gpu.interpreter.lanes import LANES
from gpu.interpreter.pattern import first_lane
from gpu.interpreter.state import ARRIVED, FAULT_WARP, LIVE, OPENED, WAITING

__all__ = ["arrive", "open_barrier"]

_NUMBER, _THREADS, _PREDICATE = 1, 2, 3  # operands


@jit
def arrive(words, regs, row, mask):
    """Count lanes at a barrier that they do not wait at."""
    for lane in range(LANES):
        if (mask >> lane) & 1:
            words[ARRIVED + (np.int64(regs[row, lane]) & 15)] += 1


@jit
def open_barrier(table, rows, registers, warps, words):
    """Open a barrier that all have come to. Return the warps that waited there as a mask; 0: there is none."""
    for number in range(16):
        come, due, live, result, everyone = words[ARRIVED + number], 0, 0, 0, True
        for w in range(warps.shape[0]):
            regs = registers[w]
            for lane in range(LANES):
                live += (warps[w, LIVE] >> lane) & 1
                if (warps[w, WAITING] >> lane) & 1:
                    place = warps[w, lane]
                    if regs[rows[place, _NUMBER], lane] == np.uint64(number):
                        come += 1
                        due = max(due, np.int64(regs[rows[place, _THREADS], lane]))
                        holds = regs[rows[place, _PREDICATE], lane] != np.uint64(0)
                        result += holds
                        everyone = everyone and holds
        if come > words[ARRIVED + number] and come >= (due if due else live):
            words[ARRIVED + number] = 0
            words[OPENED] += 1
            return _release(table, rows, registers, warps, words, number, result, everyone)
    return 0


@spliced
def _release(table, rows, registers, warps, words, number, result, everyone):
    """Let the lanes at a barrier go on. Return their warps."""
    woken = 0
    for w in range(warps.shape[0]):
        warp, regs, group = warps[w], registers[w], 0
        for lane in range(LANES):
            if (warp[WAITING] >> lane) & 1 and regs[rows[warp[lane], _NUMBER], lane] == np.uint64(number):
                group |= 1 << lane
        if group == 0:
            continue
        place = warp[first_lane(group)]
        code = table[place, CODE]
        for lane in range(LANES):
            if (warp[LIVE] >> lane) & 1 and (not (group >> lane) & 1 or warp[lane] != place):
                fail(words, DIVERGED_BARRIER, place, lane)
                words[FAULT_WARP] = w
                return 0
        if code >> 8 > ARRIVE:
            value = result if code >> 8 == COUNT else np.int64(everyone if code >> 8 == AND else result > 0)
            for lane in range(LANES):
                if (group >> lane) & 1:
                    regs[rows[place, 0], lane] = np.uint64(value)
        warp[WAITING] &= ~group
        park(warp, group, place + 1)
        woken |= 1 << w
    return woken
