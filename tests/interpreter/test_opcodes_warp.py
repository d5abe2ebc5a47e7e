"""What the lanes of a warp do together, in PTX programs against NumPy."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu.interpreter import KernelError, collective
from tests.interpreter.program import around
from tests.interpreter.warp import LANES, lanes_of, numbers

SHUFFLES, VOTES, MATCHES, REDUCTIONS = (
    [opcode for opcode in collective.catalogue() if opcode.startswith(name)]
    for name in ("shfl", "vote", "match", "redux")
)
OPCODES = (*SHUFFLES, *VOTES, *MATCHES, *REDUCTIONS, "elect.sync", "bar.warp.sync", "activemask.b32")


def source_of(way: str, lane: int, step: int, clamp: int) -> tuple[int, bool]:
    """Return the lane that a shuffle reads and whether it lies inside, by the pseudocode of the ISA."""
    limit, segment = clamp & 31, clamp >> 8 & 31
    highest = (lane & segment) | (limit & ~segment & 31)
    lowest = lane & segment
    place, inside = {
        "up": (lane - step, lane - step >= highest), "down": (lane + step, lane + step <= highest),
        "bfly": (lane ^ step, lane ^ step <= highest),
        "idx": (lowest | (step & ~segment & 31), (lowest | (step & ~segment & 31)) <= highest),
    }[way]  # fmt: skip
    return (place, inside) if inside else (lane, False)


@pytest.mark.parametrize("opcode", SHUFFLES)
@settings(max_examples=20)
@given(st.data())
def test_shuffles(opcode: str, data: st.DataObject):
    values, step = data.draw(lanes_of(32)), data.draw(st.integers(0, 31))
    width = data.draw(st.sampled_from([32, 16, 8, 4, 2, 1]))
    clamp = (LANES - width) << 8 | (0 if ".up." in opcode else 31)
    got, inside = around(f"{opcode} %s0|%q0, %r0, {step}, {clamp}, -1;", [values], ("%s0", "%q0"))
    for lane in range(LANES):
        source, found = source_of(opcode.split(".")[2], lane, step, clamp)
        assert (got[lane], inside[lane]) == (values[source], found), (lane, step, width)


def test_shuffle_from_its_own_lane():
    values, steps = np.arange(LANES, dtype=np.uint64) * 3, np.arange(LANES, dtype=np.uint64)[::-1].copy()
    (got,) = around("shfl.sync.idx.b32 %s0, %r0, %r1, 31, -1;", [values, steps], ("%s0",))
    assert np.array_equal(got, values[::-1])


@pytest.mark.parametrize("opcode", VOTES)
@settings(max_examples=10)
@given(st.data())
def test_votes(opcode: str, data: st.DataObject):
    holds = data.draw(lanes_of(1)) & np.uint64(data.draw(st.integers(0, 1))) | np.uint64(data.draw(st.integers(0, 1)))
    ballot = sum(int(bit) << lane for lane, bit in enumerate(holds))
    want = {"all": holds.all(), "any": holds.any(), "uni": len(set(holds.tolist())) == 1, "ballot": ballot}
    into = "%s0" if ".ballot" in opcode else "%q0"
    (got,) = around(f"{opcode} {into}, %p0, -1;", [holds], (into,))
    assert (got == np.uint64(want[opcode.split(".")[2]])).all()
    (negated,) = around(f"{opcode} {into}, !%p0, -1;", [holds ^ np.uint64(1)], (into,))
    assert np.array_equal(got, negated)


@pytest.mark.parametrize("opcode", MATCHES)
@settings(max_examples=10)
@given(st.data())
def test_matches(opcode: str, data: st.DataObject):
    bits = opcode[-2:]
    values = data.draw(lanes_of(int(bits)))
    values[:: 1 if data.draw(st.booleans()) else 5] = values[0]
    register = "%r0" if bits == "32" else "%d0"
    into = "%s0|%q0" if ".all." in opcode else "%s0"
    got, *agree = around(f"{opcode} {into}, {register}, -1;", [values], tuple(into.split("|")))
    same = values[:, None] == values[None]
    groups = (same << np.arange(LANES)).sum(1)
    want = np.where(same.all(), groups, 0) if agree else groups
    assert np.array_equal(got, want.astype(np.uint64))
    assert not agree or (agree[0] == same.all()).all()


@pytest.mark.parametrize("opcode", REDUCTIONS)
@settings(max_examples=10)
@given(lanes_of(32))
def test_reductions(opcode: str, values: np.ndarray):
    _, _, name, kind = opcode.split(".")
    listed = np.array(numbers(values, 32, kind == "s32"))
    how = {"add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and, "or": np.bitwise_or,
           "xor": np.bitwise_xor}[name]  # fmt: skip
    (got,) = around(f"{opcode} %s0, %r0, -1;", [values], ("%s0",))
    assert (got == np.uint64(int(how.reduce(listed)) & 0xFFFFFFFF)).all()


def test_half_a_warp():
    """The upper half leaves; what the lower half does together names it alone."""
    values = np.arange(LANES, dtype=np.uint64)
    text = """mov.u32 %s0, 7777;
    setp.gt.u32 %q0, %lane, 15;
    @%q0 bra AWAY;
    activemask.b32 %s1;
    redux.sync.add.u32 %s0, %r0, 65535;
    elect.sync %s2|%q1, 65535;
    bar.warp.sync 65535;
    AWAY:"""
    total, active, leader, elected = around(text, [values], ("%s0", "%s1", "%s2", "%q1"))
    assert (total[:16] == 120).all() and (total[16:] == 7777).all()
    assert (active[:16] == 0xFFFF).all() and (leader[:16] == 0).all() and elected[:16].tolist() == [1] + [0] * 15


def test_a_lane_that_is_not_named_is_not_asked():
    text = "setp.lt.u32 %q0, %lane, 16; @%q0 shfl.sync.idx.b32 %s0, %r0, 20, 31, 65535;"
    with pytest.raises(KernelError):
        around(text, [np.zeros(LANES)], ("%s0",))
