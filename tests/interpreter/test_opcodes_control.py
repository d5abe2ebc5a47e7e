"""Branches, barriers, fences, copies and matrices of shared memory, in PTX programs."""

import numpy as np
import pytest

from gpu.interpreter import KernelError, control, copies, matrix
from tests.interpreter.program import around, launch
from tests.interpreter.warp import LANES

KNOWN = list(control.catalogue())
IDLE = [opcode for opcode in KNOWN if opcode.startswith(("fence", "membar", "prefetch", "nanosleep"))]
WAITS, ARRIVALS, COUNTS = (
    [opcode for opcode in KNOWN if opcode.startswith("bar") and word in opcode] for word in (".sync", ".arrive", ".red")
)
COPIES = [opcode for opcode in copies.catalogue() if ".global" in opcode]
OPCODES = (*KNOWN, *copies.catalogue(), *matrix.catalogue())
HEAD = """.version 8.8
.target sm_100
.address_size 64
.visible .entry tested(.param .u64 into, .param .u64 from)
{
.shared .align 16 .b8 room[4096];
.reg .pred %p<9>; .reg .b32 %r<9>; .reg .b64 %d<9>; .reg .b64 %into, %from, %room; .reg .u32 %me;
mov.u32 %me, %tid.x;
ld.param.u64 %into, [into];
ld.param.u64 %from, [from];
mul.wide.u32 %d0, %me, 4;
add.s64 %into, %into, %d0;
mov.u64 %room, room;
"""
STORE = "\nst.global.u32 [%into], %r0;\nret;\n}"


def of_threads(text: str, threads: int, given: np.ndarray | None = None) -> np.ndarray:
    """Return what %r0 holds in each thread of a block."""
    out = np.zeros(threads, np.uint32)
    launch(HEAD + text + STORE, out, np.zeros(4, np.uint32) if given is None else given, threads=threads)
    return out


