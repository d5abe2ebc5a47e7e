"""Floating-point arithmetic: IEEE results, in float32 in any of the four roundings, in float64 to the nearest."""

import functools

import numpy as np

from gpu.interpreter.bits import (
    bits_to_float32,
    bits_to_float64,
    float32_to_bits,
    float64_to_bits,
    fma32,
    fma64,
)  # fmt: skip
from gpu.interpreter.grammar import expand
from gpu.interpreter.jit import jit
from gpu.interpreter.lanes import LANES, OUT, SCRATCH, settle
from gpu.interpreter.rounding import directed
from refimpl.contract import host

__all__ = ["catalogue", "code_of", "execute"]

_GRAMMAR = """
    LINEAR{.ROUND}{.ftz}{.sat}.f32  LINEAR{.rn}.f64     FUSED.ROUND{.ftz}{.sat}.f32     FUSED.rn.f64
    ROOT.ROUND{.ftz}.f32            ROOT.rn.f64         ORDER{.ftz}{.NaN}.f32           ORDER.f64
    SIGN{.ftz}.f32                  SIGN.f64            copysign.f32                    copysign.f64
"""
_ROUNDINGS = ("rn", "rz", "rm", "rp")
_LISTS = {
    "LINEAR": ("add", "sub", "mul"), "FUSED": ("fma", "mad"), "ROOT": ("div", "rcp", "sqrt"), "ROUND": _ROUNDINGS,
    "ORDER": ("min", "max"), "SIGN": ("abs", "neg"),
}  # fmt: skip
_NAMES = ("add", "sub", "mul", "fma", "div", "rcp", "sqrt", "min", "max", "abs", "neg", "copysign")
_ADD, _SUB, _MUL, _FMA, _DIV, _RCP, _SQRT, _MIN, _MAX, _ABS, _NEG, _COPYSIGN = range(len(_NAMES))
_SIGN, _NAN = np.uint64(0x80000000), np.uint64(0x7FFFFFFF)
_SIGN64, _NAN64 = np.uint64(0x8000000000000000), np.uint64(0x7FFFFFFFFFFFFFFF)
_INFINITE, _INFINITE64 = np.uint64(0x7F800000), np.uint64(0x7FF0000000000000)


@functools.cache
@host
def catalogue() -> frozenset[str]:
    """Return every opcode of the family."""
    return frozenset(expand(_GRAMMAR, _LISTS))


@host
def code_of(opcode: str, width: int) -> int | None:
    """Return the code of an opcode: the operation, the rounding, flushes, saturates, keeps NaN, is float64."""
    if opcode not in catalogue():
        return None
    name, *words = opcode.split(".")
    operation = _NAMES.index("fma" if name == "mad" else name)
    rounding = _ROUNDINGS.index(words[0]) if words[0] in _ROUNDINGS else 0
    flags = ("ftz" in words) | ("sat" in words) << 1 | ("NaN" in words) << 2 | ("f64" in words) << 3
    return operation | rounding << 8 | flags << 10


@jit
def execute(regs, rows, mask, code):
    """Run one instruction."""
    operation, rounding, flush, saturate = code & 255, (code >> 8) & 3, (code >> 10) & 1, (code >> 11) & 1
    out, a, b, c = regs[OUT], regs[rows[1]], regs[rows[2]], regs[rows[3]]
    if (code >> 13) & 1:
        if operation <= _SQRT:
            _arithmetic64(operation, out, a, b, c)
        else:
            _signs(operation, out, a, b, _SIGN64, _INFINITE64, _NAN64, False)
        settle(regs, rows[0], mask, np.uint64(0xFFFFFFFFFFFFFFFF))
        return
    if flush:
        a, b, c = _flush(regs[SCRATCH], a), _flush(regs[SCRATCH + 1], b), _flush(regs[SCRATCH + 2], c)
    if rounding:
        directed(operation, rounding, out, a, b, c)
    elif operation <= _SQRT:
        _arithmetic(operation, out, a, b, c)
    else:
        _signs(operation, out, a, b, _SIGN, _INFINITE, _NAN, (code >> 12) & 1)
    if flush:
        _flush(out, out)
    if saturate:
        _saturate(out)
    settle(regs, rows[0], mask, np.uint64(0xFFFFFFFF))


