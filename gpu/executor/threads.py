"""Threads that run one compiled function together.

They are Python's own, inside functions that hold no lock of the interpreter. No threading layer of Numba is used: its
workqueue aborts when two threads enter it, and OpenMP fights with BLAS over the cores.
"""

import queue
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from gpu.executor.memory import aligned
from gpu.executor.team import CANCEL, LINE, TEAM

__all__ = ["Pool"]


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
        threads = [threading.Thread(target=_serve, args=(jobs,), name="cpu", daemon=True) for jobs in self._queues]
        for thread in threads:
            thread.start()
        self.close = weakref.finalize(self, _dismiss, self._queues, threads)

    def run(self, function: Callable[..., None], *arguments: Any) -> None:
        """Call ``function(worker, size, *arguments)`` on every thread, and return when all have returned.

        The function is compiled and raises nothing, and the caller lets one region run at a time.
        On a Ctrl-C the threads hurry through the phases without their tasks, then the interrupt is raised.
        """
        self._counters[:] = 0
        try:
            self._call(function, arguments)
        except KeyboardInterrupt:
            self._counters[CANCEL] = 1
            self._settle()
            raise

    def _call(self, function: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        done: queue.SimpleQueue[None] = queue.SimpleQueue()
        _deal(self._queues, [(done, function, (worker, self.size, *arguments)) for worker in range(self.size)])
        for _ in self._queues:
            done.get()

    def _settle(self) -> None:
        """Wait until every thread is idle: a thread takes its jobs in order, so one more job tells."""
        while True:
            try:
                return self._call(_nothing, ())
            except KeyboardInterrupt:
                continue
