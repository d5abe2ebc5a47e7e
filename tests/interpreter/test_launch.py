"""Launches: memory as regions, orders that must agree, what runs too long, what a user interrupts."""

import signal
import threading
import time

import numpy as np
import pytest

from gpu import interpreter
from gpu.interpreter import KernelError, Memory
from gpu.interpreter.regions import FIRST, REGION_BITS

HEAD = """.version 8.8
.target sm_90
.address_size 64
"""
BODY = """
{
.reg .pred %p; .reg .b32 %r<9>; .reg .f32 %f<9>; .reg .b64 %d<9>; .reg .b64 %into, %from; .reg .u32 %me, %block;
mov.u32 %me, %tid.x; mov.u32 %block, %ctaid.x;
"""


def run(body, *params, memory=(), parameters=(".u64 into",), before="", grid=1, block=32, **options):
    """Run a kernel ``tested`` with this body."""
    listed = ", ".join(f".param {parameter}" for parameter in parameters)
    ptx = f"{HEAD}{before}\n.visible .entry tested({listed}){BODY}{body}\nret;\n}}"
    return interpreter.launch(ptx, "tested", grid, block, params, memory, **options)


def on(array, body, **options):
    """Run a kernel on one array, whose address stands in %into."""
    address = np.uint64(Memory([array]).address(array))
    return run("ld.param.u64 %into, [into];" + body, address, memory=[array], **options)


OWN = "mad.lo.u32 %r8, %block, 32, %me; mul.wide.u32 %d8, %r8, 4; add.s64 %d8, %into, %d8;"


def test_arrays_that_overlap_share_a_region():
    whole = np.arange(100, dtype=np.float32)
    left, right, other = whole[10:60], whole[50:], np.zeros(7, np.int8)
    memory = Memory([left, other, right], ["left", "other", "right"])
    assert len(memory.regions) == 2
    assert memory.address(right) - memory.address(left) == 160
    assert {region.name for region in memory.regions} == {"other", "left, right"}
    assert memory.address(whole[60:]) - memory.address(left) == 200
    with pytest.raises(KernelError, match="not among those"):
        memory.address(np.zeros(3))


def test_a_view_keeps_its_alignment():
    whole = np.zeros(1000, np.uint8)
    for start in (0, 1, 4, 100, 300):
        assert Memory([whole[start:]]).address(whole[start:]) % 256 == start % 256
    assert Memory([whole]).address(whole) >> REGION_BITS == FIRST
    assert Memory([whole[:0]]).address(whole[:0]) == 0


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("ld.global.u32 %r0, [%d8+4];", r"block 0, thread 31: byte 128 of array 0, which has 128: out of bounds"),
        ("ld.global.u32 %r0, [%d8+-4];", r"thread 0: byte -4 of array 0, which has 128: out of bounds"),
        ("ld.global.u32 %r0, [%d8+2];", r"thread 0: byte 2 of array 0, which has 128: misaligned"),
        ("ld.global.v2.u32 {%r0, %r1}, [%d8];", r"thread 1: byte 4 of array 0, which has 128: misaligned"),
        ("ld.u32 %r0, [%d8+4096];", r"byte 4096 of array 0, which has 128: out of bounds"),
        ("mov.u64 %d0, 8; ld.global.u32 %r0, [%d0];", r"address 0x8 is in no array"),
        ("mov.u64 %d0, -8; ld.u32 %r0, [%d0];", r"in no array"),
        ("ld.shared.u32 %r0, [%d8];", r"(in no array|out of bounds)"),
        ("ld.shared.u32 %r0, [room+64];", r"byte 64 of shared memory, which has 64: out of bounds"),
        ("cvta.shared.u64 %d0, %d1; mov.u64 %d1, room; cvta.shared.u64 %d0, %d1; ld.global.u32 %r0, [%d0];",
         r"not an address of the space"),
        ("st.global.u32 [table], %me;", r"byte 0 of table, which has 8: a store to what can only be read"),
        ("ld.local.u32 %r0, [own+16];", r"byte 16 of local memory, which has 16: out of bounds"),
        ("atom.global.add.u32 %r0, [%d8+128], 1;", r"byte 128 of array 0"),
    ],
)  # fmt: skip
def test_addresses(body, said):
    variables = ".shared .align 4 .b8 room[64]; .local .align 4 .b8 own[16];"
    with pytest.raises(KernelError, match=r"^tested, PTX line \d+ \(.*" + said):
        on(np.zeros(32, np.float32), variables + OWN + body, before=".const .align 4 .b32 table[2] = {1, 2};")


