"""One instruction on one warp: operands in, what the lanes hold out."""

from collections.abc import Iterable
from types import ModuleType

import numpy as np
from hypothesis import strategies as st

from gpu.interpreter.lanes import CARRY, FIRST_FREE, TRUE, ZERO

__all__ = ["ALL", "LANES", "lanes_of", "numbers", "run"]

LANES, ALL = 32, 0xFFFFFFFF
_OLD = 0xDEADBEEFDEADBEEF  # what a destination holds before


def run(
    family: ModuleType, opcode: str, *operands: object, width: int = 32, results: int = 1, mask: int = ALL,
    carry: object = 0, carry_out: np.ndarray | None = None,
) -> np.ndarray:  # fmt: skip
    """Return the ``results`` destination registers of an instruction, uint64 [32] each; one alone comes bare."""
    code = family.code_of(opcode, width)
    assert code is not None, opcode
    regs = np.full((FIRST_FREE + 32, LANES), _OLD, np.uint64)
    regs[ZERO], regs[TRUE], regs[CARRY] = 0, 1, carry
    for row, operand in enumerate(operands, FIRST_FREE + results):
        regs[row] = operand
    rows = np.full(32, ZERO, np.int32)
    rows[: results + len(operands)] = np.arange(FIRST_FREE, FIRST_FREE + results + len(operands))
    family.execute(regs, rows, np.uint32(mask), code)
    written = regs[FIRST_FREE : FIRST_FREE + results]
    idle = [lane for lane in range(LANES) if not mask >> lane & 1]
    assert (written[:, idle] == _OLD).all(), "a lane that is not active was written"
    if carry_out is not None:
        carry_out[:] = regs[CARRY]
    return written[0] if results == 1 else written


def lanes_of(bits: int, corners: Iterable[int] = ()) -> st.SearchStrategy[np.ndarray]:
    """Return 32 patterns of so many bits: corners, any, and any with zeros at the end, which are ties of roundings."""
    most = (1 << bits) - 1
    listed = np.array([x & most for x in (0, 1, 2, -1, -2, 1 << bits - 1, most >> 1, *corners)], np.uint64)

    def read(drawn: bytes) -> np.ndarray:
        columns = np.frombuffer(drawn, np.uint8).reshape(LANES, 10)
        any_bits = np.ascontiguousarray(columns[:, :8]).view(np.uint64)[:, 0] & np.uint64(most)
        kind, zeros = columns[:, 8] % 4, (columns[:, 9] % bits).astype(np.uint64)
        corner = listed[(columns[:, 0] + np.uint64(256) * columns[:, 1]) % np.uint64(len(listed))]
        return np.where(kind < 2, any_bits, np.where(kind == 2, any_bits >> zeros << zeros, corner))

    return st.binary(min_size=10 * LANES, max_size=10 * LANES).map(read)


def numbers(lanes: np.ndarray, bits: int, is_signed: bool) -> list[int]:
    """Return the integers that the low bits of each lane stand for."""
    low = [pattern & ((1 << bits) - 1) for pattern in lanes.tolist()]
    return [x - (1 << bits) if is_signed and x >> bits - 1 else x for x in low]
