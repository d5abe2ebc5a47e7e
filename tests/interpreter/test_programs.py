"""Every opcode in a PTX program does what it does alone: decoded right, operands and results in their places."""

from types import ModuleType

import numpy as np
import pytest

from gpu.interpreter import approximate, compare, convert, dots, floating, integer, logic, mma, moves, packed
from tests.interpreter import test_opcodes_compare, test_opcodes_floating, test_opcodes_integer, test_opcodes_logic
from tests.interpreter.program import execute, signature
from tests.interpreter.warp import LANES, run

FAMILIES: dict[ModuleType, list[str]] = {
    integer: test_opcodes_integer.PLAIN,
    logic: test_opcodes_logic.OPCODES,
    floating: test_opcodes_floating.EXACT,
    approximate: test_opcodes_floating.APPROXIMATE,
    compare: [*test_opcodes_compare.COMPARISONS, *test_opcodes_compare.CHOICES],
    moves: test_opcodes_compare.MOVES,
    convert: list(convert.catalogue()),
    packed: list(packed.catalogue()),
    dots: list(dots.catalogue()),
    mma: list(mma.catalogue()),
}
OPERANDS = np.random.default_rng(11).integers(0, 1 << 64, (12, LANES), np.uint64)
OPERANDS[1, ::3] = OPERANDS[0, ::3]  # equal ones
OPERANDS[2, ::2] &= np.uint64(63)
BATCHES = [(family, opcodes[i : i + 100]) for family, opcodes in FAMILIES.items() for i in range(0, len(opcodes), 100)]


def alone(family: ModuleType, opcode: str, literal: int) -> list[list[int]]:
    """Run one instruction on its own."""
    results, widths = signature(opcode)
    operands = [OPERANDS[i] & np.uint64((1 << width) - 1) for i, width in enumerate(widths)]
    operands += [np.full(LANES, literal, np.uint64)] if opcode.startswith("lop3") else []
    sink = opcode.startswith("set.")  # the machine gives ``set`` a second result, as ``setp`` has
    found = run(family, opcode, *operands, width=results[0], results=len(results) + sink)
    return np.atleast_2d(found)[: len(results)].tolist()


@pytest.mark.parametrize(("family", "batch"), BATCHES, ids=lambda part: part[0] if isinstance(part, list) else "")
def test_in_a_program(family: ModuleType, batch: list[str]):
    found = execute(batch, OPERANDS, literal=0xCA)
    assert [opcode for opcode in batch if found[opcode] != alone(family, opcode, 0xCA)] == []
