"""One instruction on one warp: operands in, what the lanes hold out."""

from types import ModuleType

import numpy as np
from hypothesis import strategies as st

from gpu.interpreter.lanes import FIRST_FREE

__all__ = ["ALL", "LANES", "lanes_of", "run"]

LANES, ALL = 32, 0xFFFFFFFF
_OLD = 0xDEADBEEFDEADBEEF  # what a destination holds before


def run(family: ModuleType, opcode: str, *operands: object, width: int = 32, results: int = 1, mask: int = ALL):
    """Return the ``results`` destination registers of an instruction, uint64 [32] each; one alone comes bare."""
    code = family.code_of(opcode, width)
    assert code is not None, opcode
    regs = np.full((FIRST_FREE + 32, LANES), _OLD, np.uint64)
    for row, operand in enumerate(operands, FIRST_FREE + results):
        regs[row] = operand
    rows = np.full(32, FIRST_FREE + 31, np.int32)
    rows[: results + len(operands)] = np.arange(FIRST_FREE, FIRST_FREE + results + len(operands))
    family.execute(regs, rows, np.uint32(mask), code)
    written = regs[FIRST_FREE : FIRST_FREE + results]
    idle = [lane for lane in range(LANES) if not mask >> lane & 1]
    assert (written[:, idle] == _OLD).all(), "a lane that is not active was written"
    return written[0] if results == 1 else written


def lanes_of(bits: int, corners: list[int]) -> st.SearchStrategy[np.ndarray]:
    """Return 32 patterns of so many bits: corners, any, and any with zeros at the end, which are ties of roundings."""
    anything = st.integers(0, (1 << bits) - 1)
    rounder = st.builds(lambda pattern, zeros: pattern >> zeros << zeros, anything, st.integers(0, bits - 1))
    lists = st.lists(st.sampled_from(corners) | anything | rounder, min_size=LANES, max_size=LANES)
    return lists.map(lambda patterns: np.array(patterns, np.uint64))
