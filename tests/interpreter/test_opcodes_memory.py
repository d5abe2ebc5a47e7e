"""Loads, stores, atomics and copies, in PTX programs against NumPy."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu.interpreter.grammar import expand
from tests.interpreter.program import launch
from tests.interpreter.warp import LANES, lanes_of, numbers

_LISTS = {
    "type": (*(f"{letter}{bits}" for letter in "bus" for bits in (8, 16, 32, 64)), "f32", "f64"),
    "narrow": ("b8", "u8", "s8"), "half": ("b16", "u16", "s16"), "word": ("b32", "u32", "s32", "f32"),
    "double": ("b64", "u64", "s64", "f64"), "pair": ("v2",), "vector": ("v2", "v4"),
    "order": ("relaxed", "acquire"), "out": ("relaxed", "release"), "scope": ("cta", "cluster", "gpu", "sys"),
    "cache": ("ca", "cg", "cs", "lu", "cv"), "back": ("wb", "cg", "cs", "wt"),
    "keep": ("L1::evict_normal", "L1::evict_last", "L1::evict_first", "L1::no_allocate"),
    "fetch": ("L2::64B", "L2::128B", "L2::256B"), "space": ("global", "shared", "local"),
    "logic": ("and", "or", "xor"), "most": ("min", "max"), "bits": ("b32", "b64"), "long": ("u32", "u64"),
    "number": ("u32", "s32", "u64", "s64"), "real": ("f32", "f64"), "swap": ("exch", "cas"), "turn": ("inc", "dec"),
    "fence": ("relaxed", "acquire", "release", "acq_rel"), "where": ("global", "shared"), "how": ("ca", "cg"),
}  # fmt: skip
LOADS = tuple(expand(
    """ld{.space}.type ld{.space}.vector.narrow ld{.space}.vector.half ld{.space}.vector.word ld{.space}.pair.double
    ld.volatile{.space}.type ld.order.scope{.space}.type ld.weak{.space}.type ld{.space}.cache.type
    ld.global.nc{.keep}{.fetch}.type ld.global.nc{.keep}{.fetch}.vector.word ld.global{.keep}{.fetch}.type""", _LISTS,
))  # fmt: skip
STORES = tuple(expand(
    """st{.space}.type st{.space}.vector.narrow st{.space}.vector.half st{.space}.vector.word st{.space}.pair.double
    st.volatile{.space}.type st.out.scope{.space}.type st.weak{.space}.type st{.space}.back.type
    st.global{.keep}.type""", _LISTS,
))  # fmt: skip
ATOMICS = tuple(expand(
    """atom{.where}.logic.bits atom{.where}.swap.bits atom{.where}.add.number atom{.where}.most.number
    atom{.where}.turn.u32 atom{.where}.add.real atom.fence.scope{.where}.add.number atom.fence{.where}.add.number
    red{.where}.logic.bits red{.where}.add.number red{.where}.most.number red{.where}.turn.u32 red{.where}.add.real
    red.relaxed.scope{.where}.add.number""", _LISTS,
))  # fmt: skip
OPCODES = (*LOADS, *STORES, *ATOMICS)


def size_of(opcode: str) -> tuple[int, int]:
    """Return bytes of an element and how many a lane moves."""
    words = opcode.split(".")
    return int(words[-1][1:]) // 8, next((int(word[1]) for word in words if word in ("v2", "v4")), 1)
HEAD = """.version 8.8
.target sm_100
.address_size 64
.const .align 8 .b8 table[16] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 250};
.visible .entry tested(.param .u64 into, .param .u64 from, .param .u64 field)
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
    return "%" + next((space for space in ("shared", "local") if f".{space}" in opcode), "global")


def program(body: list[str], out: np.ndarray, given: np.ndarray, field: np.ndarray) -> None:
    """Run instructions between the addresses and the end."""
    launch("\n".join([HEAD, *body, "ret;", "}"]), out, given, field)


def batches(opcodes: tuple[str, ...]) -> list[tuple[str, ...]]:
    return [opcodes[i : i + 64] for i in range(0, len(opcodes), 64)]


def listed(registers: list[str]) -> str:
    return registers[0] if len(registers) == 1 else "{" + ", ".join(registers) + "}"


@pytest.mark.parametrize("batch", batches(LOADS), ids=lambda batch: batch[0])
def test_loads(batch: tuple[str, ...]):
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
        want = np.ascontiguousarray(field[:, 32 - size * count :]).view(kind).astype(np.int64 if size < 8 else kind)
        want = want & 0xFFFFFFFF if size < 8 else want
        assert np.array_equal(out[place : place + count], want.T.astype(np.uint64)), opcode
        place += count


@pytest.mark.parametrize("batch", batches(STORES), ids=lambda batch: batch[0])
def test_stores(batch: tuple[str, ...]):
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
def test_atomics(batch: tuple[str, ...], data: st.DataObject):
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
    given = np.arange(LANES, dtype=np.uint64)[None] % np.uint64(4)
    field = np.zeros((LANES, 32), np.uint8)
    out = np.zeros((1, LANES), np.uint64)
    body = ["ld.global.u16 %h0, [%from]; mov.u16 %h1, 7; atom.global.cas.b16 %h2, [%global+2], %h0, %h1;"]
    program([*body, "cvt.u64.u16 %e0, %h2; st.global.u64 [%into], %e0;"], out, given, field)
    assert (out == 0).all() and np.array_equal(field[:, 2], np.where(given[0] == 0, 7, 0))


def test_all_lanes_on_one_word():
    field, out = np.zeros((LANES, 32), np.uint8), np.zeros((1, LANES), np.uint64)
    body = ["atom.global.add.u32 %s0, [%field], 3; cvt.u64.u32 %e0, %s0; st.global.u64 [%into], %e0;"]
    program(body, out, np.zeros((1, LANES), np.uint64), field)
    assert sorted(out[0].tolist()) == list(range(0, 96, 3)) and field.view(np.uint32)[0, 0] == 96


def test_constants_and_shared_by_another_name():
    out = np.zeros((3, LANES), np.uint64)
    body = [
        "mov.u64 %d0, table; ld.const.u8 %r0, [table+15]; ld.const.b64 %d1, [%d0+8]; cvt.u64.u32 %e0, %r0;",
        "st.shared::cta.b64 [%shared], %d1; ld.shared::cta.b64 %d2, [%shared]; cvta.shared.u64 %d3, %shared;",
        "ld.u32 %r1, [%d3]; cvt.u64.u32 %e1, %r1; st.global.b64 [%into], %e0;",
        "st.global.b64 [%into+256], %d2; st.global.b64 [%into+512], %e1;",
    ]
    program(body, out, np.zeros((1, LANES), np.uint64), np.zeros((LANES, 32), np.uint8))
    word = int.from_bytes(bytes([9, 10, 11, 12, 13, 14, 15, 250]), "little")
    assert (out[0] == 250).all() and (out[1] == word).all() and (out[2] == word & 0xFFFFFFFF).all()
