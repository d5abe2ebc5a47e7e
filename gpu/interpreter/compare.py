"""Comparisons, choices by a predicate, and tests of what kind of float a number is."""

import functools

import numpy as np

from gpu.interpreter.bits import bits_to_float32, bits_to_float64
from gpu.interpreter.grammar import expand
from gpu.interpreter.jit import inlined, jit
from gpu.interpreter.lanes import LANES, OUT, settle, signed
from refimpl.contract import host

__all__ = ["catalogue", "code_of", "execute"]

_GRAMMAR = """
    setp.SAME{.LOGIC}.BITS          setp.ORDER{.LOGIC}.SIGNED               setp.ORDER{.LOGIC}.UNSIGNED
    setp.UPPER{.LOGIC}.UNSIGNED     setp.FLOAT{.LOGIC}{.ftz}.f32            setp.FLOAT{.LOGIC}.f64
    set.SAME{.LOGIC}.WORD.BITS      set.ORDER{.LOGIC}.WORD.SIGNED           set.ORDER{.LOGIC}.WORD.UNSIGNED
    set.UPPER{.LOGIC}.WORD.UNSIGNED set.FLOAT{.LOGIC}{.ftz}.WORD.f32        set.FLOAT{.LOGIC}.WORD.f64
    selp.ANY    slct.ANY.s32    slct.ANY.f32    testp.KIND.f32  testp.KIND.f64
"""
_LESS, _EQUAL, _GREATER, _UNORDERED = 1, 2, 4, 8
_RELATIONS = {"lt": 1, "eq": 2, "le": 3, "gt": 4, "ne": 5, "ge": 6, "lo": 1, "ls": 3, "hi": 4, "hs": 6}
_OF_FLOATS = {**{name + "u": accepted | _UNORDERED for name, accepted in _RELATIONS.items()}, "num": 7, "nan": 8}
_JOINS = {"and": 1, "or": 2, "xor": 3}
_TESTS = {"finite": 7, "infinite": 8, "number": 15, "notanumber": 16, "normal": 4, "subnormal": 2}
_WIDTHS = {"pred": 1, **{f"{letter}{bits}": bits for letter in "bus" for bits in (16, 32, 64)}, "f32": 32, "f64": 64}
_LISTS = {
    "SAME": ("eq", "ne"), "ORDER": ("eq", "ne", "lt", "le", "gt", "ge"), "UPPER": ("lo", "ls", "hi", "hs"),
    "FLOAT": ("eq", "ne", "lt", "le", "gt", "ge", "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan"),
    "LOGIC": ("and", "or", "xor"), "BITS": ("b16", "b32", "b64"), "SIGNED": ("s16", "s32", "s64"),
    "UNSIGNED": ("u16", "u32", "u64"), "WORD": ("u32", "s32", "f32"), "KIND": tuple(_TESTS),
    "ANY": ("b16", "b32", "b64", "u16", "u32", "u64", "s16", "s32", "s64", "f32", "f64"),
}  # fmt: skip
_SETP, _SET, _SELP, _SLCT, _TESTP = range(5)
_FULL = np.uint64(0xFFFFFFFFFFFFFFFF)
_NONE, _ONE = np.uint64(0), np.uint64(1)


@functools.cache
@host
def catalogue() -> frozenset[str]:
    """Return every opcode of the family."""
    return frozenset(expand(_GRAMMAR, _LISTS))


@host
def code_of(opcode: str, width: int) -> int | None:
    """Return the code of an opcode: the operation, what is compared and how, and what the result looks like."""
    if opcode not in catalogue():
        return None
    name, *words, kind = opcode.split(".")
    bits = _WIDTHS[kind] | {"f": 1, "s": 2}.get(kind[0], 0) << 8
    if name == "selp":
        return _SELP | bits << 8
    if name == "slct":
        return _SLCT | (_WIDTHS[words[0]] | (kind == "f32") << 8) << 8
    if name == "testp":
        return _TESTP | bits << 8 | _TESTS[words[0]] << 20
    accepted = (_OF_FLOATS if kind[0] == "f" and words[0] in _OF_FLOATS else _RELATIONS)[words[0]]
    join = next((_JOINS[word] for word in words if word in _JOINS), 0)
    details = accepted << 20 | join << 24 | ("ftz" in words) << 26 | (words[-1] == "f32") << 27
    return (_SET if name == "set" else _SETP) | bits << 8 | details


