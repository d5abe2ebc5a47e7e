"""Data races: two threads access the same bytes, one of them writes, and nothing orders the two.

A shadow has a column per grain of memory (the smallest access of the kernel, 1 to 16 bytes, so that no access is part
of a grain) with three records: the last plain write, and the last two others (reads and atomics) of different warps
or blocks. A record is a time, who (place in the program, kind, thread), and the lanes where they are many. Two are
enough: whoever conflicts with one of many warps conflicts with one of any two of them. Only between barriers of parts
of a warp or of a block can a third be forgotten: then a race can stay unseen, but none is ever made up.
"""

from typing import Any

import numpy as np

from gpu.interpreter.clocks import ORDERED, PENDING, ordered
from gpu.interpreter.jit import inlined, jit
from gpu.interpreter.pattern import CONTIGUOUS, UNIFORM, first_lane, lanes_in, pattern
from gpu.interpreter.releases import published, strong_access
from refimpl.contract import host

__all__ = [
    "ASYNC", "ATOMIC", "DUPLICATE", "FINE", "FULL", "GLOBAL", "READ", "SHARED", "STOP", "STRONG_READ", "STRONG_WRITE",
    "WRITE", "access", "land", "make_shadow",
]  # fmt: skip

# Kinds of access. Bit 0: it writes; bit 1: it is strong (atomic, volatile, relaxed); bit 2: it is more than that.
READ, WRITE, STRONG_READ, STRONG_WRITE, ASYNC, ATOMIC = 0, 1, 2, 3, 5, 7
SHARED, GLOBAL = 0, 1
FINE, DUPLICATE, STOP = 0, 1, 2  # what access says
FULL = 1024  # in place of a pair of lanes: the tables of releases are full

_THREAD, _WARP, _MANY, _KIND, _STRONG = 0x3FF, 0x3E0, 0x400, 0x1800, 0x1000  # parts of who
_KIND_AT, _PLACE_AT = 11, 13
_TIME, _WHO, _LANES = 0, 1, 2  # parts of a record


