"""Integer arithmetic against Python's integers."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu.interpreter import integer
from tests.interpreter.warp import lanes_of, numbers, run

OPCODES = sorted(integer.catalogue())
CARRIES = [opcode for opcode in OPCODES if ".cc" in opcode or opcode.startswith(("addc", "subc", "madc"))]
PLAIN = [opcode for opcode in OPCODES if opcode not in CARRIES]


def quotient(x: int, y: int) -> int:
    """Return x / y rounded to zero; a division by zero gives ones."""
    return -1 if y == 0 else (abs(x) // abs(y)) * (1 if (x < 0) == (y < 0) else -1)


MEANING: dict[str, Callable[[int, int, int, int], int]] = {
    "add": lambda x, y, z, bits: x + y,
    "sub": lambda x, y, z, bits: x - y,
    "mul.lo": lambda x, y, z, bits: x * y,
    "mul.hi": lambda x, y, z, bits: x * y >> bits,
    "mul.wide": lambda x, y, z, bits: x * y,
    "mad.lo": lambda x, y, z, bits: x * y + z,
    "mad.hi": lambda x, y, z, bits: (x * y >> bits) + z,
    "mad.wide": lambda x, y, z, bits: x * y + z,
    "mul24.lo": lambda x, y, z, bits: x * y,
    "mad24.lo": lambda x, y, z, bits: x * y + z,
    "sad": lambda x, y, z, bits: z + abs(x - y),
    "div": lambda x, y, z, bits: quotient(x, y),
    "rem": lambda x, y, z, bits: x - y * quotient(x, y) if y else x,
    "min": lambda x, y, z, bits: min(x, y),
    "max": lambda x, y, z, bits: max(x, y),
    "abs": lambda x, y, z, bits: abs(x),
    "neg": lambda x, y, z, bits: -x,
}


@pytest.mark.parametrize("opcode", PLAIN)
@settings(max_examples=15)
@given(st.data())
def test_integers(opcode: str, data: st.DataObject):
    name, _, kind = opcode.rpartition(".")
    bits, is_signed = int(kind[1:]), kind[0] == "s"
    result = 2 * bits if name.endswith("wide") else bits
    a, b, c = (data.draw(lanes_of(width)) for width in (bits, bits, result))
    used = 24 if "24" in name else bits
    x, y, z = numbers(a, used, is_signed), numbers(b, used, is_signed), numbers(c, result, is_signed)
    want = [MEANING[name](*each, bits) & ((1 << result) - 1) for each in zip(x, y, z, strict=True)]
    operands = (a, b, c)[: 1 if name in ("abs", "neg") else 3 if name.startswith(("mad", "sad")) else 2]
    assert run(integer, opcode, *operands, width=result).tolist() == want


@pytest.mark.parametrize("opcode", CARRIES)
@settings(max_examples=15)
@given(st.data())
def test_carries(opcode: str, data: st.DataObject):
    name, _, kind = opcode.rpartition(".")
    bits, is_signed = int(kind[1:]), kind[0] == "s"
    a, b, c = (data.draw(lanes_of(bits)) for _ in range(3))
    taken = data.draw(lanes_of(1))
    left = np.zeros(32, np.uint64)
    operands = (a, b, c) if name.startswith("mad") else (a, b)
    got = run(integer, opcode, *operands, width=bits, carry=taken, carry_out=left, mask=0x7FFFFFFF)
    x, y, z = numbers(a, bits, is_signed), numbers(b, bits, is_signed), numbers(c, bits, False)
    for lane in range(31):
        carry = int(taken[lane]) if "c" in name.split(".")[0][3:] else 0
        first, second = x[lane] % (1 << bits), y[lane] % (1 << bits)
        if name.startswith("mad"):
            product = x[lane] * y[lane]
            first, second = (product >> bits if ".hi" in name else product) % (1 << bits), z[lane]
        total = first - second - carry if name.startswith("sub") else first + second + carry
        assert int(got[lane]) == total % (1 << bits)
        assert int(left[lane]) == (int(not 0 <= total < 1 << bits) if ".cc" in name else int(taken[lane]))
    assert left[31] == taken[31]
