"""``cvt``: every conversion among integers of 8 to 64 bits and floats of 8 to 64 bits, with PTX's rounding and limits.

The rules are those of the PTX ISA 9.1. A float is clamped to the range of an integer; NaN becomes 0, or the integer's
top bit alone where a float64 or a 64-bit integer takes part. NaN of a float is the canonical one. ``.ftz`` flushes
subnormal float32 on both sides, ``.sat`` clamps a float to [0, 1] and NaN to 0, ``.relu`` lifts what is negative to 0,
``.satfinite`` ends at the largest number. In a pair the first operand is the upper half.
"""

import functools
from itertools import accumulate

import numpy as np
from numba import types

from gpu.interpreter.bits import bits_to_float32, float32_to_bits
from gpu.interpreter.cast import Rule, cast, extended, low
from gpu.interpreter.formats import (
    AWAY,
    DOWN,
    EVEN,
    UP,
    ZERO,
    bfloat16_of,
    bfloat16_value,
    float16_of,
    float16_value,
)
from gpu.interpreter.grammar import expand
from gpu.interpreter.jit import inlined, jit
from gpu.interpreter.lanes import LANES, OUT, settle
from refimpl.contract import host

__all__ = ["catalogue", "code_of", "execute"]

_GRAMMAR = """
    cvt{.sat}.int.int
    cvt.whole{.ftz}{.sat}.int.f32       cvt.whole{.sat}.int.f64     cvt.whole{.sat}.int.half
    cvt.round{.ftz}{.sat}.f32.int       cvt.round{.sat}.f64.int     cvt.round{.sat}.f16.int     cvt.round.bf16.int
    cvt{.whole}{.ftz}{.sat}.f32.f32     cvt{.whole}{.sat}.f64.f64   cvt{.whole}{.sat}.f16.f16   cvt{.whole}.bf16.bf16
    cvt{.ftz}{.sat}.f32.half            cvt{.ftz}{.sat}.f64.f32     cvt{.sat}.f64.half
    cvt.round{.ftz}{.sat}.f32.f64       cvt.round{.ftz}{.sat}.f16.f32                           cvt.round{.ftz}.bf16.f32
    cvt.round{.sat}.f16.f64             cvt.round{.sat}.f16.bf16    cvt.round.bf16.f64          cvt.round.bf16.f16
    cvt.near{.relu}{.satfinite}.half.f32    cvt.near{.relu}{.satfinite}.halves.f32
    cvt.rna{.satfinite}.tf32.f32        cvt.near{.satfinite}{.relu}.tf32.f32
    cvt.rn.satfinite{.relu}.bytes.f32   cvt.rn.satfinite{.relu}.bytes.halves    cvt.rn{.relu}.f16x2.bytes
"""
_MODES = {"rn": EVEN, "rz": ZERO, "rm": DOWN, "rp": UP, "rna": AWAY, "rni": EVEN, "rzi": ZERO, "rmi": DOWN, "rpi": UP}
_INTEGERS = {f"{sign}{bits}": (0, bits) for sign in "us" for bits in (8, 16, 32, 64)}
_FLOATS = {
    "f64": (11, 52), "f32": (8, 23), "tf32": (8, 10), "f16": (5, 10), "bf16": (8, 7), "e4m3": (4, 3), "e5m2": (5, 2),
}  # fmt: skip
_LISTS = {
    "int": tuple(_INTEGERS), "half": ("f16", "bf16"), "halves": ("f16x2", "bf16x2"), "bytes": ("e4m3x2", "e5m2x2"),
    "round": ("rn", "rz", "rm", "rp"), "near": ("rn", "rz"), "whole": ("rni", "rzi", "rmi", "rpi"),
}  # fmt: skip
_FULL = np.uint64(0xFFFFFFFFFFFFFFFF)
_TRUNCATE, _WIDEN, _NARROW, _FROM_INTEGER, _TO_WHOLE, _ANY = range(6)  # the loops: one for all, five for what is common
_SIZES = (3, 2, 4, 7, 1, 4, 7, 1, 3, 1, 1, 1, 1, 1, 7)
_PLACES = tuple(accumulate(_SIZES, initial=0))
_WIDTH = _PLACES[14]
_FLAGS = ("sat", "ftz", "relu", "satfinite")


def _rule(opcode: str) -> Rule:
    """Read an opcode that the grammar has."""
    *modifiers, to, source = opcode.split(".")[1:]
    mode = next((_MODES[name] for name in modifiers if name in _MODES), EVEN)
    whole = any(name in _LISTS["whole"] for name in modifiers)
    flags = [name in modifiers for name in _FLAGS]
    pair = to.endswith("x2") + source.endswith("x2")
    plain = not any(flags) and to not in ("tf32", "e4m3x2", "e5m2x2") and source not in ("e4m3x2", "e5m2x2")
    way = _ANY
    if plain and source in _INTEGERS and to in _INTEGERS:
        way = _TRUNCATE
    elif plain and to == "f32" and source in _LISTS["half"]:
        way = _WIDEN
    elif plain and source == "f32" and to.removesuffix("x2") in _LISTS["half"] and mode == EVEN:
        way = _NARROW
    elif plain and source in _INTEGERS and to == "f32" and mode == EVEN:
        way = _FROM_INTEGER
    elif plain and source == "f32" and whole and to in ("s32", "u32", "f32"):
        way = _TO_WHOLE
    kinds = _INTEGERS | _FLOATS
    source, to = source.removesuffix("x2"), to.removesuffix("x2")
    return Rule(way, pair, *kinds[source], source[0] == "s", *kinds[to], to[0] == "s", mode, whole, *flags, 0)


