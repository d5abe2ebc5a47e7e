"""One operation on 16-bit floats: bits in, bits out.

The product of two such numbers is exact in float64. A sum is rounded there to odd, which leaves the rounding to 16 bits
as if it were the only one. NaN that an operation makes is the canonical one. The approximations of the hardware
(``ex2``, ``tanh``) are here as exact as float64 has them.
"""

from typing import NamedTuple

import numpy as np
from numba import types

from gpu.interpreter.bits import float64_to_bits
from gpu.interpreter.formats import EVEN, INFINITE, bfloat16_value, float16_value, put_together, take_apart
from gpu.interpreter.jit import inlined, jit
from gpu.interpreter.rounding import fused

__all__ = ["OPERATIONS", "SET", "SETP", "Rule", "holds", "result"]

OPERATIONS = ("add", "sub", "mul", "fma", "neg", "abs", "min", "max", "ex2", "tanh", "setp", "set")
_ADD, _SUB, _MUL, _FMA, _NEG, _ABS, _MIN, _MAX, _EX2, _TANH, SETP, SET = range(len(OPERATIONS))
_NAN, _SIGN, _MAGNITUDE = np.uint64(0x7FFF), np.uint64(0x8000), np.uint64(0x7FFF)
_ONE, _NONE = np.uint64(1), np.uint64(0)


class Rule(NamedTuple):
    """An instruction."""

    operation: int
    brain: int  # bfloat16, not float16
    pair: int
    ftz: int
    sat: int
    relu: int
    nan: int  # a NaN among the operands of min and max is the result
    xorsign: int
    accepted: int  # the relations: 1 less, 2 equal, 4 greater, 8 unordered
    logic: int
    true: int  # what ``set`` writes where the relation holds


@inlined
def _flushed(bits, rule):
    """Return 16 bits of a register, a subnormal number as a zero where it is flushed."""
    exponent = np.uint64(0x7F80) if rule.brain else np.uint64(0x7C00)
    return bits & (_SIGN if rule.ftz and bits & exponent == 0 else _SIGN | _MAGNITUDE)


@inlined
def _number(bits, rule):
    """Return the low 16 bits of a register as a float64."""
    low = _flushed(bits, rule)
    return np.float64(bfloat16_value(low) if rule.brain else float16_value(low))


@jit
def _rounded(x, rule):
    """Return the 16 bits of the nearest number, after ``.ftz``, ``.sat`` and ``.relu``."""
    if x != x:
        return _NONE if rule.sat else _NAN
    if x <= 0 and (rule.sat or rule.relu):
        return _NONE
    if rule.sat:
        x = min(x, 1.0)
    exponent_bits, mantissa_bits = (8, 7) if rule.brain else (5, 10)
    negative, kind, magnitude, exponent = take_apart(float64_to_bits(x), 11, 52)
    if kind == INFINITE:
        magnitude, exponent = _ONE, 1024  # beyond every format
    bits = put_together(negative, magnitude, exponent, exponent_bits, mantissa_bits, EVEN, False)
    return _flushed(bits, rule)


@jit
def _linear(rule, a, b, c):
    """Return a sum, a product or both; -0 adds nothing to any product."""
    x, y = _number(a, rule), _number(b, rule)
    if rule.operation == _ADD:
        return _rounded(fused(x, 1.0, y), rule)
    if rule.operation == _SUB:
        return _rounded(fused(x, 1.0, -y), rule)
    return _rounded(fused(x, y, -0.0 if rule.operation == _MUL else _number(c, rule)), rule)


@inlined
def _rank(bits):
    """Return the place of a number in the order of all, -0 before 0."""
    return bits | _SIGN if bits & _SIGN == 0 else bits ^ np.uint64(0xFFFF)


@jit
def _ordered(rule, a, b):
    """Return the smaller or larger number."""
    x, y = _flushed(a, rule), _flushed(b, rule)
    sign = (x ^ y) & _SIGN
    if rule.xorsign:
        x, y = x & _MAGNITUDE, y & _MAGNITUDE
    infinite = np.uint64(0x7F80) if rule.brain else np.uint64(0x7C00)
    no_x, no_y = x & _MAGNITUDE > infinite, y & _MAGNITUDE > infinite
    if (no_x and no_y) or (rule.nan and (no_x or no_y)):
        return _NAN
    first = no_y or (not no_x and (_rank(x) < _rank(y)) == (rule.operation == _MIN))
    chosen = x if first else y
    return chosen & _MAGNITUDE | sign if rule.xorsign else chosen


@jit
def result(rule, a, b, c):
    """Return the 16 bits that an instruction makes of the low 16 of its operands."""
    operation = rule.operation
    if operation <= _FMA:
        return _linear(rule, a, b, c)
    if operation == _NEG:
        return _flushed(a, rule) ^ _SIGN
    if operation == _ABS:
        return _flushed(a, rule) & _MAGNITUDE
    if operation <= _MAX:
        return _ordered(rule, a, b)
    x = _number(a, rule)
    return _rounded(np.exp2(x) if operation == _EX2 else np.tanh(x), rule)


@inlined
def holds(rule, a, b):
    """Return 1 where two numbers stand in an accepted relation, else 0."""
    x, y = _number(a, rule), _number(b, rule)
    relation = (x < y) * 1 + (x == y) * 2 + (x > y) * 4
    return types.uint64(((relation if relation else 8) & rule.accepted) != 0)
