"""Lanes that part and meet again: random programs of branches and loops against NumPy, and what waits for ever."""

from collections.abc import Iterator
from itertools import count

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu.interpreter import KernelError
from tests.interpreter.program import launch

THREADS = 64
HEAD = """.version 8.8
.target sm_90
.address_size 64
.visible .entry tested(.param .u64 into)
{
.reg .pred %p; .reg .b32 %r<4>, %n<64>, %me; .reg .b64 %into, %step;
ld.param.u64 %into, [into];
mov.u32 %me, %tid.x;
mul.wide.u32 %step, %me, 4;
add.s64 %into, %into, %step;
"""
WORK = {"add.u32": np.add, "xor.b32": np.bitwise_xor, "mul.lo.u32": np.multiply, "max.u32": np.maximum}
REGISTERS = st.integers(0, 3)
PLAIN = st.tuples(st.sampled_from(list(WORK)), REGISTERS, REGISTERS, REGISTERS)
NESTED = st.recursive(
    st.lists(PLAIN, min_size=1, max_size=3),
    lambda bodies: st.lists(
        PLAIN | st.tuples(st.just("if"), REGISTERS, bodies, bodies) | st.tuples(st.just("loop"), REGISTERS, bodies),
        min_size=1, max_size=3,
    ),
    max_leaves=8,
)  # fmt: skip
PROGRAMS = st.lists(NESTED | st.tuples(st.just("exchange"), REGISTERS, st.integers(0, 31)).map(lambda one: [one]))


def emit(body: list[tuple], names: Iterator[int]) -> str:
    """Write a program as PTX."""
    lines = []
    for what, *details in body:
        i = next(names)
        match what, details:
            case "if", (r, yes, no):
                lines += [f"and.b32 %n{i % 64}, %r{r}, 4; setp.eq.u32 %p, %n{i % 64}, 0; @%p bra ELSE{i};"]
                lines += [emit(yes, names), f"bra.uni END{i};", f"ELSE{i}:", emit(no, names), f"END{i}:"]
            case "loop", (r, inner):
                lines += [f".reg .u32 %left{i}; and.b32 %left{i}, %r{r}, 3;", f"AGAIN{i}: setp.eq.u32 %p, %left{i}, 0;"]
                lines += [f"@%p bra END{i};", emit(inner, names), f"sub.u32 %left{i}, %left{i}, 1; bra AGAIN{i};"]
                lines += [f"END{i}:"]
            case "exchange", (r, mask):
                lines += [f"shfl.sync.bfly.b32 %r{r}, %r{r}, {mask}, 31, -1;"]
            case _, (d, a, b):
                lines += [f"{what} %r{d}, %r{a}, %r{b};"]
    return "\n".join(lines)


def apply(body: list[tuple], registers: np.ndarray, active: np.ndarray) -> None:
    """Run a program on all threads at once, for those that are active."""
    for what, *details in body:
        match what, details:
            case "if", (r, yes, no):
                taken = (registers[r] & 4) != 0
                apply(yes, registers, active & taken)
                apply(no, registers, active & ~taken)
            case "loop", (r, inner):
                left = registers[r] & 3
                for turn in range(3):
                    apply(inner, registers, active & (left > turn))
            case "exchange", (r, mask):
                registers[r] = registers[r][np.arange(THREADS) ^ mask]
            case _, (d, a, b):
                registers[d] = np.where(active, WORK[what](registers[a], registers[b]), registers[d])


@given(programs=PROGRAMS)
@settings(max_examples=60, deadline=None)
def test_every_path_is_taken_by_its_lanes_alone(programs: list[list[tuple]]):
    body = [statement for program in programs for statement in program]
    me = np.arange(THREADS, dtype=np.uint32)
    registers = np.stack([me, me * 7 + 3, me >> 2, me ^ 21])
    start = "mov.u32 %r0, %me; mad.lo.u32 %r1, %me, 7, 3; shr.u32 %r2, %me, 2; xor.b32 %r3, %me, 21;"
    stores = "".join(f"st.global.u32 [%into+{4 * THREADS * i}], %r{i};" for i in range(4))
    out = np.zeros((4, THREADS), np.uint32)
    launch(HEAD + start + emit(body, count()) + stores + "ret;\n}", out, threads=THREADS)
    apply(body, registers, np.ones(THREADS, bool))
    assert np.array_equal(out, registers)


FOR_EVER = {
    "a sum in one branch": "setp.lt.u32 %p, %me, 16; @%p bra A; bar.sync 0; ret; A: redux.sync.add.u32 %r0, %me, -1;",
    "a barrier that a warp does not come to": "setp.lt.u32 %p, %me, 32; @%p bra A; bar.sync 1, 64; A: ",
    "two barriers": "setp.lt.u32 %p, %me, 32; @%p bra A; bar.sync 1, 64; ret; A: bar.sync 2, 64;",
}


