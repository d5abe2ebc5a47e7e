"""One instruction: the families that compute, and those that touch memory."""

from gpu.interpreter import access, approximate, atomic, compare, convert, floating, integer, logic, moves
from gpu.interpreter.codes import (
    ACCESS,
    CODE,
    COMPARE,
    CONVERT,
    FAMILY,
    FLOATING,
    INTEGER,
    LOGIC,
    MOVES,
    OFFSET,
)  # fmt: skip
from gpu.interpreter.groups import fail
from gpu.interpreter.jit import inlined, jit
from gpu.interpreter.lanes import LANES
from gpu.interpreter.state import FAULT_ADDRESS

__all__ = ["compute", "touch"]


@jit
def compute(family, regs, rows, mask, code):
    """Run an instruction on registers alone."""
    if family == INTEGER:
        integer.execute(regs, rows, mask, code)
    elif family == FLOATING:
        floating.execute(regs, rows, mask, code)
    elif family == MOVES:
        moves.execute(regs, rows, mask, code)
    elif family == LOGIC:
        logic.execute(regs, rows, mask, code)
    elif family == COMPARE:
        compare.execute(regs, rows, mask, code)
    elif family == CONVERT:
        convert.execute(regs, rows, mask, code)
    else:
        approximate.execute(regs, rows, mask, code)


@inlined
def touch(state, place, w, regs, mask):
    """Run an instruction on memory. Return whether it may."""
    line, rows = state.table[place], state.rows[place]
    code = line[CODE]
    what, space, size, count = code & 3, (code >> 2) & 7, (code >> 5) & 31, (code >> 10) & 15
    is_access = line[FAMILY] == ACCESS
    addresses, places = state.lanes[0], state.lanes[1]
    base = rows[count if what == access.LOAD else 0 if is_access else 1]
    total = size * count if is_access else size
    bad = access.locate(
        regs[base], mask, line[OFFSET], space, total, what != access.LOAD, state.regions, w * LANES, addresses, places
    )
    if bad:
        fail(state.words, bad & 15, place, bad >> 4)
        state.words[FAULT_ADDRESS] = addresses[bad >> 4]
        return False
    if not is_access:
        atomic.execute(regs, rows, mask, code, places)
    else:
        for i in range(count):
            if what == access.LOAD:
                access.load(regs, rows[i], mask, places, size, code >> 17)
            else:
                access.store(regs, rows[1 + i], mask, places, size)
            for lane in range(LANES):
                places[lane] += size
    return True
