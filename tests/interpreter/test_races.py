"""The race detector against clocks per thread that keep every access."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu.interpreter import clocks, races
from gpu.interpreter.releases import fence
from tests.interpreter.vector_clocks import VectorClocks

THREADS, BLOCKS, WORDS = 72, 3, 6
KINDS = (races.READ, races.WRITE, races.STRONG_READ, races.STRONG_WRITE, races.ATOMIC)
SPACES = ("block", "global")


class Detector:
    """The detector behind the calls of ``VectorClocks``."""

    def __init__(self, grain: int) -> None:
        self.watch = clocks.make_watch(THREADS, True)
        self.shadows = [races.make_shadow(4096, grain), races.make_shadow(4096, grain)]
        self.block = -1

    def begin_block(self) -> None:
        self.block += 1
        clocks.begin_block(self.watch, self.block)

    def sync_block(self, warps) -> None:
        clocks.sync_block(self.watch, np.uint32(warps))

    def sync_warp(self, warp, lanes) -> None:
        clocks.sync_warp(self.watch, warp, np.uint32(lanes))

    def fence(self, warp, lanes) -> None:
        fence(self.watch, warp, np.uint32(lanes))

    def access(self, space, warp, offsets, size, lanes, kind) -> int:
        where = np.array(offsets, np.int64)
        shadow = self.shadows[SPACES.index(space)]
        return races.access(self.watch, shadow, SPACES.index(space), warp, where, size, np.uint32(lanes), kind, 7)


def lanes_of(warp, mask):
    return [32 * warp + lane for lane in range(32) if mask >> lane & 1 and 32 * warp + lane < THREADS]


def existing(warp):
    return (1 << min(32, THREADS - 32 * warp)) - 1


warps = st.integers(0, 2)
masks = st.one_of(
    st.just(0xFFFFFFFF), st.integers(0, 7).map(lambda lane: 1 << lane), st.sampled_from([0xFF, 0xF0F, 0x6]),
    st.integers(1, 0xFFFFFFFF),
)  # fmt: skip


@st.composite
def accesses(draw, sizes):
    warp, size = draw(warps), draw(st.sampled_from(sizes))
    units = 4 * WORDS // size
    offsets = draw(
        st.one_of(
            st.integers(0, units - 1).map(lambda unit: [unit] * 32),
            st.integers(0, 2).map(lambda first: [first + lane for lane in range(32)]),
            st.integers(0, 2).map(lambda first: [first + lane // 2 for lane in range(32)]),
            st.lists(st.integers(0, units - 1), min_size=32, max_size=32),
        )
    )
    kind = draw(st.sampled_from(KINDS if size == 4 else KINDS[:2]))
    mask = draw(masks) & existing(warp) or 1
    return "access", draw(st.sampled_from(SPACES)), warp, [size * unit for unit in offsets], size, mask, kind


block_syncs = st.just(("sync_block", 7))
warp_syncs = warps.map(lambda warp: ("sync_warp", warp, 0xFFFFFFFF))
some_syncs = st.one_of(
    st.tuples(st.just("sync_warp"), warps, masks), st.integers(1, 6).map(lambda mask: ("sync_block", mask))
)
fences = st.tuples(st.just("fence"), warps, masks)
new_blocks = st.just(("begin_block",))


def run(trace, grain, lenient):
    """Run a trace on both; return the event at which each first sees a race, and whether stores were said to share."""
    model, detector = VectorClocks(THREADS, BLOCKS, lenient), Detector(grain)
    model.begin_block()
    detector.begin_block()
    for i, (name, *rest) in enumerate(trace):
        if name == "begin_block":
            if detector.block + 1 == BLOCKS:
                continue
            model.begin_block()
            detector.begin_block()
        elif name == "access":
            space, warp, offsets, size, mask, kind = rest
            active = lanes_of(warp, mask)
            raced = model.access(space, {t: offsets[t % 32] for t in active}, size, kind)
            said = detector.access(space, warp, offsets, size, mask, kind)
            if raced or said == races.STOP:
                return raced, said == races.STOP
            shares = kind == races.WRITE and len({offsets[t % 32] for t in active}) < len(active)
            assert (said == races.DUPLICATE) == shares, (i, name, rest)
        else:
            getattr(detector, name)(*rest)
            if name == "sync_block":
                model.sync([t for t in range(THREADS) if rest[0] >> t // 32 & 1])
            else:
                getattr(model, name.split("_")[0])(lanes_of(*rest))
    return False, False


@pytest.mark.parametrize("grain", [1, 2, 4])
@given(data=st.data())
@settings(max_examples=100)
def test_full_synchronisation_is_exact(grain, data):
    events = st.one_of(accesses([size for size in (1, 2, 4, 8) if size >= grain]), block_syncs, warp_syncs)
    raced, stopped = run(data.draw(st.lists(events, min_size=4, max_size=16)), grain, lenient=False)
    assert raced == stopped


@given(st.lists(st.one_of(accesses([4]), some_syncs, warp_syncs, block_syncs), min_size=4, max_size=18))
@settings(max_examples=200)
def test_no_false_alarm_with_partial_synchronisation(trace):
    raced, stopped = run(trace, 4, lenient=False)
    assert raced or not stopped


THREAD_0 = 1
DATA, COUNTERS = range(0, 32, 4), (64, 64, 64, 64, 68)


@st.composite
def hand_overs(draw):
    """Blocks that write, release, acquire and read, with any of the steps left out, done by others, or doubled."""
    trace = []
    for block in range(BLOCKS):
        lanes = st.sampled_from([THREAD_0] * 8 + [0xFFFFFFFF, 2])
        word, counter = [draw(st.sampled_from(DATA))] * 32, [draw(st.sampled_from(COUNTERS))] * 32
        atomic = draw(st.sampled_from([races.ATOMIC] * 6 + [races.STRONG_WRITE, races.STRONG_READ]))
        everyone = [("fence", warp, 0xFFFFFFFF) for warp in range(3)]
        steps = [
            [("access", "global", draw(st.integers(0, 1)), word, 4, draw(st.sampled_from([1, 2])), races.WRITE)],
            [("sync_block", 7)],
            draw(st.sampled_from([[("fence", 0, draw(lanes))], everyone])),
            draw(st.sampled_from([[], [], [("sync_block", 7)]])),
            [("access", "global", 0, counter, 4, draw(lanes), atomic)],
            draw(st.sampled_from([[], [], [("sync_block", 7)]])),
            draw(st.sampled_from([[("fence", 0, draw(lanes))], everyone])),
            [("sync_block", 7)],
            [("access", "global", draw(st.integers(0, 1)), [draw(st.sampled_from(DATA))] * 32, 4, 2, races.READ)],
        ]
        kept = [draw(st.integers(0, 30)) > 0 for _ in steps]
        trace += [("begin_block",)] * (block > 0)
        trace += [event for step, keep in zip(steps, kept, strict=True) if keep for event in step]
    return trace


@given(hand_overs())
@settings(max_examples=200)
def test_order_between_blocks(trace):
    formal, stopped = run(trace, 4, lenient=False)
    assert formal or not stopped, "a false alarm"
    lenient, stopped = run(trace, 4, lenient=True)
    assert stopped or not lenient, "a race unseen"