def _code(rule: Rule) -> int:
    """Return a rule as one number."""
    return sum(int(part) << place for part, place in zip(rule, _PLACES, strict=False))


@functools.cache
@host
def catalogue() -> dict[str, int]:
    """Return every ``cvt`` there is, with its code."""
    return {opcode: _code(_rule(opcode)) for opcode in expand(_GRAMMAR, _LISTS)}


@host
def code_of(opcode: str, width: int) -> int | None:
    """Return the code of a ``cvt`` into a register of ``width`` bits, or None.

    >>> code_of("cvt.rn.bf16x2.f32", 32) is not None, code_of("cvt.bf16x2.f32", 32)
    (True, None)
    """
    code = catalogue().get(opcode)
    return code if code is None else code | width << _WIDTH


@inlined
def _field(code, index):
    return (code >> _PLACES[index]) & ((1 << _SIZES[index]) - 1)


@jit
def _read(code):
    """Return the rule of a code."""
    return Rule(
        _field(code, 0), _field(code, 1), _field(code, 2), _field(code, 3), _field(code, 4),
        _field(code, 5), _field(code, 6), _field(code, 7), _field(code, 8), _field(code, 9),
        _field(code, 10), _field(code, 11), _field(code, 12), _field(code, 13), _field(code, 14),
    )  # fmt: skip


@jit
def execute(regs, rows, mask, code):
    """Run a ``cvt`` in the lanes of a mask."""
    rule = _read(code)
    out, source, second = regs[OUT], regs[rows[1]], regs[rows[2 if rule.pair == 1 else 1]]
    if rule.way == _TRUNCATE:
        _truncate(rule, out, source)
    elif rule.way == _WIDEN:
        _widen(rule, out, source)
    elif rule.way == _NARROW:
        _narrow(rule, out, source, second)
    elif rule.way == _FROM_INTEGER:
        _from_integer(rule, out, source)
    elif rule.way == _TO_WHOLE:
        _to_whole(rule, out, source)
    else:
        _any(rule, out, source, second, mask)
    settle(regs, rows[0], mask, _FULL)


@inlined
def _signed(bits, rule):
    """Return an integer as the destination register holds it."""
    if rule.to_signed and rule.width > rule.to_mantissa:
        return low(types.uint64(extended(bits, rule.to_mantissa)), rule.width)
    return low(bits, rule.to_mantissa)


@inlined
def _whole_number(bits, rule):
    """Return an integer of the source type in 64 bits."""
    if rule.from_signed:
        return extended(bits, rule.from_mantissa)
    return types.int64(low(bits, rule.from_mantissa))


@jit
def _truncate(rule, out, source):
    """Convert an integer to an integer: cut off, or extended by its own sign."""
    for lane in range(LANES):
        out[lane] = _signed(types.uint64(_whole_number(source[lane], rule)), rule)


@jit
def _widen(rule, out, source):
    """Convert a 16-bit float to float32."""
    for lane in range(LANES):
        value = float16_value(source[lane]) if rule.from_exponent == 5 else bfloat16_value(source[lane])
        out[lane] = types.uint64(float32_to_bits(value))


@inlined
def _half(bits, rule):
    value = bits_to_float32(bits)
    return types.uint64(float16_of(value) if rule.to_exponent == 5 else bfloat16_of(value))


@jit
def _narrow(rule, out, source, second):
    """Convert float32 to the nearest 16-bit float, or two to a pair."""
    for lane in range(LANES):
        bits = _half(source[lane], rule)
        if rule.pair:
            bits = bits << types.uint64(16) | _half(second[lane], rule)
        out[lane] = bits


@jit
def _from_integer(rule, out, source):
    """Convert an integer to the nearest float32."""
    for lane in range(LANES):
        if rule.from_signed or rule.from_mantissa < 64:
            value = np.float32(_whole_number(source[lane], rule))
        else:
            value = np.float32(source[lane])
        out[lane] = types.uint64(float32_to_bits(value))


@inlined
def _to_integral(x, mode):
    """Return a float64 rounded to a whole number."""
    if mode == EVEN:
        return np.rint(x)
    if mode == ZERO:
        return np.trunc(x)
    return np.floor(x) if mode == DOWN else np.ceil(x)


@jit
def _to_whole(rule, out, source):
    """Convert float32 to a 32-bit integer, or to a whole float32."""
    least = -2147483648.0 if rule.to_signed else 0.0
    most = 2147483647.0 if rule.to_signed else 4294967295.0
    for lane in range(LANES):
        value = bits_to_float32(source[lane])
        whole = _to_integral(np.float64(value), rule.mode)
        if rule.to_exponent:
            bits = types.uint64(float32_to_bits(np.float32(whole)) if value == value else types.uint32(0x7FFFFFFF))
        else:
            clamped = min(max(whole, least), most) if value == value else 0.0
            bits = low(types.uint64(types.int64(clamped)), 32)
        out[lane] = bits


@jit
def _any(rule, out, source, second, mask):
    """Convert whatever there is, one lane after the other."""
    from_bits = types.uint64(1 + rule.from_exponent + rule.from_mantissa)
    to_bits = types.uint64(1 + rule.to_exponent + rule.to_mantissa)
    for lane in range(LANES):
        if (mask >> lane) & 1:
            if rule.pair == 0:
                bits = cast(source[lane], rule)
                out[lane] = bits if rule.to_exponent else _signed(bits, rule)
            elif rule.pair == 1:
                out[lane] = cast(source[lane], rule) << to_bits | cast(second[lane], rule)
            else:
                upper = cast(source[lane] >> from_bits, rule)
                out[lane] = upper << to_bits | cast(source[lane], rule)
