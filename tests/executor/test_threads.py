"""The team of threads: every task once, phases in order, interrupts answered, nothing left behind."""

import signal
import threading
import time

import numpy as np
import pytest
from numba import carray

from gpu.executor.cpu import CpuExecutor
from gpu.executor.jit import jit
from gpu.executor.program import words_at
from gpu.executor.team import TEAM, pointer, tasks
from gpu.executor.threads import Pool
from refimpl.contract import UsageError
from tests.executor.tiny_models import LLAMA, random_tensors


@jit
def count_tasks(worker, workers, teams, counts, amount, phases):
    """Raise the count of each task in every phase; a phase reads what all threads wrote in the one before."""
    team = carray(pointer(teams), workers, TEAM)[worker]
    seen = words_at(counts, 2 * amount)
    for phase in range(phases):
        for task in tasks(team, amount):
            source = seen[phase % 2 * amount + (task + 1) % amount]
            seen[(phase + 1) % 2 * amount + task] = source + 1


@jit
def work(worker, workers, teams, sums, phases):
    """Go through many phases of one task that takes about 200 us; count the tasks that are done."""
    team, total = carray(pointer(teams), workers, TEAM)[worker], words_at(sums, 2)
    for _ in range(phases):
        for _ in tasks(team, 1):
            for i in range(80_000):
                total[0] = (total[0] * 5 + i) % 1000003
            total[1] += 1


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("amount", [1, 7, 400])
def test_every_task_once_and_phases_in_order(size, amount):
    pool, counts = Pool(size, 9, 64), np.zeros(2 * amount, np.int64)
    for _ in range(5):
        counts[:] = 0
        pool.run(count_tasks, pool.teams.ctypes.data, counts.ctypes.data, amount, 9)
        assert (counts[amount:] == 9).all() and (counts[:amount] == 8).all()
    pool.close()


def test_threads_end_with_their_executor():
    before = threading.active_count()
    executor = CpuExecutor(LLAMA, random_tensors(LLAMA), threads=3)
    assert threading.active_count() == before + 3
    executor.close()
    assert threading.active_count() == before
    executor = CpuExecutor(LLAMA, random_tensors(LLAMA), threads=2)
    del executor
    assert threading.active_count() == before


def test_an_interrupt_cuts_a_region_short_and_leaves_the_team_ready():
    pool, counts, main = Pool(2, 100_000, 64), np.zeros(20, np.int64), threading.main_thread().ident
    pool.run(work, pool.teams.ctypes.data, counts.ctypes.data, 1)

    def interrupted_work(worker, *arguments):
        if worker == 0:
            signal.pthread_kill(main, signal.SIGINT)
        work(worker, *arguments)

    with pytest.raises(KeyboardInterrupt):
        pool.run(interrupted_work, pool.teams.ctypes.data, counts.ctypes.data, 100_000)
    assert counts[1] < 100_000
    counts[:] = 0
    pool.run(count_tasks, pool.teams.ctypes.data, counts.ctypes.data, 10, 2)
    assert (counts[:10] == 2).all()
    pool.close()


def test_more_interrupts_neither_hang_nor_spoil_the_team():
    pool, counts = Pool(2, 100_000, 64), np.zeros(20, np.int64)
    pool.run(work, pool.teams.ctypes.data, counts.ctypes.data, 1)
    for pause in (0.0, 0.0002, 0.002):

        def press(pause=pause):
            for _ in range(5):
                signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
                time.sleep(pause)

        timer = threading.Timer(0.05, press)
        timer.start()
        interrupts = 0
        while timer.is_alive():  # those that come after the first may end the wait for the timer instead
            try:
                pool.run(work, pool.teams.ctypes.data, counts.ctypes.data, 1000)
            except KeyboardInterrupt:
                interrupts += 1
        assert interrupts > 0
        counts[:] = 0
        pool.run(count_tasks, pool.teams.ctypes.data, counts.ctypes.data, 10, 2)
        assert (counts[:10] == 2).all()
    pool.close()


@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize("kind", [MemoryError, RuntimeError, KeyboardInterrupt])
def test_what_a_thread_raises_reaches_the_caller(size, kind):
    pool, counts = Pool(size, 9, 64), np.zeros(20, np.int64)
    pool.run(count_tasks, pool.teams.ctypes.data, counts.ctypes.data, 10, 9)

    def fail_in_the_last(worker, workers, *arguments):
        if worker == workers - 1:
            raise kind("of a thread")
        count_tasks(worker, workers, *arguments)

    for _ in range(20):
        with pytest.raises(kind, match="of a thread"):
            pool.run(fail_in_the_last, pool.teams.ctypes.data, counts.ctypes.data, 10, 9)
        counts[:] = 0
        pool.run(count_tasks, pool.teams.ctypes.data, counts.ctypes.data, 10, 2)
        assert (counts[:10] == 2).all()
    pool.close()


def test_a_closed_pool_refuses():
    pool, counts = Pool(2, 9, 64), np.zeros(20, np.int64)
    for _ in range(2):
        pool.close()
    with pytest.raises(UsageError, match="closed"):
        pool.run(count_tasks, pool.teams.ctypes.data, counts.ctypes.data, 10, 9)


def test_too_few_threads_leave_none_behind(monkeypatch):
    before, start, started = set(threading.enumerate()), threading.Thread.start, []

    def scarce(thread):
        if len(started) == 2:
            raise RuntimeError("can't start new thread")
        start(thread)
        started.append(thread)

    monkeypatch.setattr(threading.Thread, "start", scarce)
    with pytest.raises(UsageError, match="does not give 4 threads"):
        Pool(4, 9, 64)
    for thread in started:
        thread.join(10)
    assert len(started) == 2 and set(threading.enumerate()) <= before