@jit
def _flush(out, a):
    """Write the bits of float32 numbers, the subnormal ones as zeros."""
    for lane in range(LANES):
        out[lane] = a[lane] if a[lane] & _INFINITE else a[lane] & _SIGN
    return out


@jit
def _saturate(out):
    """Clamp to [0, 1]; what is not a number becomes 0."""
    for lane in range(LANES):
        value = bits_to_float32(out[lane])
        value = min(value, np.float32(1)) if value > np.float32(0) else np.float32(0)
        out[lane] = float32_to_bits(value)


@jit
def _arithmetic(operation, out, a, b, c):
    if operation == _ADD:
        for lane in range(LANES):
            out[lane] = float32_to_bits(bits_to_float32(a[lane]) + bits_to_float32(b[lane]))
    elif operation == _SUB:
        for lane in range(LANES):
            out[lane] = float32_to_bits(bits_to_float32(a[lane]) - bits_to_float32(b[lane]))
    elif operation == _MUL:
        for lane in range(LANES):
            out[lane] = float32_to_bits(bits_to_float32(a[lane]) * bits_to_float32(b[lane]))
    elif operation == _FMA:
        for lane in range(LANES):
            out[lane] = float32_to_bits(
                fma32(bits_to_float32(a[lane]), bits_to_float32(b[lane]), bits_to_float32(c[lane]))
            )
    elif operation == _DIV:
        for lane in range(LANES):
            out[lane] = float32_to_bits(bits_to_float32(a[lane]) / bits_to_float32(b[lane]))
    elif operation == _RCP:
        for lane in range(LANES):
            out[lane] = float32_to_bits(np.float32(1) / bits_to_float32(a[lane]))
    else:
        for lane in range(LANES):
            out[lane] = float32_to_bits(np.sqrt(bits_to_float32(a[lane])))


@jit
def _arithmetic64(operation, out, a, b, c):
    if operation == _ADD:
        for lane in range(LANES):
            out[lane] = float64_to_bits(bits_to_float64(a[lane]) + bits_to_float64(b[lane]))
    elif operation == _SUB:
        for lane in range(LANES):
            out[lane] = float64_to_bits(bits_to_float64(a[lane]) - bits_to_float64(b[lane]))
    elif operation == _MUL:
        for lane in range(LANES):
            out[lane] = float64_to_bits(bits_to_float64(a[lane]) * bits_to_float64(b[lane]))
    elif operation == _FMA:
        for lane in range(LANES):
            out[lane] = float64_to_bits(
                fma64(bits_to_float64(a[lane]), bits_to_float64(b[lane]), bits_to_float64(c[lane]))
            )
    elif operation == _DIV:
        for lane in range(LANES):
            out[lane] = float64_to_bits(bits_to_float64(a[lane]) / bits_to_float64(b[lane]))
    elif operation == _RCP:
        for lane in range(LANES):
            out[lane] = float64_to_bits(np.float64(1) / bits_to_float64(a[lane]))
    else:
        for lane in range(LANES):
            out[lane] = float64_to_bits(np.sqrt(bits_to_float64(a[lane])))


@jit
def _signs(operation, out, a, b, sign, infinite, nan, keep_nan):
    """Change or copy signs, or take the smaller or larger number, on the bits: those of a float are ordered like it."""
    for lane in range(LANES):
        x, y = a[lane], b[lane]
        if operation == _ABS:
            out[lane] = x & ~sign
        elif operation == _NEG:
            out[lane] = x ^ sign
        elif operation == _COPYSIGN:
            out[lane] = (y & ~sign) | (x & sign)
        else:
            x_is_nan, y_is_nan = (x & ~sign) > infinite, (y & ~sign) > infinite
            less = (x & sign) > (y & sign) if (x ^ y) & sign else (x > y) if x & sign else (x < y)
            if x_is_nan or y_is_nan:
                out[lane] = nan if keep_nan or (x_is_nan and y_is_nan) else y if x_is_nan else x
            else:
                out[lane] = x if less == (operation == _MIN) else y
