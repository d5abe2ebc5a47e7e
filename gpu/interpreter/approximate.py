"""The approximate functions of the special function unit, here rounded from float64: within their documented error."""

import functools

import numpy as np

from gpu.interpreter.bits import bits_to_float32, bits_to_float64, float32_to_bits, float64_to_bits
from gpu.interpreter.grammar import expand
from gpu.interpreter.jit import inlined, jit
from gpu.interpreter.lanes import LANES, OUT, settle
from refimpl.contract import host

__all__ = ["catalogue", "code_of", "execute"]

_GRAMMAR = """
    CURVE.approx{.ftz}.f32 div.approx{.ftz}.f32 div.full{.ftz}.f32 rcp.approx.ftz.f64 rsqrt.approx{.ftz}.f64
"""
_LISTS = {"CURVE": ("rcp", "sqrt", "rsqrt", "ex2", "lg2", "sin", "cos", "tanh")}
_NAMES = ("rcp", "sqrt", "rsqrt", "ex2", "lg2", "sin", "cos", "tanh", "div")
_RCP, _SQRT, _RSQRT, _EX2, _LG2, _SIN, _COS, _TANH, _DIV = range(len(_NAMES))
_INFINITE, _SIGN = np.uint64(0x7F800000), np.uint64(0x80000000)


@functools.cache
@host
def catalogue() -> frozenset[str]:
    """Return every opcode of the family."""
    return frozenset(expand(_GRAMMAR, _LISTS))


@host
def code_of(opcode: str, width: int) -> int | None:
    """Return the code of an opcode: the operation, whether it flushes, whether it is on float64."""
    if opcode not in catalogue():
        return None
    name, *words = opcode.split(".")
    return _NAMES.index(name) | ("ftz" in words) << 8 | ("f64" in words) << 9


@jit
def execute(regs, rows, mask, code):
    """Run one instruction."""
    operation, flush, wide = code & 255, (code >> 8) & 1, (code >> 9) & 1
    out, a, b = regs[OUT], regs[rows[1]], regs[rows[2]]
    for lane in range(LANES):
        if (mask >> lane) & 1:
            if wide:
                x = bits_to_float64(a[lane])
                out[lane] = float64_to_bits(1 / x if operation == _RCP else 1 / np.sqrt(x))
            else:
                x, y = _number(a[lane], flush), _number(b[lane], flush)
                bits = np.uint64(float32_to_bits(np.float32(_value(operation, x, y))))
                out[lane] = bits & _SIGN if flush and not bits & _INFINITE else bits
    settle(regs, rows[0], mask, np.uint64(0xFFFFFFFFFFFFFFFF))


@inlined
def _number(bits, flush):
    """Return a float32 as float64; a subnormal one as zero where it is flushed."""
    return np.float64(bits_to_float32(bits & _SIGN if flush and not bits & _INFINITE else bits))


@jit
def _value(operation, x, y):
    if operation == _RCP:
        return 1 / x
    if operation == _SQRT:
        return np.sqrt(x)
    if operation == _RSQRT:
        return 1 / np.sqrt(x)
    if operation == _EX2:
        return np.exp2(x)
    if operation == _LG2:
        return np.log2(x)
    if operation == _SIN:
        return np.sin(x)
    if operation == _COS:
        return np.cos(x)
    return np.tanh(x) if operation == _TANH else x / y