@pytest.mark.parametrize("name", FOR_EVER)
def test_who_waits_for_ever(name: str):
    with pytest.raises(KernelError, match=r"tested, PTX line \d+ \((redux|bar).*thread \d+: .*waits for ever"):
        launch(HEAD + FOR_EVER[name] + "\nret;\n}", np.zeros(64, np.uint32), threads=64)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("@%p bra A; bar.sync 0; bra B; A: bar.sync 0; B:", "do not come to this barrier together"),
        ("@!%p exit; shfl.sync.down.b32 %r0, %me, 8, 31, -1;", "a lane that does not take part"),
        ("shfl.sync.idx.b32 %r0, %me, 0, 31, 0xFFFF;", "not among the lanes that its mask names"),
    ],
)
def test_who_comes_to_the_wrong_place(text: str, said: str):
    with pytest.raises(KernelError, match=said):
        launch(HEAD + "setp.lt.u32 %p, %me, 16;" + text + "\nret;\n}", np.zeros(64, np.uint32), threads=64)


def test_halves_of_a_warp_exchange_by_themselves():
    """One instruction, two groups that name themselves."""
    out = np.zeros(32, np.uint32)
    text = """shr.u32 %n0, %me, 4; mul.lo.u32 %n0, %n0, 16; shl.b32 %n1, 65535, %n0;
    setp.lt.u32 %p, %me, 16; @%p bra A; add.u32 %me, %me, 100; A:
    shfl.sync.bfly.b32 %r0, %me, 15, 31, %n1; st.global.u32 [%into], %r0;"""
    launch(HEAD + text + "\nret;\n}", out)
    assert out.tolist() == [*range(15, -1, -1), *range(131, 115, -1)]


def test_a_lane_waits_for_what_another_warp_stores():
    """Warp 0 spins on a flag that warp 1 sets: no order of the warps may starve the other."""
    out = np.zeros(64, np.uint32)
    text = """.reg .b64 %base; ld.param.u64 %base, [into];
    setp.gt.u32 %p, %me, 31; @%p bra SET;
    AGAIN: ld.volatile.global.u32 %r0, [%base+128]; setp.eq.u32 %p, %r0, 0; @%p bra AGAIN;
    ret;
    SET: st.volatile.global.u32 [%into], 5;"""
    launch(HEAD + text + "\nret;\n}", out, threads=64)
    assert out[32:].tolist() == [5] * 32


MATRIX = """.reg .b32 %a<4>, %c<4>; .reg .f32 %f<4>; mov.u32 %a0, 0x3F803F80; mov.u32 %a1, %a0; mov.u32 %a2, %a0;
    mov.u32 %a3, %a0; mov.f32 %f0, 0f00000000; mov.f32 %f1, %f0; mov.f32 %f2, %f0; mov.f32 %f3, %f0; {}
    mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {{%f0, %f1, %f2, %f3}}, {{%a0, %a1, %a2, %a3}}, {{%a0, %a1}},
    {{%f0, %f1, %f2, %f3}}; st.global.f32 [%into], %f0; ret; {}"""


def test_the_whole_warp_comes_to_a_matrix_product():
    """Half of the warp takes a way that lies behind: the others wait for it."""
    away = "setp.lt.u32 %p, %me, 16; @%p bra AWAY; BACK:", "AWAY: mov.u32 %a0, 0x40004000; bra BACK;"
    out = np.zeros(32, np.float32)
    launch(HEAD + MATRIX.format(*away) + "\n}", out)
    row, column = np.arange(32) >> 2, np.arange(32) % 4 * 2
    assert out.tolist() == (8 * np.where(row < 4, 2, 1) * np.where(column < 4, 2, 1) + 8).tolist()


def test_a_part_of_a_warp_comes_to_a_matrix_product():
    for away in ("setp.lt.u32 %p, %me, 16; @%p exit;", "setp.lt.u32 %p, %me, 16; @%p bra AWAY;"):
        with pytest.raises(KernelError, match=r"mma.*thread (16|0): not all 32 lanes of the warp take part"):
            launch(HEAD + MATRIX.format(away, "AWAY:") + "\n}", np.zeros(32, np.float32))
    nobody = MATRIX.replace("mma.sync", "setp.gt.u32 %p, %me, 99; @%p mma.sync")
    out = np.zeros(32, np.float32)
    launch(HEAD + nobody.format("", "") + "\n}", out)
    assert out.tolist() == [0.0] * 32
