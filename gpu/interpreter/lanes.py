"""The 32 lanes of a warp: rows of the register file that the machine keeps for itself, and how a result is written.

A register is a row of 32 words of 64 bits; a value stands in the low bits of its word, with zeros above.
"""

import numpy as np

from gpu.interpreter.jit import inlined, jit

__all__ = ["ALL", "CARRY", "FIRST_FREE", "LANES", "OUT", "SCRATCH", "SINK", "TRUE", "ZERO", "settle", "signed"]

LANES = 32
ALL = 0xFFFFFFFF
OUT, SINK, ZERO, TRUE, CARRY, SCRATCH, FIRST_FREE = 0, 1, 2, 3, 4, 5, 8


@inlined
def signed(word, shift):
    """Return a word as int64, its sign taken from ``shift`` bits below the top."""
    return (np.int64(word) << shift) >> shift


@jit
def settle(regs, row, mask, keep):
    """Write the row OUT, of which the bits ``keep`` count, to the active lanes of a register."""
    out, target = regs[OUT], regs[row]
    if mask == ALL:
        for lane in range(LANES):
            target[lane] = out[lane] & keep
    else:
        for lane in range(LANES):
            if (mask >> lane) & 1:
                target[lane] = out[lane] & keep
