"""``cvt``: every conversion among integers of 8 to 64 bits and floats of 8 to 64 bits, with PTX's rounding and limits.

The rules are those of the PTX ISA 9.1. A float is clamped to the range of an integer; NaN becomes 0, or the integer's
top bit alone where a float64 or a 64-bit integer takes part. NaN of a float is the canonical one. ``.ftz`` flushes
subnormal float32 on both sides, ``.sat`` clamps a float to [0, 1] and NaN to 0, ``.relu`` lifts what is negative to 0,
``.satfinite`` ends at the largest number. In a pair the first operand is the upper half.
"""

import functools
from itertools import accumulate

import numpy as np

from gpu.interpreter.cast import Rule
from gpu.interpreter.formats import AWAY, DOWN, EVEN, UP, ZERO
from gpu.interpreter.grammar import expand
from gpu.interpreter.jit import jit, spliced
from gpu.interpreter.lanes import OUT, settle
from gpu.interpreter.ways import clamp, convert_any, from_integer, narrow, to_whole, truncate, widen
from refimpl.contract import host

__all__ = ["catalogue", "code_of", "execute"]

_GRAMMAR = """
    cvt{.sat}.INT.INT
    cvt.WHOLE{.ftz}{.sat}.INT.f32       cvt.WHOLE{.sat}.INT.f64     cvt.WHOLE{.sat}.INT.HALF
    cvt.ROUND{.ftz}{.sat}.f32.INT       cvt.ROUND{.sat}.f64.INT     cvt.ROUND{.sat}.f16.INT     cvt.ROUND.bf16.INT
    cvt{.WHOLE}{.ftz}{.sat}.f32.f32     cvt{.WHOLE}{.sat}.f64.f64   cvt{.WHOLE}{.sat}.f16.f16   cvt{.WHOLE}.bf16.bf16
    cvt{.ftz}{.sat}.f32.HALF            cvt{.ftz}{.sat}.f64.f32     cvt{.sat}.f64.HALF
    cvt.ROUND{.ftz}{.sat}.f32.f64       cvt.ROUND{.ftz}{.sat}.f16.f32                           cvt.ROUND{.ftz}.bf16.f32
    cvt.ROUND{.sat}.f16.f64             cvt.ROUND{.sat}.f16.bf16    cvt.ROUND.bf16.f64          cvt.ROUND.bf16.f16
    cvt.NEAR{.relu}{.satfinite}.HALF.f32    cvt.NEAR{.relu}{.satfinite}.HALVES.f32
    cvt.rna{.satfinite}.tf32.f32        cvt.NEAR{.satfinite}{.relu}.tf32.f32
    cvt.rn.satfinite{.relu}.BYTES.f32   cvt.rn.satfinite{.relu}.BYTES.HALVES    cvt.rn{.relu}.f16x2.BYTES
"""
_MODES = {"rn": EVEN, "rz": ZERO, "rm": DOWN, "rp": UP, "rna": AWAY, "rni": EVEN, "rzi": ZERO, "rmi": DOWN, "rpi": UP}
_INTEGERS = {f"{sign}{bits}": (0, bits) for sign in "us" for bits in (8, 16, 32, 64)}
_FLOATS = {
    "f64": (11, 52), "f32": (8, 23), "tf32": (8, 10), "f16": (5, 10), "bf16": (8, 7), "e4m3": (4, 3), "e5m2": (5, 2),
}  # fmt: skip
_LISTS = {
    "INT": tuple(_INTEGERS), "HALF": ("f16", "bf16"), "HALVES": ("f16x2", "bf16x2"), "BYTES": ("e4m3x2", "e5m2x2"),
    "ROUND": ("rn", "rz", "rm", "rp"), "NEAR": ("rn", "rz"), "WHOLE": ("rni", "rzi", "rmi", "rpi"),
}  # fmt: skip
_FULL = np.uint64(0xFFFFFFFFFFFFFFFF)
_TRUNCATE, _WIDEN, _NARROW, _FROM_INTEGER, _TO_WHOLE, _CLAMP, _ANY = range(7)  # loops: one for all, six for the common
_SIZES = (3, 2, 4, 7, 1, 4, 7, 1, 3, 1, 1, 1, 1, 1, 7)
_PLACES = tuple(accumulate(_SIZES, initial=0))
_WIDTH = _PLACES[14]
_FLAGS = ("sat", "ftz", "relu", "satfinite")


def _rule(opcode: str) -> Rule:
    """Read an opcode that the grammar has."""
    *modifiers, to, source = opcode.split(".")[1:]
    mode = next((_MODES[name] for name in modifiers if name in _MODES), EVEN)
    whole = any(name in _LISTS["WHOLE"] for name in modifiers)
    flags = [name in modifiers for name in _FLAGS]
    pair = to.endswith("x2") + source.endswith("x2")
    plain = not any(flags) and to not in ("tf32", "e4m3x2", "e5m2x2") and source not in ("e4m3x2", "e5m2x2")
    way = _CLAMP if opcode == "cvt.sat.f32.f32" else _ANY
    if plain and source in _INTEGERS and to in _INTEGERS:
        way = _TRUNCATE
    elif plain and to == "f32" and source in _LISTS["HALF"]:
        way = _WIDEN
    elif plain and source == "f32" and to.removesuffix("x2") in _LISTS["HALF"] and mode == EVEN:
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


@spliced
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
        truncate(rule, out, source)
    elif rule.way == _WIDEN:
        widen(rule, out, source)
    elif rule.way == _NARROW:
        narrow(rule, out, source, second)
    elif rule.way == _FROM_INTEGER:
        from_integer(rule, out, source)
    elif rule.way == _TO_WHOLE:
        to_whole(rule, out, source)
    elif rule.way == _CLAMP:
        clamp(out, source)
    else:
        convert_any(rule, out, source, second, mask)
    settle(regs, rows[0], mask, _FULL)
