"""``ldmatrix`` and ``stmatrix``: 8 x 8 matrices of 16-bit numbers between rows in shared memory and a warp's registers.

Lane 8 q + i gives the address of row i of matrix q. Register q of lane l holds the two numbers of row l / 4 from
column 2 (l % 4) on; with ``.trans`` those of column l / 4 from row 2 (l % 4) on. The machine moves the rows, 16 bytes
for a lane that gives an address, and these functions put them in their places.
"""

import functools

import numpy as np

from gpu.interpreter.grammar import expand
from gpu.interpreter.jit import inlined, jit
from gpu.interpreter.lanes import LANES
from refimpl.contract import host

__all__ = ["STORE", "catalogue", "code_of", "count_of", "gather", "scatter"]

_GRAMMAR = "MOVE.sync.aligned.m8n8.COUNT{.trans}.SPACE.b16"
_LISTS = {"MOVE": ("ldmatrix", "stmatrix"), "COUNT": ("x1", "x2", "x4"), "SPACE": ("shared", "shared::cta")}
STORE, _TRANSPOSED = 8, 16
_HALF, _LOW = np.uint32(16), np.uint32(0xFFFF)


@functools.cache
@host
def catalogue() -> dict[str, int]:
    """Return every opcode with its code: the count of matrices, STORE, whether it transposes."""
    words = {opcode: opcode.split(".") for opcode in expand(_GRAMMAR, _LISTS)}
    return {
        opcode: int(word[4][1:]) | STORE * (word[0] == "stmatrix") | _TRANSPOSED * ("trans" in word)
        for opcode, word in words.items()
    }


@host
def code_of(opcode: str, width: int) -> int | None:
    """Return the code of an opcode, or None.

    >>> code_of("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16", 32)
    20
    """
    return catalogue().get(opcode)


@inlined
def count_of(code):
    """Return how many matrices an instruction moves; it takes 8 times as many addresses."""
    return code & 7


@jit
def scatter(regs, rows, quads, code):
    """Fill the destination registers from the rows that were read: ``quads`` uint32 [32, 4]."""
    for q in range(count_of(code)):
        target = regs[rows[q]]
        for lane in range(LANES):
            g, t = lane >> 2, lane & 3
            if code & _TRANSPOSED:
                low, high = _number(quads, 8 * q + 2 * t, g), _number(quads, 8 * q + 2 * t + 1, g)
                target[lane] = np.uint64(low | high << _HALF)
            else:
                target[lane] = np.uint64(quads[8 * q + g, t])


@jit
def gather(regs, rows, quads, code):
    """Fill the rows that are to be written from the source registers."""
    for q in range(count_of(code)):
        source = regs[rows[q]]
        for lane in range(LANES):
            g, t = lane >> 2, lane & 3
            word = np.uint32(source[lane])
            if code & _TRANSPOSED:
                _put_number(quads, 8 * q + 2 * t, g, word & _LOW)
                _put_number(quads, 8 * q + 2 * t + 1, g, word >> _HALF)
            else:
                quads[8 * q + g, t] = word


@inlined
def _number(quads, row, column):
    """Return one of the eight numbers of a row."""
    return (quads[row, column >> 1] >> np.uint32(16 * (column & 1))) & _LOW


@inlined
def _put_number(quads, row, column, number):
    """Write one of the eight numbers of a row."""
    shift = np.uint32(16 * (column & 1))
    quads[row, column >> 1] = (quads[row, column >> 1] & ~(_LOW << shift)) | number << shift