def test_an_array_that_can_only_be_read():
    x = np.arange(32, dtype=np.float32)
    x.flags.writeable = False
    on(x, OWN + "ld.global.u32 %r0, [%d8];")
    with pytest.raises(KernelError, match="a store to what can only be read"):
        on(x, OWN + "st.global.u32 [%d8], %r0;")


def test_parameters():
    out = np.zeros(8, np.uint8)
    body = """ld.param.u64 %into, [into]; ld.param.u8 %r0, [small]; ld.param.u16 %r1, [pair+2];
    setp.ne.u32 %p, %me, 0; @%p ret; st.global.u8 [%into], %r0; st.global.u16 [%into+2], %r1;"""
    parameters = (".u8 small", ".u64 into", ".align 4 .b8 pair[4]")
    where = np.uint64(Memory([out]).address(out))
    run(body, np.uint8(7), where, bytes([1, 2, 3, 4]), memory=[out], parameters=parameters)
    assert out.tolist() == [7, 0, 3, 4, 0, 0, 0, 0]
    with pytest.raises(KernelError, match="takes 3 parameters, got 2"):
        run(body, np.uint8(7), where, memory=[out], parameters=parameters)
    with pytest.raises(KernelError, match="small has 1 bytes, got 4"):
        run(body, np.float32(7), where, bytes(4), memory=[out], parameters=parameters)


