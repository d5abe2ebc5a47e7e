"""Loads, stores, atomics and copies, in PTX programs against NumPy."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu.interpreter import access, atomic, moves
from tests.interpreter.program import launch
from tests.interpreter.warp import LANES, lanes_of, numbers

LOADS = sorted(opcode for opcode in access.catalogue() if opcode.startswith("ld"))
STORES = sorted(opcode for opcode in access.catalogue() if opcode.startswith("st"))
ATOMICS = sorted(opcode for opcode in atomic.catalogue() if not opcode.endswith("b16"))
ADDRESSES = [opcode for opcode in moves.catalogue() if opcode.startswith(("cvta", "isspacep"))]
OPCODES = (*access.catalogue(), *atomic.catalogue(), *ADDRESSES)


def size_of(opcode: str) -> tuple[int, int]:
    """Return bytes of an element and how many a lane moves."""
    words = opcode.split(".")
    return int(words[-1][1:]) // 8, next((int(word[1]) for word in words if word in ("v2", "v4")), 1)
FIXED = np.array([72340172838076673, 8106479329266893, 17289301308300324863, 9259542123273814145], np.uint64)
HEAD = """.version 8.8
.target sm_100
.address_size 64
.const .align 16 .b64 table[4] = {72340172838076673, 8106479329266893, 17289301308300324863, 9259542123273814145};
.visible .entry tested(
    .param .u64 p0, .param .u64 p1, .param .u64 p2, .param .u64 p3,
    .param .u64 into, .param .u64 from, .param .u64 field
)
{
.shared .align 32 .b8 room[1024];
.local .align 32 .b8 own[32];
.reg .b16 %h<9>; .reg .b32 %r<9>; .reg .b64 %d<9>;
.reg .b32 %s<9>; .reg .b64 %e<9>;
.reg .b64 %into, %from, %field, %global, %shared, %local, %lane8, %lane32;
.reg .u32 %lane;
mov.u32 %lane, %tid.x;
mul.wide.u32 %lane8, %lane, 8;
mul.wide.u32 %lane32, %lane, 32;
ld.param.u64 %into, [into];
ld.param.u64 %from, [from];
ld.param.u64 %field, [field];
add.s64 %into, %into, %lane8;
add.s64 %from, %from, %lane8;
add.s64 %global, %field, %lane32;
mov.u64 %shared, room;
add.s64 %shared, %shared, %lane32;
mov.u64 %local, own;
"""


def address(opcode: str) -> str:
    """Return the register with the address of a lane's 32 bytes in the space of an opcode."""
    if ".const" in opcode or ".param" in opcode:
        return "table" if ".const" in opcode else "p0"
    return "%" + next((space for space in ("shared", "local") if f".{space}" in opcode), "global")


def program(body: list[str], out: np.ndarray, given: np.ndarray, field: np.ndarray) -> None:
    """Run instructions between the addresses and the end."""
    launch("\n".join([HEAD, *body, "ret;", "}"]), out, given, field, before=FIXED)


def batches(opcodes: list[str]) -> list[list[str]]:
    return [opcodes[i : i + 64] for i in range(0, len(opcodes), 64)]


def listed(registers: list[str]) -> str:
    return registers[0] if len(registers) == 1 else "{" + ", ".join(registers) + "}"


@pytest.mark.parametrize("batch", batches(LOADS), ids=lambda batch: batch[0])
def test_loads(batch: list[str]):
    field = np.random.default_rng(6).integers(0, 256, (LANES, 32), np.uint8)
    body = [f"ld.global.b64 %d{i}, [%global+{8 * i}];" for i in range(4)]
    body += [f"st.{space}.b64 [%{space}+{8 * i}], %d{i};" for space in ("shared", "local") for i in range(4)]
    place = 0
    for opcode in batch:
        size, count = size_of(opcode)
        registers = [f"%{'e' if size == 8 else 's'}{i}" for i in range(count)]
        body.append(f"{opcode} {listed(registers)}, [{address(opcode)}+{32 - size * count}];")
        for register in registers:
            body += [f"cvt.u64.u32 %e8, {register};"] * (size < 8)
            body.append(f"st.global.b64 [%into+{256 * place}], {register if size == 8 else '%e8'};")
            place += 1
    out = np.zeros((place, LANES), np.uint64)
    program(body, out, np.zeros((1, LANES), np.uint64), field)
    place = 0
    for opcode in batch:
        size, count = size_of(opcode)
        kind = ("i" if opcode.split(".")[-1][0] == "s" else "u") + str(size)
        held = np.tile(FIXED.view(np.uint8), (LANES, 1)) if ".const" in opcode or ".param" in opcode else field
        want = np.ascontiguousarray(held[:, 32 - size * count :]).view(kind).astype(np.int64 if size < 8 else kind)
        want = want & 0xFFFFFFFF if size < 8 else want
        assert np.array_equal(out[place : place + count], want.T.astype(np.uint64)), opcode
        place += count


@pytest.mark.parametrize("batch", batches(STORES), ids=lambda batch: batch[0])
def test_stores(batch: list[str]):
    given = np.random.default_rng(7).integers(0, 1 << 64, (8, LANES), np.uint64)
    body = [f"ld.global.b64 %d{i}, [%from+{256 * i}]; cvt.u32.u64 %r{i}, %d{i};" for i in range(8)]
    for n, opcode in enumerate(batch):
        size, count = size_of(opcode)
        base = address(opcode)
        body += [f"st{'.' + base[1:]}.b64 [{base}+{8 * i}], 0;" for i in range(4)]
        registers = listed([f"%{'d' if size == 8 else 'r'}{i}" for i in range(count)])
        body.append(f"{opcode} [{base}+{32 - size * count}], {registers};")
        for i in range(4):
            body.append(f"ld{'.' + base[1:]}.b64 %e{i}, [{base}+{8 * i}];")
            body.append(f"st.global.b64 [%into+{256 * (4 * n + i)}], %e{i};")
    out = np.zeros((4 * len(batch), LANES), np.uint64)
    program(body, out, given, np.zeros((LANES, 32), np.uint8))
    for n, opcode in enumerate(batch):
        size, count = size_of(opcode)
        want = np.zeros((LANES, 32), np.uint8)
        moved = np.ascontiguousarray(given[:count].T).astype(f"u{size}")
        want[:, 32 - size * count :] = moved.view(np.uint8).reshape(LANES, -1)
        assert np.array_equal(out[4 * n : 4 * n + 4], want.view(np.uint64).T), opcode


def combined(operation: str, kind: str, old: int, b: int, c: int) -> int:
    """Return what an atomic leaves in memory."""
    bits, is_signed = int(kind[1:]), kind[0] == "s"
    if kind[0] == "f":
        dtype, word = (np.float32, np.uint32) if bits == 32 else (np.float64, np.uint64)
        with np.errstate(all="ignore"):
            return int((np.array([old], word).view(dtype) + np.array([b], word).view(dtype)).view(word)[0])
    x, y = (numbers(np.array([v], np.uint64), bits, is_signed)[0] for v in (old, b))
    result = {
        "add": x + y, "min": min(x, y), "max": max(x, y), "and": x & y, "or": x | y, "xor": x ^ y, "exch": y,
        "cas": c if x == y else x, "inc": 0 if x >= y else x + 1, "dec": y if x == 0 or x > y else x - 1,
    }[operation]  # fmt: skip
    return result & ((1 << bits) - 1)


@pytest.mark.parametrize("batch", batches(ATOMICS), ids=lambda batch: batch[0])
@settings(max_examples=4)
@given(st.data())
def test_atomics(batch: list[str], data: st.DataObject):
    olds = [data.draw(lanes_of(64)), data.draw(lanes_of(32))]
    b, c = data.draw(lanes_of(64)), data.draw(lanes_of(64))
    b[::3] = olds[0][::3]
    given = np.array([b, c, olds[0], olds[1]])
    body = [f"ld.global.b64 %d{i}, [%from+{256 * i}]; cvt.u32.u64 %r{i}, %d{i};" for i in range(4)]
    for n, opcode in enumerate(batch):
        word = "d" if opcode.endswith("64") else "r"
        base, into = address(opcode), "e" if word == "d" else "s"
        body.append(f"st{'.' + base[1:]}.b64 [{base}], %d2;")
        operands = f"%{word}0, %{word}1" if ".cas." in opcode else f"%{word}0"
        first = f"%{into}0, " if opcode.startswith("atom") else ""
        body += [f"mov.b64 %e0, 0; mov.b32 %s0, 0; {opcode} {first}[{base}], {operands};"]
        body += ["cvt.u64.u32 %e0, %s0;"] * (word == "r")
        body += [f"st.global.b64 [%into+{512 * n}], %e0;", f"ld{'.' + base[1:]}.b64 %e1, [{base}];"]
        body.append(f"st.global.b64 [%into+{512 * n + 256}], %e1;")
    out = np.zeros((2 * len(batch), LANES), np.uint64)
    program(body, out, given, np.zeros((LANES, 32), np.uint8))
    for n, opcode in enumerate(batch):
        *_, operation, kind = opcode.split(".")
        most = (1 << int(kind[1:])) - 1
        for lane, (x, y, z) in enumerate(zip(olds[0].tolist(), b.tolist(), c.tolist(), strict=True)):
            result = combined(operation, kind, x & most, y & most, z & most)
            same = int(out[2 * n + 1, lane]) == x & ~most | result
            both_nan = kind[0] == "f" and result & most >> 1 > (0x7F800000 if most >> 32 == 0 else 0x7FF << 52)
            assert same or both_nan, (opcode, hex(x), hex(y))
            assert int(out[2 * n, lane]) == (x & most if opcode.startswith("atom") else 0), opcode


def test_atom_cas_of_16_bits():
    opcodes = sorted(opcode for opcode in atomic.catalogue() if opcode.endswith("b16"))
    given = np.arange(LANES, dtype=np.uint64)[None] % np.uint64(4)
    field, out = np.zeros((LANES, 32), np.uint8), np.zeros((len(opcodes), LANES), np.uint64)
    body = ["ld.global.u16 %h0, [%from]; mov.u16 %h1, 7;"]
    for n, opcode in enumerate(opcodes):
        base = address(opcode)
        space = base[1:]
        body += [f"st.{space}.u16 [{base}+2], 0; {opcode} %h2, [{base}+2], %h0, %h1; ld.{space}.u16 %h3, [{base}+2];"]
        body += [f"mov.b32 %s0, {{%h3, %h2}}; cvt.u64.u32 %e0, %s0; st.global.u64 [%into+{256 * n}], %e0;"]
    program(body, out, given, field)
    assert len(opcodes) > 50 and np.array_equal(out, np.tile(np.where(given == 0, 7, 0), (len(out), 1)))


def test_all_lanes_on_one_word():
    field, out = np.zeros((LANES, 32), np.uint8), np.zeros((1, LANES), np.uint64)
    body = ["atom.global.add.u32 %s0, [%field], 3; cvt.u64.u32 %e0, %s0; st.global.u64 [%into], %e0;"]
    program(body, out, np.zeros((1, LANES), np.uint64), field)
    assert sorted(out[0].tolist()) == list(range(0, 96, 3)) and field.view(np.uint32)[0, 0] == 96


def test_generic_addresses():
    """An address of a space, made generic and back, reaches the same bytes and knows its space."""
    spaces = ("global", "shared", "local", "param")
    places = {"global": "%global", "const": "table", "shared": "%shared", "local": "%local", "param": "p0"}
    for name, base in places.items():
        out, field = np.zeros((6, LANES), np.uint64), np.full((LANES, 32), 5, np.uint8)
        body = [f"mov.u64 %d0, {base};"] + [f"st.{name}.b64 [%d0], 9;"] * (name in ("shared", "local", "global"))
        body += [f"cvta.{name}.u64 %d1, %d0; ld.b64 %e0, [%d1]; cvta.to.{name}.u64 %d2, %d1; ld.{name}.b64 %e1, [%d2];"]
        for i, space in enumerate(spaces):
            body += [f".reg .pred %p{i}; isspacep.{space} %p{i}, %d1; selp.b64 %e{i + 2}, 1, 0, %p{i};"]
        body += [f"st.global.b64 [%into+{256 * i}], %e{i};" for i in range(6)]
        program(body, out, np.zeros((1, LANES), np.uint64), field)
        assert (out[:2] == (9 if name in ("shared", "local", "global") else FIXED[0])).all(), name
        assert (out[2:] == [[space == name.replace("const", "global")] for space in spaces]).all(), name
