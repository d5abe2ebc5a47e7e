"""Threads that run one compiled function together: a pool, a barrier, and a counter that deals out work.

The threads are Python's own, inside functions that hold no lock of the interpreter; no threading layer of Numba
is used (its workqueue aborts when two threads enter it, OpenMP fights with BLAS over the cores). All run the same
function on the same arguments and part ways by their number; ``barrier`` joins them between phases, and
``next_task`` hands out the tasks of a phase to whoever is free. Which thread does a task never changes its result.
"""

import platform
import queue
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from .jit import jit

__all__ = ["Pool", "barrier", "next_task"]

_SPINS = 4000  # about 50 us of waiting before a thread offers its core to others

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


@jit
def barrier(arrivals, expected):
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


@jit
def next_task(counter, amount):
    """Return the first of the next ``amount`` tasks of the phase whose counter is at that address."""
    return _fetch_add(counter, amount)


def _serve(jobs: "queue.SimpleQueue[Any]") -> None:
    """Run jobs until there is a None among them."""
    while (job := jobs.get()) is not None:
        done, function, arguments = job
        function(*arguments)
        done.put(None)
        del job, done, function, arguments  # a waiting thread keeps no buffer alive


def _deal(queues: "list[queue.SimpleQueue[Any]]", jobs: list[Any]) -> None:
    """Give each thread its job, in one step that no Ctrl-C can cut: half a team would wait for the rest for ever."""
    deque(map(queue.SimpleQueue.put, queues, jobs), maxlen=0)


def _dismiss(queues: "list[queue.SimpleQueue[Any]]", threads: list[threading.Thread]) -> None:
    """Let every thread end, and wait for it."""
    _deal(queues, [None] * len(queues))
    for thread in threads:
        if thread is not threading.current_thread():
            thread.join()


def _nothing(worker: int, workers: int) -> None:
    """Do nothing."""


class Pool:
    """A team of ``size`` threads."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._queues: list[queue.SimpleQueue[Any]] = [queue.SimpleQueue() for _ in range(size)]
        threads = [threading.Thread(target=_serve, args=(jobs,), name="cpu", daemon=True) for jobs in self._queues]
        for thread in threads:
            thread.start()
        self.close = weakref.finalize(self, _dismiss, self._queues, threads)

    def run(self, function: Callable[..., None], *arguments: Any) -> None:
        """Call ``function(worker, size, *arguments)`` on every thread, and return when all have returned.

        The function is compiled and raises nothing, and the caller lets one region run at a time.
        A Ctrl-C is raised when the region has ended, since until then its buffers are in use.
        """
        try:
            self._run(function, arguments)
        except KeyboardInterrupt:
            self._settle()
            raise

    def _run(self, function: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        done: queue.SimpleQueue[None] = queue.SimpleQueue()
        _deal(self._queues, [(done, function, (worker, self.size, *arguments)) for worker in range(self.size)])
        for _ in self._queues:
            done.get()

    def _settle(self) -> None:
        """Wait until every thread is idle: a thread takes its jobs in order, so one more job tells."""
        while True:
            try:
                return self._run(_nothing, ())
            except KeyboardInterrupt:
                continue