@jit
def execute(regs, rows, mask, code):
    """Run one instruction."""
    operation, bits, kind = code & 255, (code >> 8) & 255, (code >> 16) & 3
    accepted, keep = (code >> 20) & 31, _FULL >> np.uint64(64 - bits)
    out = regs[OUT]
    if operation <= _SET:
        _compare(out, regs[rows[2]], regs[rows[3]], bits, kind, accepted & 15, (code >> 26) & 1)
        _join(regs, rows, mask, (code >> 24) & 3)
        if operation == _SET:
            one = np.uint64(0x3F800000) if (code >> 27) & 1 else np.uint64(0xFFFFFFFF)
            for lane in range(LANES):
                out[lane] *= one
            settle(regs, rows[0], mask, np.uint64(0xFFFFFFFF))
        return
    a, b, c = regs[rows[1]], regs[rows[2]], regs[rows[3]]
    if operation == _SELP:
        for lane in range(LANES):
            out[lane] = a[lane] if c[lane] else b[lane]
    elif operation == _SLCT:
        _select(out, a, b, c, kind)
    else:
        _test(out, a, bits, accepted)
    settle(regs, rows[0], mask, keep)


@inlined
def _flushed(word, flush):
    """Return the bits of a float32, a subnormal one as a zero."""
    return word & np.uint64(0x80000000) if flush and not word & np.uint64(0x7F800000) else word


@jit
def _compare(out, a, b, bits, kind, accepted, flush):
    """Write 1 where the two numbers stand in an accepted relation, else 0."""
    if kind == 1 and bits == 32:
        for lane in range(LANES):
            x, y = bits_to_float32(_flushed(a[lane], flush)), bits_to_float32(_flushed(b[lane], flush))
            relation = (x < y) * 1 + (x == y) * 2 + (x > y) * 4
            out[lane] = np.uint64(((relation if relation else 8) & accepted) != 0)
    elif kind == 1:
        for lane in range(LANES):
            x, y = bits_to_float64(a[lane]), bits_to_float64(b[lane])
            relation = (x < y) * 1 + (x == y) * 2 + (x > y) * 4
            out[lane] = np.uint64(((relation if relation else 8) & accepted) != 0)
    else:
        shift = 64 - bits if kind == 2 else 0
        flip = _ONE << np.uint64(63) if kind == 0 and bits == 64 else _NONE
        for lane in range(LANES):
            i, j = signed(a[lane] ^ flip, shift), signed(b[lane] ^ flip, shift)
            out[lane] = np.uint64((((i < j) * 1 + (i == j) * 2 + (i > j) * 4) & accepted) != 0)


@jit
def _join(regs, rows, mask, join):
    """Combine the result with a predicate, and write it and its opposite."""
    out, first, second, other = regs[OUT], regs[rows[0]], regs[rows[1]], regs[rows[4]]
    for lane in range(LANES):
        result, opposite, c = out[lane], out[lane] ^ _ONE, other[lane]
        if join == 1:
            result, opposite = result & c, opposite & c
        elif join == 2:
            result, opposite = result | c, opposite | c
        elif join == 3:
            result, opposite = result ^ c, opposite ^ c
        if (mask >> lane) & 1:
            first[lane] = result
            second[lane] = opposite
        out[lane] = result


@jit
def _select(out, a, b, c, is_float):
    """Choose by a sign: what is not negative, and -0, takes the first."""
    for lane in range(LANES):
        if is_float:
            out[lane] = a[lane] if bits_to_float32(c[lane]) >= np.float32(0) else b[lane]
        else:
            out[lane] = b[lane] if c[lane] & np.uint64(0x80000000) else a[lane]


@jit
def _test(out, a, bits, accepted):
    """Write 1 where a float is of an accepted kind: 1 zero, 2 subnormal, 4 normal, 8 infinite, 16 not a number."""
    exponent, fraction = (np.uint64(255), np.uint64(23)) if bits == 32 else (np.uint64(2047), np.uint64(52))
    for lane in range(LANES):
        power = (a[lane] >> fraction) & exponent
        rest = a[lane] & ((_ONE << fraction) - _ONE)
        kind = (16 if rest else 8) if power == exponent else 4 if power else 2 if rest else 1
        out[lane] = np.uint64((kind & accepted) != 0)
