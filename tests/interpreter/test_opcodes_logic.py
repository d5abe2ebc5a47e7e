"""Operations on bits against strings of Python's bits, one bit at a time as the ISA writes them."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu.interpreter import logic
from tests.interpreter.warp import lanes_of, numbers, run

OPCODES = sorted(logic.catalogue())


def lop3(a: int, b: int, c: int, table: int) -> int:
    """Return the bits that a truth table gives for each three."""
    return sum((table >> ((a >> i & 1) << 2 | (b >> i & 1) << 1 | c >> i & 1) & 1) << i for i in range(32))


def field(a: int, place: int, length: int, bits: int, is_signed: bool) -> int:
    """Return bits of a number, filled with the sign."""
    place, length, last = place & 255, length & 255, bits - 1
    sign = a >> min(place + length - 1, last) & 1 if is_signed and length else 0
    return sum((a >> place + i & 1 if i < length and place + i <= last else sign) << i for i in range(bits))


def inserted(piece: int, into: int, place: int, length: int, bits: int) -> int:
    """Return a number with bits of another put in."""
    for i in range(length & 255):
        at = (place & 255) + i
        if at < bits:
            into = into & ~(1 << at) | (piece >> i & 1) << at
    return into


def permuted(a: int, b: int, selector: int) -> int:
    """Return four of eight bytes; a selector's fourth bit repeats the sign."""
    pool, chosen = a | b << 32, []
    for i in range(4):
        nibble = selector >> 4 * i & 15
        byte = pool >> 8 * (nibble & 7) & 255
        chosen.append((255 if byte & 128 else 0) if nibble & 8 else byte)
    return int.from_bytes(bytes(chosen), "little")


def funnel(opcode: str, low: int, high: int, count: int) -> int:
    """Return 32 bits of 64, shifted."""
    count = count & 31 if ".wrap" in opcode else min(count, 32)
    pair = high << 32 | low
    return (pair << count) >> 32 if ".l." in opcode else pair >> count


def top_bit(a: int, bits: int, is_signed: bool, from_the_top: bool) -> int:
    """Return the place of the first bit that is not the sign; -1 if there is none."""
    wanted = ~a if is_signed and a >> bits - 1 else a
    place = (wanted & ((1 << bits) - 1)).bit_length() - 1
    return bits - 1 - place if from_the_top and place >= 0 else place


def shifted(opcode: str, a: int, count: int, bits: int) -> int:
    """Return a number shifted; beyond its width nothing or the sign is left."""
    if opcode.startswith("shl"):
        return a << count if count < bits else 0
    is_negative = ".s" in opcode and a >> bits - 1
    return (a - (1 << bits) if is_negative else a) >> min(count, bits)


def wanted(opcode: str, bits: int, a: int, b: int, c: int, d: int) -> int:
    """Return what an operation gives, not yet cut to its width."""
    meaning: dict[str, Callable[[], int]] = {
        "and": lambda: a & b, "or": lambda: a | b, "xor": lambda: a ^ b, "not": lambda: ~a, "cnot": lambda: int(a == 0),
        "lop3": lambda: lop3(a, b, c, d), "shl": lambda: shifted(opcode, a, b, bits),
        "shr": lambda: shifted(opcode, a, b, bits), "shf": lambda: funnel(opcode, a, b, c),
        "popc": lambda: a.bit_count(), "clz": lambda: bits - a.bit_length(),
        "brev": lambda: int(f"{a:0{bits}b}"[::-1], 2), "bfe": lambda: field(a, b, c, bits, ".s" in opcode),
        "bfi": lambda: inserted(a, b, c, d, bits), "prmt": lambda: permuted(a, b, c),
        "bfind": lambda: top_bit(a, bits, opcode.split(".")[-1][0] == "s", ".shiftamt" in opcode),
    }  # fmt: skip
    return meaning[opcode.split(".")[0]]()


@pytest.mark.parametrize("opcode", OPCODES)
@settings(max_examples=12)
@given(st.data())
def test_bits(opcode: str, data: st.DataObject):
    name, kind = opcode.split(".")[0], opcode.split(".")[-1]
    bits = 1 if kind == "pred" else int(kind[1:])
    small = lanes_of(8, (31, 32, 33, 63, 64, 65))
    words = [lanes_of(bits)] * 4
    if name in ("shl", "shr"):
        words[1] = lanes_of(32, (15, 16, 31, 32, 63, 64)) if data.draw(st.booleans()) else small
    elif name in ("bfe", "bfi", "shf"):
        words[1 + (name != "bfe")] = words[2 + (name == "bfi")] = small
    operands = [data.draw(each) for each in words]
    if name == "lop3":
        operands[3][:] = operands[3][0] & 255
    values = zip(*(numbers(each, max(bits, 32), False) for each in operands), strict=True)
    result = 32 if name in ("popc", "clz", "bfind") else bits
    want = [wanted(opcode, bits, *each) & ((1 << result) - 1) for each in values]
    count = {"not": 1, "cnot": 1, "popc": 1, "clz": 1, "brev": 1, "bfind": 1, "lop3": 4, "bfi": 4}.get(name, 3)
    assert run(logic, opcode, *operands[:count], width=result).tolist() == want
