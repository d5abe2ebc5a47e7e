"""Threads that run one compiled function together.

They are Python's own, inside functions that hold no lock of the interpreter. No threading layer of Numba is used: its
workqueue aborts when two threads enter it, and OpenMP fights with BLAS over the cores.
"""

import contextlib
import queue
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from gpu.executor.memory import aligned
from gpu.executor.team import CANCEL, LINE, OPEN, TEAM
from refimpl.contract import Array, UsageError

__all__ = ["Pool"]


def _serve(jobs: "queue.SimpleQueue[Any]", counters: Array) -> None:
    """Run jobs until there is a None among them; a job that fails lets the others through their phases."""
    while (job := jobs.get()) is not None:
        done, function, arguments = job
        try:
            function(*arguments)
            done.put(None)
        except BaseException as error:  # whatever it is, the caller gets it
            counters[CANCEL], counters[0] = 1, OPEN
            done.put(error)
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


def _take(done: "queue.SimpleQueue[Any]") -> Any:
    """Wait for what a thread puts, and look up now and then: a signal that comes just before the wait wakes nobody."""
    while True:
        with contextlib.suppress(queue.Empty):
            return done.get(timeout=0.05)


def _nothing(worker: int, workers: int) -> None:
    """Do nothing."""


class Pool:
    """A team of ``size`` threads for regions of at most ``phases`` phases, each with ``scratch`` bytes of its own.

    ``teams`` holds the threads' records of TEAM; ``close`` ends the threads, and so does the end of the pool's life.
    """

    def __init__(self, size: int, phases: int, scratch: int) -> None:
        self.size = size
        self._counters = aligned(8 * (LINE + LINE * size + phases)).view(np.int64)
        self._scratch = [aligned(scratch) for _ in range(size)]
        self.teams = np.zeros(size, TEAM)
        self.teams["worker"], self.teams["workers"] = range(size), size
        self.teams["counters"] = self._counters.ctypes.data
        self.teams["phase"] = self._counters.ctypes.data + 8 * LINE * (1 + np.arange(size))
        self.teams["scratch"] = [memory.ctypes.data for memory in self._scratch]
        self._queues: list[queue.SimpleQueue[Any]] = [queue.SimpleQueue() for _ in range(size)]
        self._idle = True
        threads = [
            threading.Thread(target=_serve, args=(jobs, self._counters), name="cpu", daemon=True)
            for jobs in self._queues
        ]
        try:
            for thread in threads:
                thread.start()
        except RuntimeError:
            _deal(self._queues, [None] * size)
            raise UsageError(f"the system does not give {size} threads; ask for fewer (--threads)") from None
        self.close = weakref.finalize(self, _dismiss, self._queues, threads)

    def run(self, function: Callable[..., None], *arguments: Any) -> None:
        """Call ``function(worker, size, *arguments)`` on every thread, and return when all have returned.

        The caller lets one region run at a time. What a thread raises is raised here, once all have returned.
        On a Ctrl-C the threads hurry through the phases without their tasks, then the interrupt is raised.
        """
        if not self.close.alive:
            raise UsageError("the executor is closed")
        self._settle()
        self._counters[:] = 0
        self._idle = False
        try:
            errors = self._call(function, arguments)
        except KeyboardInterrupt:
            self._settle()
            raise
        self._idle = True
        if errors:
            raise errors[0]

    def _call(self, function: Callable[..., None], arguments: tuple[Any, ...]) -> list[BaseException]:
        done: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        _deal(self._queues, [(done, function, (worker, self.size, *arguments)) for worker in range(self.size)])
        return [error for _ in self._queues if (error := _take(done)) is not None]

    def _settle(self) -> None:
        """Wait until every thread is idle: a thread takes its jobs in order, so one more job tells.

        That takes no longer than the tasks in hand. More interrupts cannot shorten it, since the threads write to
        memory of the caller's; one that gets past this leaves the wait to the next region.
        """
        while not self._idle:
            try:
                self._counters[CANCEL] = 1
                self._call(_nothing, ())
                self._idle = True
            except KeyboardInterrupt:
                continue
