"""Instructions that touch memory: addresses checked, the access watched, then bytes moved."""

import numpy as np

from gpu.interpreter import copies
from gpu.interpreter.access import GLOBAL, LOAD, LOCAL, PARAM, SHARED
from gpu.interpreter.codes import ACCESS, ATOMIC, CODE, FAMILY, MATRIX, OFFSET, SOURCE_OFFSET
from gpu.interpreter.faults import DIFFERENT_VALUES, NO_FAULT, QUEUE_FULL, RACE, SNAPSHOT
from gpu.interpreter.groups import fail
from gpu.interpreter.jit import inlined, jit, spliced
from gpu.interpreter.lanes import ALL, LANES
from gpu.interpreter.matrix import STORE, count_of
from gpu.interpreter.races import ASYNC, DUPLICATE, READ, STOP, WRITE
from gpu.interpreter.raw import load32, store32
from gpu.interpreter.regions import FIRST, REGION_BITS
from gpu.interpreter.state import FAULT_ADDRESS
from gpu.interpreter.units import commit, deliver, gather, issue, load_lanes, locate, run_atomic, scatter, store_lanes
from gpu.interpreter.watching import differs, note, observe

__all__ = ["touch"]

_ROW = 16  # bytes of a row of ldmatrix


@inlined
def touch(state, place, w, mask):
    """Run an instruction on memory. Return whether it was possible."""
    family = state.table[place, FAMILY]
    if family in (ACCESS, ATOMIC):
        return _access(state, place, w, mask)
    return _matrix(state, place, w) if family == MATRIX else _copy(state, place, w, mask)


@spliced
def _located(state, place, w, mask, row, offset, space, size, align, writes):
    """Find the bytes of an access. Return False where a lane may not have them."""
    addresses = state.lanes[0]
    base = state.registers[w, row]
    bad = locate(
        base, mask, offset, space, size, align, writes, state.regions, w * LANES, addresses, state.lanes[1]
    )
    if bad:
        fail(state.words, bad & 15, place, bad >> 4)
        state.words[FAULT_ADDRESS] = addresses[bad >> 4]
    return bad == NO_FAULT


@spliced
def _needs_snapshot(state, place, mask):
    """Say whether a region is about to be written for the first time, so that its bytes must be kept first."""
    for lane in range(LANES):
        if (mask >> lane) & 1:
            region = state.lanes[0, lane] >> REGION_BITS
            if region >= FIRST and not state.kept[region]:
                fail(state.words, SNAPSHOT, place, lane)
                state.words[FAULT_ADDRESS] = region
                return True
    return False


@inlined
def _access(state, place, w, mask):
    """Run a load, a store or an atomic."""
    line, rows, regs = state.table[place], state.rows[place], state.registers[w]
    code, is_plain = line[CODE], line[FAMILY] == ACCESS
    what, space, size, count = code & 3, (code >> 2) & 7, (code >> 5) & 31, (code >> 10) & 15 if is_plain else 1
    writes, total, places = what != LOAD, size * count, state.lanes[1]
    row = rows[count] if what == LOAD else rows[0] if is_plain else rows[1]
    if not _located(state, place, w, mask, row, line[OFFSET], space, total, total, writes):
        return False
    said = 0
    if space != LOCAL and space != PARAM:
        if writes and _needs_snapshot(state, place, mask):
            return False
        said = observe(state.watching, state.regions, state.lanes[0], total, np.uint32(mask), w, code, place)
        if said == STOP:
            fail(state.words, RACE, place, 0)
            return False
    if not is_plain:
        run_atomic(regs, rows, mask, code, places)
        return True
    for i in range(count):
        if what == LOAD:
            load_lanes(regs, rows[i], mask, places, size, code >> 17)
        else:
            store_lanes(regs, rows[1 + i], mask, places, size)
            lane = differs(regs[rows[1 + i]], mask, places, size) if said == DUPLICATE else -1
            if lane >= 0:
                fail(state.words, DIFFERENT_VALUES, place, lane)
                return False
        for lane in range(LANES):
            places[lane] += size
    return True


@jit
def _matrix(state, place, w):
    """Run ldmatrix or stmatrix: the whole warp is here."""
    line, rows, regs = state.table[place], state.rows[place], state.registers[w]
    code = line[CODE]
    count, stores = count_of(code), code & STORE
    givers = ALL >> (LANES - 8 * count)
    row = rows[0] if stores else rows[count]
    if not _located(state, place, w, givers, row, line[OFFSET], SHARED, _ROW, _ROW, stores != 0):
        return False
    kind = np.int64(WRITE if stores else READ)
    if note(state.watching, state.regions, state.lanes[0], _ROW, np.uint32(givers), w, kind, place) == STOP:
        fail(state.words, RACE, place, 0)
        return False
    if stores:
        gather(regs, rows[1:], state.quads, code)
    for lane in range(8 * count):
        for i in range(4):
            at = state.lanes[1, lane] + 4 * i
            if stores:
                store32(at, np.uint64(state.quads[lane, i]))
            else:
                state.quads[lane, i] = np.uint32(load32(at))
    if not stores:
        scatter(regs, rows, state.quads, code)
    return True


@jit
def _copy(state, place, w, mask):
    """Run an instruction of cp.async."""
    line, rows, regs, watching = state.table[place], state.rows[place], state.registers[w], state.watching
    code, lanes = line[CODE], np.uint32(mask)
    if code == copies.COPY:
        return _issue(state, place, w, mask)
    if code != copies.WAIT:
        commit(state.queue, w, lanes)
    if code != copies.COMMIT:
        left = np.int64(regs[rows[0], 0]) if code == copies.WAIT else -1
        deliver(state.queue, watching.watch, watching.of_shared, state.shared, w, lanes, left)
    return True


@jit
def _issue(state, place, w, mask):
    """Start the copies of a warp; a lane can take fewer bytes than it writes, the rest are zeros."""
    line, rows, regs = state.table[place], state.rows[place], state.registers[w]
    watching, addresses = state.watching, state.lanes[0]
    size = np.int64(regs[rows[2], 0])
    targets, kept, takers = state.lanes[2], state.lanes[3], 0
    if not _located(state, place, w, mask, rows[0], line[OFFSET], SHARED, size, size, True):
        return False
    if note(watching, state.regions, addresses, size, np.uint32(mask), w, np.int64(ASYNC), place) == STOP:
        fail(state.words, RACE, place, 0)
        return False
    for lane in range(LANES):
        targets[lane] = addresses[lane] & ((1 << REGION_BITS) - 1)
        kept[lane] = min(np.int64(regs[rows[3], lane]), size)
    for part in range(size, 0, -1):  # lanes that take the same number of bytes
        takers = 0
        for lane in range(LANES):
            takers |= np.int64(kept[lane] == part and (mask >> lane) & 1) << lane
        if takers:
            if not _located(state, place, w, takers, rows[1], line[SOURCE_OFFSET], GLOBAL, part, size, False):
                return False
            if note(watching, state.regions, addresses, part, np.uint32(takers), w, np.int64(READ), place) == STOP:
                fail(state.words, RACE, place, 0)
                return False
    if issue(state.queue, state.shared, w, np.uint32(mask), targets, state.lanes[1], size, kept):
        fail(state.words, QUEUE_FULL, place, 0)
        return False
    return True
