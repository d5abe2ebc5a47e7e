"""cp.async: poison until the wait of its thread, and a race for whoever does not wait."""

import numpy as np
import pytest

from gpu.interpreter import async_copy, clocks, races
from gpu.interpreter.race_report import describe, thread_of

FULL = np.uint32(0xFFFFFFFF)
LANES = np.arange(32)


class Block:
    """A block of two warps that copies 1024 bytes of ``source`` to shared memory, 16 bytes a lane."""

    def __init__(self):
        self.source = np.random.default_rng(1).integers(0, 255, 1024).astype(np.uint8)
        self.shared = np.full(1024, 0xFF, np.uint8)
        self.queue = async_copy.make_queue(2)
        self.watch = clocks.make_watch(64, False)
        self.shadow = races.make_shadow(1024, 4)
        clocks.begin_block(self.watch, 0)

    def access(self, warp, offsets, kind, size=16, mask=FULL, place=3):
        return races.access(self.watch, self.shadow, races.SHARED, warp, offsets, size, mask, kind, place)

    def copy(self, warp, kept=16, size=16, mask=FULL):
        offsets = 512 * warp + size * LANES
        said = self.access(warp, offsets, races.ASYNC, size, mask)
        sources = self.source.ctypes.data + offsets
        many = np.full(32, kept)
        full = async_copy.issue(self.queue, self.shared, warp, mask, offsets, sources, size, many)
        return said == races.FINE and not full

    def commit(self, warp, mask=FULL):
        async_copy.commit(self.queue, warp, mask)

    def wait(self, warp, groups_left, mask=FULL):
        async_copy.wait(self.queue, self.watch, self.shadow, self.shared, warp, mask, groups_left)

    def sentence(self):
        return describe(self.watch, lambda place: f"line {place}", lambda space, at: f"tile + {at}", str)


@pytest.mark.parametrize("size", [4, 8, 16])
@pytest.mark.parametrize("kept", [0, 1, 4])
def test_bytes_arrive_at_the_wait_with_zeros_behind(size, kept):
    block = Block()
    assert block.copy(0, kept=kept, size=size)
    assert (block.shared == 0xFF).all()
    block.commit(0)
    block.wait(0, 0)
    expected = np.where(LANES[:size] < kept, block.source[: 32 * size].reshape(32, size), 0)
    assert (block.shared[: 32 * size] == expected.ravel()).all() and (block.shared[32 * size :] == 0xFF).all()
    assert async_copy.in_flight(block.queue) == 0


def test_a_wait_delivers_all_but_the_last_groups():
    block = Block()
    halves = [np.uint32(0xFFFF), np.uint32(0xFFFF0000)]
    for half in halves:  # lanes of the second half have an empty first group
        assert block.copy(0, mask=half)
        block.commit(0)
    block.wait(0, 1)
    assert (block.shared[:256] == block.source[:256]).all() and (block.shared[256:] == 0xFF).all()
    assert async_copy.in_flight(block.queue) == 17
    block.wait(0, 0)
    assert (block.shared[:512] == block.source[:512]).all() and async_copy.in_flight(block.queue) == 0


def test_what_is_not_committed_waits_for_wait_all():
    block = Block()
    assert block.copy(1)
    block.wait(1, 0)
    assert (block.shared == 0xFF).all() and async_copy.in_flight(block.queue) == 33
    block.wait(1, -1)
    assert (block.shared[512:] == block.source[512:]).all() and async_copy.in_flight(block.queue) == 0


def test_a_new_block_has_no_copies():
    block = Block()
    assert block.copy(0)
    async_copy.reset(block.queue)
    assert async_copy.in_flight(block.queue) == 0


def test_too_many_copies_are_refused():
    block = Block()
    offsets, sources = 4 * LANES, block.source.ctypes.data + 4 * LANES
    args = (block.queue, block.shared, 0, np.uint32(1), offsets, sources, 4, np.full(32, 4))
    assert [async_copy.issue(*args) for _ in range(async_copy.MOST_COPIES + 1)].count(True) == 1


@pytest.mark.parametrize("waits", [0, 1, 2], ids=["no wait", "wait alone", "wait and barrier"])
def test_others_read_after_wait_and_barrier(waits):
    block = Block()
    assert block.copy(0)
    block.commit(0)
    if waits:
        block.wait(0, 0)
    if waits == 2:
        clocks.sync_block(block.watch, np.uint32(3))
    said = block.access(1, 16 * LANES, races.READ, place=9)
    assert said == (races.FINE if waits == 2 else races.STOP)
    if waits == 0:
        assert block.sentence() == "reads tile + 0, where the cp.async of thread 0 (line 3) is still under way"
        assert thread_of(block.watch) == 32
    if waits == 1:
        assert block.sentence() == "reads tile + 0, which thread 0 wrote (line 3): no barrier between them"


def test_own_thread_reads_after_its_wait():
    block = Block()
    assert block.copy(0)
    block.commit(0)
    assert block.access(0, 16 * LANES, races.READ) == races.STOP
    assert block.sentence() == "reads tile + 0 before the wait for its own cp.async there (line 3)"
    block.wait(0, 0)
    assert block.access(0, 16 * LANES, races.READ) == races.FINE


def test_the_barrier_before_a_buffer_is_filled_again():
    block = Block()
    assert block.access(1, 16 * LANES, races.READ, place=8) == races.FINE
    assert not block.copy(0)
    assert block.sentence() == "copies to tile + 0, which thread 32 read (line 8): no barrier between them"
    clocks.sync_block(block.watch, np.uint32(3))
    assert block.copy(0)
