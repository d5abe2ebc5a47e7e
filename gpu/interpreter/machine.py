"""The machine: warps of 32 lanes, each lane with its own place in the program.

Of the lanes that can run, those at the lowest place run first, so lanes that parted meet again where their paths do.
A warp runs until its lanes have all ended or wait; then the next one runs. A barrier opens when nobody can run.
"""

import numpy as np

from gpu.interpreter import async_copy
from gpu.interpreter.barrier import open_barrier
from gpu.interpreter.codes import (
    CODE,
    COLLECTIVE,
    CONTROL,
    COPY,
    FAMILY,
    GUARD,
    MATRIX,
    MMA,
    NEGATED,
)
from gpu.interpreter.compute import compute
from gpu.interpreter.control import FENCE
from gpu.interpreter.faults import DEADLOCK, IN_FLIGHT, SNAPSHOT
from gpu.interpreter.groups import fail, meet, next_group, park
from gpu.interpreter.jit import jit, spliced
from gpu.interpreter.lanes import ALL, LANES
from gpu.interpreter.memory import touch
from gpu.interpreter.pattern import first_lane
from gpu.interpreter.state import (
    ARRIVED,
    BLOCK,
    BUDGET,
    CTAID,
    FAULT,
    FAULT_WARP,
    LIVE,
    REVERSED,
    STARTED,
    SYNCING,
    WAITING,
)
from gpu.interpreter.steering import gather_warp, guarded, join, steer
from gpu.interpreter.units import begin_block, fence, in_flight, sync_block

__all__ = ["DONE", "FAILED", "PAUSED", "run"]

DONE, PAUSED, FAILED = 0, 1, 2
_QUANTUM = 50_000  # instructions that a warp runs before others have a turn: some may wait for what others store


@jit
def run(state, slice_):
    """Run blocks until all are done, something is wrong, or so many instructions are."""
    words = state.words
    total = state.grid[0] * state.grid[1] * state.grid[2]
    end = max(words[BUDGET] - slice_, 0)
    while words[BLOCK] < total:
        if not words[STARTED]:
            _begin_block(state, total - 1 - words[BLOCK] if words[REVERSED] else words[BLOCK])
            words[STARTED] = 1
        status = _run_block(state, end)
        if status != DONE:
            return status
        words[BLOCK] += 1
        words[STARTED] = 0
    return DONE


@spliced
def _begin_block(state, index):
    """Fill the memory of a block with poison and put its threads at the start."""
    grid, words = state.grid, state.words
    state.shared[:] = 0xFF
    state.local[:] = 0xFF
    words[ARRIVED:] = 0
    async_copy.reset(state.queue)
    begin_block(state.watching.watch, words[BLOCK])
    place = (index % grid[0], index // grid[0] % grid[1], index // grid[0] // grid[1])
    for w in range(state.warps.shape[0]):
        state.warps[w, :LANES] = 0
        state.warps[w, LIVE] = state.threads[w]
        state.warps[w, WAITING] = state.warps[w, SYNCING] = 0
        for axis in range(3):
            state.registers[w, words[CTAID + axis]] = np.uint64(place[axis])


@spliced
def _run_block(state, end):
    """Run the warps of a block in turn."""
    words = state.words
    while True:
        alive = 0
        for w in state.order:
            _run_warp(state, w)
            if words[FAULT]:
                words[FAULT_WARP] = w
                return PAUSED if words[FAULT] == SNAPSHOT else FAILED
            alive |= state.warps[w, LIVE]
            if words[BUDGET] <= end:
                return PAUSED
        if not alive:
            return _ended(state)
        woken = open_barrier(state.table, state.rows, state.registers, state.warps, words)
        if woken:
            for w in range(state.warps.shape[0]):
                woken |= np.int64(state.warps[w, LIVE] == 0) << w
            sync_block(state.watching.watch, woken)
        elif _is_stuck(state):
            return FAILED


@spliced
def _ended(state):
    """End a block: no copy may be under way."""
    thread = in_flight(state.queue)
    if thread == 0:
        return DONE
    state.words[FAULT_WARP] = (thread - 1) // LANES
    fail(state.words, IN_FLIGHT, 0, (thread - 1) % LANES)
    return FAILED


@spliced
def _is_stuck(state):
    """Say whether no lane can go on, which is a fault; lanes whose turn is over can."""
    if state.words[FAULT]:
        return True
    for w in range(state.warps.shape[0]):
        warp = state.warps[w]
        if warp[LIVE] & ~(warp[WAITING] | warp[SYNCING]):
            return False
    for w in range(state.warps.shape[0]):
        warp = state.warps[w]
        if warp[LIVE]:
            state.words[FAULT_WARP] = w
            lane = first_lane(warp[LIVE])
            fail(state.words, DEADLOCK, warp[lane], lane)
    return True


@jit
def _run_warp(state, w):
    """Run a warp until its lanes have ended or wait, something is wrong, or its turn is over."""
    warp, words, regs = state.warps[w], state.words, state.registers[w]
    left = min(_QUANTUM, words[BUDGET])
    words[BUDGET] -= left
    while left > 0 and not words[FAULT]:
        if warp[SYNCING] and meet(state.table, state.rows, regs, warp, words, state.watching.watch, w):
            continue
        place, active, limit = next_group(warp, warp[LIVE] & ~(warp[WAITING] | warp[SYNCING]))
        if active == 0:
            break
        while left > 0:
            left -= 1
            state.executed[place] += 1
            line, rows = state.table[place], state.rows[place]
            mask = active if line[GUARD] < 0 else guarded(regs[line[GUARD]], active, line[NEGATED])
            if line[FAMILY] == CONTROL:
                if line[CODE] == FENCE:
                    fence(state.watching.watch, w, np.uint32(mask))
                place, active = steer(state.jumps, line, rows, regs, warp, words, place, active, mask)
            elif line[FAMILY] == COLLECTIVE:
                watch = state.watching.watch
                place, active = join(watch, w, line, rows, regs, warp, words, place, active, mask, limit)
            elif mask == 0:
                place += 1
            elif mask != ALL and (line[FAMILY] == MMA or line[FAMILY] == MATRIX):
                state.executed[place] -= 1
                place, active = gather_warp(warp, words, place, active, mask)
            elif line[FAMILY] > COPY:
                compute(line[FAMILY], regs, rows, np.uint32(mask), line[CODE])
                place += 1
            elif touch(state, place, w, mask):
                place += 1
            else:
                state.executed[place] -= 1
                break
            if place >= limit or active == 0:
                break
        park(warp, active, place)
    words[BUDGET] += left
