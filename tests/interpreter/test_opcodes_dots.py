"""Dot products of bytes against NumPy."""

import numpy as np
import pytest
from hypothesis import given, settings

from gpu.interpreter import dots
from tests.interpreter.warp import lanes_of, run

OPCODES = list(dots.catalogue())
WORDS = lanes_of(32, [0, 0xFFFFFFFF, 0x80808080, 0x7F7F7F7F, 0x80007FFF, 0x01020304, 0x7FFFFFFF, 0x80000000])


@pytest.mark.parametrize("opcode", dots.catalogue())
@settings(max_examples=20)
@given(WORDS, WORDS, WORDS)
def test_dots(opcode: str, a: np.ndarray, b: np.ndarray, c: np.ndarray):
    name, *part, first, second = opcode.split(".")
    left = a.astype(np.uint32).view(("i" if first == "s32" else "u") + ("1" if name == "dp4a" else "2"))
    right = b.astype(np.uint32).view("i1" if second == "s32" else "u1").reshape(32, 4)
    right = {"lo": right[:, :2], "hi": right[:, 2:]}.get("".join(part), right)
    want = (left.reshape(32, -1).astype(np.int64) * right).sum(1) + c.astype(np.int64)
    assert np.array_equal(run(dots, opcode, a, b, c), want.astype(np.uint32))
    assert np.array_equal(run(dots, opcode, a, b, c, mask=0xFF)[:8], want.astype(np.uint32)[:8])