@host
def make_shadow(num_bytes: int, grain: int) -> Any:
    """Return the shadow of a space; ``grain`` is the smallest access to it, 0 makes the shadow of no memory."""
    shadow = np.zeros((10, max(1, num_bytes // grain if grain else 0)), np.uint32)
    shadow[9, 0] = max(grain, 1).bit_length() - 1  # below the records
    return shadow


@inlined
def _put(shadow, at, record, time, who, lanes):
    shadow[record + _TIME, at], shadow[record + _WHO, at], shadow[record + _LANES, at] = time, who, lanes


@inlined
def _is_quiet(shadow, at, record, origin, start, seen, who):
    """Say whether a record is of nobody, settled by the last barrier, or of the lane that comes now."""
    time = shadow[record, at]
    own = (time >= start) & ((shadow[record + _WHO, at] ^ who) & (_MANY | _THREAD) == 0)
    return (time < origin) | ((start <= time) & (time < seen)) | own


@inlined
def _lanes_of(shadow, at, record):
    who = shadow[record + _WHO, at]
    return np.int64(shadow[record + _LANES, at]) if who & _MANY else 1 << (who & 31)


@jit
def _read(shadow, offsets, log, mask, n, log_step, state, origin, start, seen, now, who):
    """Record plain reads from the n-th grain of the lanes on; return the first where lanes need comparing."""
    warp = (who & _WARP) >> 5
    while n < 32 << log_step:
        lane = n >> log_step
        if mask >> lane & 1:
            at, me = (offsets[lane] >> log) + (n & ((1 << log_step) - 1)), who | lane
            if not _is_quiet(shadow, at, 0, origin, start, seen, me):
                return n
            time, other = shadow[3, at], shadow[4, at]
            if time >= origin:
                if other & _STRONG or (shadow[6, at] >= origin and shadow[7, at] & _STRONG):
                    return n
                if not _is_quiet(shadow, at, 3, origin, start, seen, me):
                    if time >= start and (other ^ me) & _WARP == 0:
                        if not state.partial[warp] <= time >= state.full[warp]:
                            return n
                        shadow[5, at] = _lanes_of(shadow, at, 3) | 1 << lane
                        me |= _MANY
                    else:
                        _put(shadow, at, 6, time, other, shadow[5, at])
            shadow[3, at], shadow[4, at] = now, me
        n += 1
    return n


@jit
def _write(shadow, offsets, log, mask, n, log_step, origin, start, seen, now, who):
    """Record plain writes from the n-th grain of the lanes on; return the first where lanes need comparing."""
    while n < 32 << log_step:
        lane = n >> log_step
        if mask >> lane & 1:
            at, me = (offsets[lane] >> log) + (n & ((1 << log_step) - 1)), who | lane
            for record in range(0, 9, 3):
                if not _is_quiet(shadow, at, record, origin, start, seen, me):
                    return n
            shadow[0, at], shadow[1, at] = now, me
        n += 1
    return n


@jit
def _is_settled(shadow, first, end, origin, start, seen):
    """Say whether nobody has come to a run of grains since the last barrier. A loop that becomes vector code."""
    old, start, age, strong = np.uint32(origin), np.uint32(start), np.uint32(seen - start), np.uint32(_STRONG)
    loud = np.uint32(0)
    for record in range(0, 9, 3):
        times, whos = shadow[record, first:end], shadow[record + _WHO, first:end]
        for i in range(end - first):
            young = (np.uint32(times[i] - start) >= age) | (whos[i] & strong != 0)
            loud |= np.uint32((times[i] >= old) & young)
    return loud == 0


@jit
def _stamp(shadow, first, end, lane, log_step, kind, time, who):
    """Record plain accesses to a settled run of grains."""
    now, who = np.uint32(time), np.uint32(who + lane)
    times, whos = (shadow[0, first:end], shadow[1, first:end]) if kind else (shadow[3, first:end], shadow[4, first:end])
    for i in range(end - first):
        times[i], whos[i] = now, who + np.uint32(i >> log_step)


@jit
def _clash(shadow, at, record, state, origin, lanes, who):
    """Return the first pair of lanes that race, as ``ordered`` does, between a record and what comes now."""
    time, other = shadow[record, at], shadow[record + _WHO, at]
    if time < origin or (who | other) >> _KIND_AT & WRITE == 0 or who & other & _STRONG:
        return ORDERED
    warp, then = (other & _WARP) >> 5, _lanes_of(shadow, at, record)
    if time >= state.start:
        return ordered(state, time, warp, then, (who & _WARP) >> 5, lanes)
    for lane in range(32):
        for before in range(32):
            both = lanes >> lane & 1 and then >> before & 1
            if both and not published(state, time, 32 * warp + before, (who & _WARP) >> 5, lane):
                return 32 * lane + before
    return ORDERED


@jit
def _remember(shadow, at, state, origin, lanes, who):
    """Keep a read or an atomic: in place of what it outdoes, with the lanes of its warp, or as the newest of two."""
    warp = (who & _WARP) >> 5
    for record in range(3, 9, 3):
        time = shadow[record, at]
        if time >= state.start and (shadow[record + _WHO, at] ^ who) & (_KIND | _WARP) == 0:
            then = _lanes_of(shadow, at, record)
            if time < state.full[warp] or then & ~lanes == 0:
                return _put(shadow, at, record, state.now, who | _MANY, lanes)
            if time >= state.partial[warp]:
                return _put(shadow, at, record, state.now, who | _MANY, lanes | then)
    for record in range(3, 9, 3):
        time, same = shadow[record, at], (shadow[record + _WHO, at] ^ who) & _KIND == 0
        if time < origin or (same and state.start <= time < state.seen):
            return _put(shadow, at, record, state.now, who | _MANY, lanes)
    _put(shadow, at, 6, shadow[3, at], shadow[4, at], shadow[5, at])
    _put(shadow, at, 3, state.now, who | _MANY, lanes)


@jit
def _visit(shadow, at, state, origin, lanes, kind, who):
    """Check and record an access of some lanes of a warp to one grain."""
    shares = kind == WRITE and shadow[0, at] == state.now and (shadow[1, at] ^ who) & ~(_MANY | 31) == 0
    for record in range(3 if shares else 0, 9, 3):
        pair = _clash(shadow, at, record, state, origin, lanes, who)
        if pair != ORDERED:
            fault = state.fault
            fault.offset, fault.pair = at << shadow[9, 0], pair
            fault.time, fault.who = shadow[record, at], shadow[record + _WHO, at]
            return STOP
    if who & _KIND != WRITE << _KIND_AT:
        _remember(shadow, at, state, origin, lanes, who)
        return FINE
    before = _lanes_of(shadow, at, 0) if shares else 0
    _put(shadow, at, 0, PENDING if kind == ASYNC else state.now, who | _MANY, lanes | before)
    return DUPLICATE if shares or lanes & (lanes - 1) else FINE


@jit
def _each(shadow, offsets, log, mask, log_step, state, origin, kind, who):
    """Check and record an access lane by lane."""
    said, n = FINE, 0
    while True:
        if kind == READ:
            n = _read(shadow, offsets, log, mask, n, log_step, state, origin, state.start, state.seen, state.now, who)
        elif kind == WRITE:
            n = _write(shadow, offsets, log, mask, n, log_step, origin, state.start, state.seen, state.now, who)
        if n >= 32 << log_step:
            return said
        lane = n >> log_step
        if mask >> lane & 1:
            at = (offsets[lane] >> log) + (n & ((1 << log_step) - 1))
            said = max(said, _visit(shadow, at, state, origin, 1 << lane, kind, who | lane))
            if said == STOP:
                return STOP
        n += 1


@jit
def access(watch, shadow, space, warp, offsets, size, mask, kind, place):
    """Check and record that the lanes of a mask access ``size`` bytes each, at these byte offsets of a space.

    STOP: a race, described in the watch. DUPLICATE: lanes of this store share bytes, so they must store the same.
    """
    state = watch[0]
    origin = state.origin if space == GLOBAL else state.start
    who = place << _PLACE_AT | (kind & 3) << _KIND_AT | warp << 5
    fault = state.fault
    fault.pair, fault.space, fault.kind, fault.place, fault.warp = FULL, space, kind, place, warp
    orders = kind & STRONG_READ and space == GLOBAL and state.fences
    if orders and strong_access(state, warp, offsets, mask, kind != STRONG_WRITE, kind & WRITE):
        return STOP
    log, log_step = shadow[9, 0], 0
    while size >> log >> log_step > 1:
        log_step += 1
    shape, lane = pattern(offsets, size, mask), first_lane(mask)
    if shape == CONTIGUOUS and kind <= WRITE:
        first, end = offsets[lane] >> log, (offsets[lane] >> log) + (lanes_in(mask) << log_step)
        if _is_settled(shadow, first, end, origin, state.start, state.seen):
            _stamp(shadow, first, end, lane, log_step, kind, state.now, who)
            return FINE
    state.now += kind == WRITE  # so that a record of this very store is known by its time
    if shape != UNIFORM:
        return _each(shadow, offsets, log, mask, log_step, state, origin, kind, who)
    said = FINE
    for at in range(offsets[lane] >> log, (offsets[lane] >> log) + (1 << log_step)):
        said = max(said, _visit(shadow, at, state, origin, np.int64(mask), kind, who | lane))
    return said


@jit
def land(watch, shadow, offset, size):
    """Record that a cp.async has written: its wait is over."""
    log = shadow[9, 0]
    for grain in range(offset >> log, min((offset + size) >> log, shadow.shape[1])):
        if shadow[0, grain] == PENDING:
            shadow[0, grain] = watch[0].now