@pytest.mark.parametrize("block", [33, (4, 3, 2), (1, 1, 7)])
def test_where_a_thread_is(block):
    size = np.prod(block)
    grid = (3, 2, 2)
    out = np.zeros((12, size, 6), np.uint32)
    names = [f"%{name}.{axis}" for name in ("ctaid", "tid") for axis in "xyz"]
    body = """ld.param.u64 %into, [into]; mov.u32 %r0, %ctaid.z; mov.u32 %r1, %nctaid.y; mov.u32 %r2, %ctaid.y;
    mad.lo.u32 %r0, %r0, %r1, %r2; mov.u32 %r1, %nctaid.x; mad.lo.u32 %r0, %r0, %r1, %block;
    mov.u32 %r3, %tid.z; mov.u32 %r4, %ntid.y; mov.u32 %r5, %tid.y; mad.lo.u32 %r3, %r3, %r4, %r5;
    mov.u32 %r4, %ntid.x; mad.lo.u32 %r3, %r3, %r4, %me;""" + f"""
    mad.lo.u32 %r0, %r0, {size}, %r3; mul.wide.u32 %d0, %r0, 24; add.s64 %d0, %into, %d0;"""
    body += "".join(f"mov.u32 %r6, {name}; st.global.u32 [%d0+{4 * i}], %r6;" for i, name in enumerate(names))
    counted = run(body, np.uint64(Memory([out]).address(out)), memory=[out], grid=grid, block=block)
    x, y, z = (block, 1, 1) if isinstance(block, int) else block
    threads = [(i, j, k) for k in range(z) for j in range(y) for i in range(x)]
    blocks = [(i, j, k) for k in range(2) for j in range(2) for i in range(3)]
    assert out.tolist() == [[[*place, *thread] for thread in threads] for place in blocks]
    assert counted.warps == 12 * -(-size // 32)


def test_dynamic_shared_memory_lies_behind_the_static():
    out = np.zeros(4, np.uint32)
    before = ".extern .shared .align 16 .b8 more[]; .shared .align 4 .b8 room[20];"
    body = """mov.u64 %d0, more; mov.u64 %d1, room; cvt.u32.u64 %r0, %d0; cvt.u32.u64 %r1, %d1;
    mov.u32 %r2, %dynamic_smem_size; mov.u32 %r3, %total_smem_size; st.shared.u32 [more+44], %me;
    setp.ne.u32 %p, %me, 0; @%p ret; st.global.v4.u32 [%into], {%r0, %r1, %r2, %r3};"""
    on(out, body, before=before, shared=48, block=1)
    assert out.tolist() == [32, 0, 48, 80]
    with pytest.raises(KernelError, match="byte 76 of shared memory, which has 72"):
        on(out, body, before=before, shared=40, block=1)


def test_variables_start_anew_in_every_order():
    out = np.zeros(1, np.uint32)
    before = ".global .align 4 .u32 total = 40;"
    on(out, "atom.global.add.u32 %r0, [total], 1; st.global.u32 [%into], %r0;", before=before, block=1)
    assert out.tolist() == [40]


@pytest.mark.parametrize("grid", [1, 2])
def test_results_that_depend_on_the_order(grid):
    """Who comes first takes the number 0: warps in one block, or blocks."""
    out = np.zeros(66, np.uint32)
    body = OWN + """atom.global.add.u32 %r0, [%into+256], 1; st.global.u32 [%d8], %r0;"""
    with pytest.raises(KernelError, match=r"bytes of array 0 from byte \d+ on differ when .* another order"):
        on(out, body, grid=grid, block=64 // grid)
    out[:] = 0
    on(out, body, grid=grid, block=64 // grid, orders=1)
    assert sorted(out[:64].tolist()) == list(range(64))


def test_results_that_do_not_depend_on_the_order():
    out = np.zeros(65, np.uint32)
    for orders in (2, 5):
        out[:] = 0
        on(out, "atom.global.add.u32 %r0, [%into+256], %me;", block=64, orders=orders)
        assert out[64] == 64 * 63 // 2


def test_sums_of_floats_depend_on_the_order():
    out = np.zeros(65, np.float32)
    body = """add.u32 %r0, %me, 1; cvt.rn.f32.u32 %f0, %r0; rcp.rn.f32 %f0, %f0;
    atom.global.add.f32 %f1, [%into+256], %f0;"""
    with pytest.raises(KernelError, match=r"differ when .*; it adds floats atomically, so launch it with one order"):
        on(out, body, block=256)


def test_a_kernel_that_runs_too_long():
    with pytest.raises(KernelError, match="still running after 5000 instructions"):
        on(np.zeros(1, np.uint32), "AGAIN: bra AGAIN;", budget=5000)
    on(np.zeros(1, np.uint32), "mov.u32 %r0, 1;", budget=5000)


def test_ctrl_c_ends_a_long_launch():
    on(np.zeros(1, np.uint32), "mov.u32 %r0, 1;")  # compiled
    threading.Timer(0.5, signal.raise_signal, [signal.SIGINT]).start()
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        on(np.zeros(1, np.uint32), "AGAIN: bra AGAIN;")
    assert time.monotonic() - start < 20


@pytest.mark.parametrize(
    ("block", "shared", "said"),
    [
        (1025, 0, r"a block of \(1025"), ((32, 33, 1), 0, "1056 threads"), (0, 0, r"a block of \(0"),
        (32, 240_000, "240000 bytes"),
    ],
)  # fmt: skip
def test_blocks_that_no_gpu_has(block, shared, said):
    with pytest.raises(KernelError, match=said):
        on(np.zeros(1, np.uint32), "mov.u32 %r0, 1;", block=block, shared=shared)


def test_poison():
    """Shared and local memory hold ones until somebody writes; so do registers."""
    out = np.zeros(3, np.uint32)
    body = """.shared .align 4 .b8 room[4]; .local .align 4 .b8 own[4];
    ld.shared.u32 %r0, [room]; ld.local.u32 %r1, [own]; st.global.u32 [%into], %r0; st.global.u32 [%into+4], %r1;
    st.global.u32 [%into+8], %r2;"""
    on(out, body, block=1)
    assert out.tolist() == [0xFFFFFFFF] * 3