def test_a_loop_that_lanes_leave_at_different_times():
    text = """mov.u32 %r0, 0;
    mov.u32 %r1, %me;
    AGAIN: setp.eq.u32 %p0, %r1, 0;
    @%p0 bra DONE;
    add.u32 %r0, %r0, %r1;
    sub.u32 %r1, %r1, 1;
    bra.uni AGAIN;
    DONE: add.u32 %r0, %r0, 1;"""
    n = np.arange(70)
    assert np.array_equal(of_threads(text, 70), n * (n + 1) // 2 + 1)


def test_a_jump_by_table():
    text = """and.b32 %r1, %me, 3;
    ways: .branchtargets ZERO, ONE, TWO, ZERO;
    brx.idx %r1, ways;
    ZERO: mov.u32 %r0, 10; bra END;
    ONE: mov.u32 %r0, 11; bra END;
    TWO: mov.u32 %r0, 12;
    END: add.u32 %r0, %r0, %me;"""
    lanes = np.arange(LANES)
    assert np.array_equal(of_threads(text, LANES), np.array([10, 11, 12, 10])[lanes % 4] + lanes)


@pytest.mark.parametrize("end", ["ret", "exit"])
def test_threads_that_end_early(end: str):
    text = f"setp.gt.u32 %p0, %me, 40; @%p0 {end}; mov.u32 %r0, 5; bar.sync 0;"
    assert of_threads(text, 64).tolist() == [5] * 41 + [0] * 23


def test_trap():
    with pytest.raises(KernelError, match="trap"):
        of_threads("mov.u32 %r0, 1; setp.eq.u32 %p0, %me, 33; @%p0 trap;", 64)


@pytest.mark.parametrize("opcode", IDLE)
def test_what_changes_nothing(opcode: str):
    where = {"prefetch": "[%d1]", "nanosleep": "20"}.get(opcode.split(".")[0], "")
    address = "mov.u64 %d1, %into;" if ".local" not in opcode else "mov.u64 %d1, 0;"
    assert np.array_equal(of_threads(f"{address} mov.u32 %r0, %me; {opcode} {where};", LANES), np.arange(LANES))


REVERSAL = """mul.wide.u32 %d1, %me, 4; add.s64 %d1, %room, %d1; st.shared.u32 [%d1], %me;
{};
sub.u32 %r1, {}, %me; mul.wide.u32 %d1, %r1, 4; add.s64 %d1, %room, %d1; ld.shared.u32 %r0, [%d1];"""


@pytest.mark.parametrize("operands", ["0", "3, 96"])
@pytest.mark.parametrize("opcode", WAITS)
def test_barriers(opcode: str, operands: str):
    assert np.array_equal(of_threads(REVERSAL.format(f"{opcode} {operands}", 95), 96), np.arange(96)[::-1])


def test_a_barrier_of_some_threads():
    """The first warp waits for the second at barrier 1; the third has nothing to do with it."""
    text = """mov.u32 %r0, 0;
    setp.lt.u32 %p0, %me, 32; @%p0 bra READS;
    setp.gt.u32 %p0, %me, 63; @%p0 bra DONE;
    mul.wide.u32 %d1, %me, 4; add.s64 %d1, %room, %d1; st.shared.u32 [%d1], %me;
    {} 1, 64;
    bra DONE;
    READS: bar.sync 1, 64;
    mul.wide.u32 %d1, %me, 4; add.s64 %d1, %room, %d1; ld.shared.u32 %r0, [%d1+128];
    DONE:"""
    for opcode in ARRIVALS:
        got = of_threads(text.format(opcode), 96)
        assert got.tolist() == [*range(32, 64), *[0] * 64], opcode


@pytest.mark.parametrize("opcode", COUNTS)
@pytest.mark.parametrize("limit", [0, 37, 96])
def test_barriers_that_count(opcode: str, limit: int):
    kind = opcode.split(".")[-1]
    into, after = ("%r0", "") if kind == "u32" else ("%p1", "selp.u32 %r0, 1, 0, %p1;")
    found = of_threads(f"setp.lt.u32 %p0, %me, {limit}; {opcode} {into}, 0, %p0; {after}", 96)
    how = next(word for word in opcode.split(".") if word in ("popc", "and", "or"))
    assert (found == {"popc": limit, "and": limit == 96, "or": limit > 0}[how]).all()


@pytest.mark.parametrize("opcode", COPIES)
@pytest.mark.parametrize("size", [4, 8, 16])
def test_copies(opcode: str, size: int):
    if ".cg." in opcode:
        size = 16
    given = np.arange(128, dtype=np.uint32) * 77
    for kept, wait in ((size, "cp.async.wait_group 0"), (4, "cp.async.wait_all")):
        text = f"""mul.wide.u32 %d1, %me, 16; add.s64 %d2, %room, %d1; add.s64 %d3, %from, %d1;
        {opcode} [%d2], [%d3], {size}{f", {kept}" if kept < size else ""};
        cp.async.commit_group; {wait}; ld.shared.u32 %r0, [%d2+{size - 4}];"""
        want = given.reshape(LANES, 4)[:, size // 4 - 1] if kept == size else np.where(size > 4, 0, given[::4])
        assert np.array_equal(of_threads(text, LANES, given), want)


def test_a_group_that_is_not_waited_for_is_still_under_way():
    given = np.arange(128, dtype=np.uint32)
    text = """mul.wide.u32 %d1, %me, 16; add.s64 %d2, %room, %d1; add.s64 %d3, %from, %d1;
    cp.async.cg.shared.global [%d2], [%d3], 16; cp.async.commit_group;
    cp.async.ca.shared.global [%d2+512], [%d3+8], 4; cp.async.commit_group;
    cp.async.wait_group 1; ld.shared.u32 %r0, [%d2]; cp.async.wait_all; ld.shared.u32 %r1, [%d2+512];
    add.u32 %r0, %r0, %r1;"""
    assert np.array_equal(of_threads(text, LANES, given), given[::4] + given[2::4])


@pytest.mark.parametrize("opcode", matrix.catalogue())
def test_matrices(opcode: str):
    """Registers to memory and back by another way: rows of 16 bytes that lie apart and in no order."""
    count = int(opcode.split(".m8n8.x")[1][0])
    given = np.random.default_rng(8).integers(0, 1 << 32, (4, LANES), np.uint64)
    place = """mul.lo.u32 %s8, %lane, 48; xor.b32 %s8, %s8, 16; cvt.u64.u32 %e8, %s8; mov.u64 %e9, room;
    add.s64 %e8, %e8, %e9;"""
    registers = ", ".join(f"%r{i}" for i in range(count))
    results = [f"%s{i}" for i in range(count)]
    store, load = ("st" + opcode[2:], "ld" + opcode[2:])
    text = f"""{place}
    {store} [%e8], {{{registers}}};
    bar.warp.sync -1;
    {load} {{{", ".join(results)}}}, [%e8];"""
    assert np.array_equal(around(text, list(given), results, ".shared .align 16 .b8 room[2048];"), given[:count])
