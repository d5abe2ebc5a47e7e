"""``dp4a`` and ``dp2a``: dot products of a word's bytes, or of two of them with 16-bit halves, added to 32 bits."""

import functools

import numpy as np
from numba import types

from gpu.interpreter.grammar import expand
from gpu.interpreter.jit import inlined, jit
from gpu.interpreter.lanes import LANES, OUT, settle
from refimpl.contract import host

__all__ = ["catalogue", "code_of", "execute"]

_GRAMMAR = "dp4a.TYPE.TYPE dp2a.PART.TYPE.TYPE"
_LISTS = {"TYPE": ("u32", "s32"), "PART": ("lo", "hi")}
_A_SIGNED, _B_SIGNED, _HALVES, _UPPER = 1, 2, 4, 8


@functools.cache
@host
def catalogue() -> dict[str, int]:
    """Return every opcode with its code: which operand is signed, and for ``dp2a`` which bytes meet the halves."""
    codes = {}
    for opcode in expand(_GRAMMAR, _LISTS):
        name, *part, a, b = opcode.split(".")
        signs = _A_SIGNED * (a == "s32") | _B_SIGNED * (b == "s32")
        codes[opcode] = signs | _HALVES * (name == "dp2a") | _UPPER * (part == ["hi"])
    return codes


@host
def code_of(opcode: str, width: int) -> int | None:
    """Return the code of an opcode, or None.

    >>> code_of("dp4a.s32.s32", 32)
    3
    """
    return catalogue().get(opcode)


@inlined
def _byte(word, place, is_signed):
    bits = word >> np.uint64(8 * place)
    return types.int64(types.int8(bits)) if is_signed else types.int64(types.uint8(bits))


@inlined
def _half(word, place, is_signed):
    bits = word >> np.uint64(16 * place)
    return types.int64(types.int16(bits)) if is_signed else types.int64(types.uint16(bits))


@jit
def execute(regs, rows, mask, code):
    """Run one instruction in the lanes of a mask."""
    out, a, b, c = regs[OUT], regs[rows[1]], regs[rows[2]], regs[rows[3]]
    a_signed, b_signed = code & _A_SIGNED, code & _B_SIGNED
    for lane in range(LANES):
        total = types.int64(c[lane])
        if code & _HALVES:
            for i in range(2):
                upper = i + (2 if code & _UPPER else 0)
                total += _half(a[lane], i, a_signed) * _byte(b[lane], upper, b_signed)
        else:
            for i in range(4):
                total += _byte(a[lane], i, a_signed) * _byte(b[lane], i, b_signed)
        out[lane] = types.uint64(total)
    settle(regs, rows[0], mask, np.uint64(0xFFFFFFFF))
