"""What the lanes of a warp do together: shuffles, votes, matches, reductions."""

import numpy as np

from gpu.interpreter.jit import jit, spliced
from gpu.interpreter.lanes import LANES, OUT, SCRATCH, settle, signed
from refimpl.contract import host

__all__ = ["WARP_BARRIER", "catalogue", "code_of", "execute"]

_NAMES = (
    "bar.warp.sync", "shfl.sync.up.b32", "shfl.sync.down.b32", "shfl.sync.bfly.b32", "shfl.sync.idx.b32",
    "vote.sync.all.pred", "vote.sync.any.pred", "vote.sync.uni.pred", "vote.sync.ballot.b32",
    "match.any.sync.b32", "match.any.sync.b64", "match.all.sync.b32", "match.all.sync.b64", "elect.sync",
    *(f"redux.sync.{name}.{kind}" for name in ("add", "min", "max") for kind in ("u32", "s32")),
    *(f"redux.sync.{name}.b32" for name in ("and", "or", "xor")),
)  # fmt: skip
WARP_BARRIER, _UP, _DOWN, _BFLY, _IDX, _ALL, _ANY, _UNI, _BALLOT = range(9)
_MATCH_ANY, _MATCH_ALL, _ELECT, _REDUX = 9, 11, 13, 14
_MIN, _MAX, _AND, _OR = 2, 4, 6, 7  # after _REDUX; signed ones are odd
_WORD = np.uint64(0xFFFFFFFF)


@host
def catalogue() -> tuple[str, ...]:
    """Return every opcode of the family."""
    return _NAMES


@host
def code_of(opcode: str, width: int) -> int | None:
    """Return the code of an opcode: its place in the list."""
    return _NAMES.index(opcode) if opcode in _NAMES else None


@jit
def execute(regs, rows, mask, code):
    """Run one instruction for the lanes that take part. Return -1, or the lane that asks for one that does not."""
    if code == WARP_BARRIER:
        return -1
    if code <= _IDX:
        return _shuffle(regs, rows, mask, code)
    if code <= _BALLOT:
        _vote(regs, rows, mask, code)
    elif code < _MATCH_ALL:
        _match_any(regs[OUT], regs[rows[1]], mask)
        settle(regs, rows[0], mask, _WORD)
    elif code <= _ELECT:
        _agree(regs, rows, mask, code)
    else:
        _reduce(regs[OUT], regs[rows[1]], mask, code - _REDUX)
        settle(regs, rows[0], mask, _WORD)
    return -1


@spliced
def _shuffle(regs, rows, mask, code):
    out, found, a, b, c = regs[OUT], regs[SCRATCH], regs[rows[2]], regs[rows[3]], regs[rows[4]]
    for lane in range(LANES):
        if (mask >> lane) & 1:
            step, clamp = np.int64(b[lane]) & 31, np.int64(c[lane])
            segment = (clamp >> 8) & 31
            least = lane & segment
            most = least | (clamp & 31 & ~segment)
            if code == _UP:
                source = lane - step
            elif code == _DOWN:
                source = lane + step
            else:
                source = lane ^ step if code == _BFLY else least | (step & ~segment)
            inside = source >= most if code == _UP else source <= most
            source = source if inside else lane
            if not (mask >> source) & 1:
                return lane
            out[lane], found[lane] = a[source], np.uint64(inside)
    settle(regs, rows[0], mask, _WORD)
    for lane in range(LANES):
        out[lane] = found[lane]
    settle(regs, rows[1], mask, _WORD)
    return -1


@spliced
def _vote(regs, rows, mask, code):
    """Count the lanes whose predicate holds; tell every one."""
    a, ballot = regs[rows[1]], 0
    for lane in range(LANES):
        ballot |= np.int64(a[lane] & np.uint64(1)) << lane
    ballot &= np.int64(mask)
    everyone = ballot == np.int64(mask)
    if code == _BALLOT:
        value = ballot
    elif code == _ALL:
        value = np.int64(everyone)
    else:
        value = np.int64(ballot != 0 if code == _ANY else everyone or ballot == 0)
    for lane in range(LANES):
        regs[OUT, lane] = np.uint64(value)
    settle(regs, rows[0], mask, _WORD)


@spliced
def _match_any(out, a, mask):
    """Tell each lane which lanes hold the same as it."""
    for lane in range(LANES):
        same = np.int64(0)
        for other in range(LANES):
            same |= np.int64(a[other] == a[lane]) << other
        out[lane] = np.uint64(same & np.int64(mask))


@spliced
def _agree(regs, rows, mask, code):
    """Tell every lane whether all hold the same, or which is the first of them."""
    first = 0
    while not (mask >> first) & 1:
        first += 1
    a, agree = regs[rows[2]], True
    if code != _ELECT:
        for lane in range(LANES):
            agree = agree and (not (mask >> lane) & 1 or a[lane] == a[first])
    value = np.int64(mask) * agree if code != _ELECT else first
    for lane in range(LANES):
        if (mask >> lane) & 1:
            regs[rows[0], lane] = np.uint64(value)
            regs[rows[1], lane] = np.uint64(agree if code != _ELECT else lane == first)


@spliced
def _reduce(out, a, mask, operation):
    started, total = False, np.int64(0)
    for lane in range(LANES):
        if (mask >> lane) & 1:
            value = signed(a[lane], 32) if operation & 1 and operation < _AND else np.int64(a[lane])
            if not started:
                total, started = value, True
            elif operation < _MIN:
                total += value
            elif operation < _AND:
                total = min(total, value) if operation < _MAX else max(total, value)
            elif operation == _AND:
                total &= value
            else:
                total = total | value if operation == _OR else total ^ value
    for lane in range(LANES):
        out[lane] = np.uint64(total)
