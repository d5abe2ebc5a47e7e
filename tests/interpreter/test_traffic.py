"""Wavefronts and sectors against sets: the words of each bank, and the bytes of each sector."""

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu.interpreter.counters import KINDS, Counters, kind
from gpu.interpreter.pattern import CONTIGUOUS, SCATTERED, UNIFORM, pattern
from gpu.interpreter.traffic import global_access, shared_access

FULL = 0xFFFFFFFF


@st.composite
def warps(draw):
    """Draw the bytes per lane, an offset for each lane, and which lanes there are."""
    size = draw(st.sampled_from([1, 2, 4, 8, 16]))
    stride = draw(st.sampled_from([0, 1, 1, 1, 2, 3, 4, 8, 17, 32, 33, -1]))
    units = [
        [40 + lane * stride for lane in range(32)],
        [40 + lane // 4 * stride for lane in range(32)],
        [40 + (lane ^ stride & 31) for lane in range(32)],
        draw(st.lists(st.integers(0, 99), min_size=32, max_size=32)),
    ]
    mask = draw(st.sampled_from([FULL, FULL, FULL, 1, 0xFFFF, 0xFF00, 0x55555555, draw(st.integers(1, FULL))]))
    return size, [size * max(unit, 0) for unit in draw(st.sampled_from(units))], mask


def lanes_of(mask):
    return [lane for lane in range(32) if mask >> lane & 1]


def wavefronts(size, offsets, mask, atomic):
    """Count phase by phase: the deepest bank, its words counted once, or once a lane for atomics."""
    lanes_per_phase = {8: 16, 16: 8}.get(size, 32)
    total = phases = 0
    for first in range(0, 32, lanes_per_phase):
        lanes = [lane for lane in lanes_of(mask) if first <= lane < first + lanes_per_phase]
        words = [offsets[lane] // 4 + i for lane in lanes for i in range(max(1, size // 4))]
        depth = Counter(word % 32 for word in (words if atomic else set(words)))
        total += max(depth.values(), default=0)
        phases += bool(lanes)
    return total, phases


@given(warps(), st.booleans(), st.booleans())
@settings(max_examples=300)
def test_wavefronts(warp, store, atomic):
    size, offsets, mask = warp
    atomic = atomic and size in (4, 8)
    tally = np.zeros(8, np.int64)
    shared_access(tally, np.array(offsets), size, np.uint32(mask), store, atomic)
    expected = wavefronts(size, offsets, mask, atomic)
    assert tally.tolist() == [0, 0, *expected, 0, 0, 0, 0] if store else [*expected, 0, 0, 0, 0, 0, 0]


@given(warps(), st.booleans())
@settings(max_examples=300)
def test_sectors(warp, store):
    size, offsets, mask = warp
    sectors = np.zeros((2, 8), np.int64)
    global_access(sectors, 1, np.array(offsets), size, np.uint32(mask), store)
    used = {offsets[lane] + i for lane in lanes_of(mask) for i in range(size)}
    expected = [len({byte // 32 for byte in used}), -(-len(used) // 32)]
    assert sectors.tolist() == [[0] * 8, [*([0, 0] if store else []), *expected, *[0] * (4 if store else 6)]]


@given(warps())
@settings(max_examples=300)
def test_pattern(warp):
    size, offsets, mask = warp
    lanes = lanes_of(mask)
    is_run = lanes == list(range(lanes[0], lanes[-1] + 1))
    steps = {offsets[b] - offsets[a] for a, b in pairwise(lanes)}
    expected = UNIFORM if steps <= {0} else CONTIGUOUS if is_run and steps == {size} else SCATTERED
    assert pattern(np.array(offsets), size, np.uint32(mask)) == expected


@pytest.mark.parametrize("rows, expected", [("plain", 32), ("swizzled", 4)])
def test_ldmatrix_of_a_tile_of_128_bytes_a_row(rows, expected):
    """Four 8 x 8 matrices: rows 128 bytes apart meet in the same banks unless 16-byte columns are swapped by row."""
    columns = [lane % 8 if rows == "swizzled" else 0 for lane in range(32)]
    offsets = np.array([128 * lane + 16 * columns[lane] for lane in range(32)])
    tally = np.zeros(8, np.int64)
    shared_access(tally, offsets, 16, np.uint32(FULL), False, False)
    assert tally[:2].tolist() == [expected, 4]


@pytest.mark.parametrize(
    "opcode, expected",
    [
        ("fma.rn.f32", "fma"), ("add.f32", "fma"), ("add.rn.bf16x2", "fma"), ("add.s32", "alu"), ("mad.lo.s32", "alu"),
        ("setp.lt.f32", "alu"), ("max.f32", "alu"), ("ex2.approx.ftz.f32", "sfu"), ("div.full.f32", "sfu"),
        ("div.u32", "alu"), ("ld.global.nc.v4.f32", "ld.global"), ("ld.volatile.global.u32", "ld.global"),
        ("st.shared.b16", "st.shared"), ("ld.shared::cta.u32", "ld.shared"), ("ld.param.u64", "other"),
        ("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32", "mma"), ("cp.async.cg.shared.global", "cp.async"),
        ("ldmatrix.sync.aligned.m8n8.x4.shared.b16", "ldmatrix"), ("shfl.sync.bfly.b32", "shuffle"),
        ("vote.sync.ballot.b32", "vote"), ("atom.global.add.u32", "atomic"), ("red.global.add.f32", "atomic"),
        ("bar.sync", "barrier"), ("membar.gl", "barrier"), ("bra.uni", "branch"), ("cvt.rn.bf16.f32", "convert"),
        ("cvta.to.global.u64", "other"), ("dp4a.s32.s32", "alu"),
    ],
)  # fmt: skip
def test_kind(opcode, expected):
    assert kind(opcode) == expected and expected in KINDS


def test_counters_of_a_launch_and_of_two():
    sectors = np.array([[4, 2, 0, 0, 0, 0, 0, 0], [0, 0, 8, 8, 0, 0, 0, 0]])
    one = Counters.collect(
        ["fma.rn.f32", "add.f32", "bar.sync", "exit"], np.array([3, 4, 0, 1]), np.array([6, 3, 2, 2, 0, 0, 0, 0]),
        sectors, ["x", "out"], barriers=1, divergence=2, warps=4,
    )  # fmt: skip
    assert one.instructions == {"fma": 7, "branch": 1}
    assert (one.shared_wavefronts, one.shared_ideal) == (8, 5)
    assert (one.loads, one.stores) == ({"x": (4, 2)}, {"out": (8, 8)})
    two = one + one
    assert two.instructions == {"fma": 14, "branch": 2} and two.shared["loads"] == (12, 6)
    assert two.loads == {"x": (8, 4)} and (two.barriers, two.divergence, two.warps) == (2, 4, 8)
