"""A team of threads inside compiled code: a barrier, and counters that deal out the tasks of a phase.

All threads run the same function on the same arguments; its work is a row of phases. ``tasks`` deals out the tasks of
a phase to whoever is free and joins the threads at its end. Which thread does a task never changes its result.
"""

import platform

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from gpu.executor.jit import inlined

__all__ = ["CANCEL", "LINE", "OPEN", "TEAM", "pointer", "tasks"]

TEAM = np.dtype([(name, np.int64) for name in ("worker", "workers", "counters", "phase", "scratch")])
"""A thread's record: its number and the team's size; the addresses of the team's counters, of the thread's own count
of phases and of its scratch memory. Numba may copy a record, so what changes lies behind an address."""

CANCEL, LINE = 1, 8
"""The team's counters are int64, 0 when a region begins, LINE of them to a cache line. First come the arrivals at
barriers and, if not 0, the wish that no more tasks be begun; then a line for each thread's phase; then one counter
for each phase."""

OPEN = 1 << 62
"""So many arrivals let every thread through every barrier, when one of them will not come."""

_SPINS = 300  # about 4 us of waiting before a thread offers its core to others
_VOID, _I32, _I64 = ir.VoidType(), ir.IntType(32), ir.IntType(64)
_PAUSE = {"x86_64": ("llvm.x86.sse2.pause", ()), "AMD64": ("llvm.x86.sse2.pause", ()),
          "aarch64": ("llvm.aarch64.hint", (1,)), "arm64": ("llvm.aarch64.hint", (1,))}


@intrinsic
def _fetch_add(context, address, amount):
    """Add to the int64 at ``address`` as one step that no thread can split, and return what it held."""

    def generate(context, builder, signature, values):
        pointer = builder.inttoptr(values[0], _I64.as_pointer())
        return builder.atomic_rmw("add", pointer, values[1], "acq_rel")

    return types.int64(types.int64, types.int64), generate


@intrinsic
def _peek(context, address):
    """Read the int64 at ``address``, and see all that was written before it was."""

    def generate(context, builder, signature, values):
        pointer = builder.inttoptr(values[0], _I64.as_pointer())
        return builder.load_atomic(pointer, "acquire", 8)

    return types.int64(types.int64), generate


@intrinsic
def pointer(context, address):
    """Return an address as the pointer that ``numba.carray`` takes."""

    def generate(context, builder, signature, values):
        return builder.inttoptr(values[0], cgutils.voidptr_t)

    return types.voidptr(types.int64), generate


@intrinsic
def _pause(context):
    """Tell the core that this is a waiting loop."""

    def generate(context, builder, signature, values):
        name, arguments = _PAUSE.get(platform.machine(), ("", ()))
        if name:
            kind = ir.FunctionType(_VOID, [_I32] * len(arguments))
            builder.call(cgutils.get_or_insert_function(builder.module, kind, name), [_I32(a) for a in arguments])
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def _yield_core(context):
    """Let another thread run on this core."""

    def generate(context, builder, signature, values):
        kind = ir.FunctionType(_I32, [])
        builder.call(cgutils.get_or_insert_function(builder.module, kind, "sched_yield"), [])
        return context.get_dummy_value()

    return types.void(), generate


@inlined
def _barrier(arrivals, expected):
    """Wait until the counter at the address ``arrivals`` has been raised ``expected`` times.

    The counter only grows: the n-th barrier of a region of W threads expects n W, so none has to be reset between.
    """
    _fetch_add(arrivals, 1)
    spins = 0
    while _peek(arrivals) < expected:
        spins += 1
        if spins < _SPINS:
            _pause()
        else:
            _yield_core()


@inlined
def _share(claim, count, workers):
    """Return the first task and the number of tasks of a claim.

    A round of claims, one for each thread, takes three quarters of what is left: long runs of neighbours come first,
    which memory likes, and single tasks last, which let all threads end together.
    """
    first, share = 0, max(1, 3 * count // (4 * workers))
    while claim >= workers and first < count:
        first, claim = first + workers * share, claim - workers
        share = max(1, 3 * (count - first) // (4 * workers))
    return first + claim * share, share


@inlined
def tasks(team, count):
    """Yield this thread's share of the tasks 0..count-1 of a phase, and end it: return when all threads are through.

    ``team`` is the thread's record of TEAM. Every thread of the team goes through the same phases.
    """
    phase = _peek(team.phase)
    counter = team.counters + 8 * (LINE + LINE * team.workers + phase)
    if _peek(team.counters + 8 * CANCEL):
        count = 0
    task, share = _share(_fetch_add(counter, 1), count, team.workers)
    while task < count:
        end = min(task + share, count)
        while task < end:
            yield task
            task += 1
        task, share = _share(_fetch_add(counter, 1), count, team.workers)
    _fetch_add(team.phase, 1)
    _barrier(team.counters, (phase + 1) * team.workers)
