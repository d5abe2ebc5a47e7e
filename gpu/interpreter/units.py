"""The pieces that the machine is linked of: each is compiled by itself."""

import functools

from numba.core import types
from numba.core.types import boolean, int32, int64, uint8, uint32, uint64
from numba.np.numpy_support import from_dtype

from gpu.interpreter import (
    access,
    approximate,
    async_copy,
    atomic,
    clocks,
    collective,
    compare,
    convert,
    dots,
    floating,
    integer,
    logic,
    matrix,
    mma,
    moves,
    packed,
    races,
    releases,
    traffic,
)
from gpu.interpreter.jit import load, unit
from refimpl.contract import host

__all__ = [
    "begin_block", "commit", "count_global", "count_shared", "deliver", "fence", "gather", "in_flight", "issue",
    "load_lanes", "load_units", "locate", "run_approximate", "run_atomic", "run_collective", "run_compare",
    "run_convert", "run_dots", "run_floating", "run_integer", "run_logic", "run_mma", "run_moves", "run_packed",
    "scatter", "store_lanes", "sync_block", "sync_warp", "watch",
]  # fmt: skip

_INTS, _TABLE = int64[::1], int64[:, ::1]
_REGS, _ROW, _ROWS = uint64[:, ::1], uint64[::1], int32[::1]
_BYTES, _SHADOW, _QUADS = uint8[::1], uint32[:, ::1], uint32[:, ::1]
_WATCH = types.Array(from_dtype(clocks.WATCH), 1, "C")
_QUEUE = types.NamedTuple((types.Array(from_dtype(async_copy.COPY), 2, "C"), _TABLE, _TABLE), async_copy.Queue)
_FAMILY = (_REGS, _ROWS, uint32, int64)
_MOVE = (_REGS, int64, int64, _INTS, int64)
_LANES = (_WATCH, int64, uint32)

run_mma, run_integer, run_logic = (unit(family.execute, *_FAMILY) for family in (mma, integer, logic))
run_floating, run_approximate = unit(floating.execute, *_FAMILY), unit(approximate.execute, *_FAMILY)
run_compare, run_moves = unit(compare.execute, *_FAMILY), unit(moves.execute, *_FAMILY)
run_convert, run_packed, run_dots = (unit(family.execute, *_FAMILY) for family in (convert, packed, dots))
run_collective = unit(collective.execute, *_FAMILY)
run_atomic = unit(atomic.execute, _REGS, _ROWS, int64, int64, _INTS)
locate = unit(
    access.locate, _ROW, int64, int64, int64, int64, int64, boolean, _TABLE, int64, _INTS, _INTS
)
load_lanes, store_lanes = unit(access.load, *_MOVE, int64), unit(access.store, *_MOVE)
scatter, gather = (unit(move, _REGS, _ROWS, _QUADS, int64) for move in (matrix.scatter, matrix.gather))
watch = unit(races.access, _WATCH, _SHADOW, int64, int64, _INTS, int64, uint32, int64, int64)
fence, sync_warp = unit(releases.fence, *_LANES), unit(clocks.sync_warp, *_LANES)
begin_block, sync_block = unit(clocks.begin_block, _WATCH, int64), unit(clocks.sync_block, _WATCH, int64)
count_shared = unit(traffic.shared_access, _INTS, _INTS, int64, uint32, int64, boolean)
count_global = unit(traffic.global_access, _TABLE, int64, _INTS, int64, uint32, int64)
issue = unit(async_copy.issue, _QUEUE, _BYTES, int64, uint32, _INTS, _INTS, int64, _INTS)
commit = unit(async_copy.commit, _QUEUE, int64, uint32)
deliver = unit(async_copy.wait, _QUEUE, _WATCH, _SHADOW, _BYTES, int64, uint32, int64)
in_flight = unit(async_copy.in_flight, _QUEUE)

_ALL = (
    run_mma, run_integer, run_logic, run_floating, run_approximate, run_compare, run_moves, run_convert, run_packed,
    run_dots, run_collective, run_atomic, locate, load_lanes, store_lanes, scatter, gather, watch, fence, sync_warp,
    begin_block, sync_block, count_shared, count_global, issue, commit, deliver, in_flight,
)  # fmt: skip


@functools.cache
@host
def load_units() -> None:
    """Have every piece ready, before the machine is."""
    load(_ALL)
