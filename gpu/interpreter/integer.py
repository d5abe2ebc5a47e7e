"""Integer arithmetic: sums, products, quotients, carries, for 16, 32 and 64 bits alike."""

import functools

import numpy as np

from gpu.interpreter.grammar import expand
from gpu.interpreter.jit import inlined, jit, spliced
from gpu.interpreter.lanes import CARRY, LANES, OUT, settle, signed
from refimpl.contract import host

__all__ = ["catalogue", "code_of", "execute"]

_GRAMMAR = """
    SUM.ANY         mul.PART.ANY    mul.wide.NARROW mad.PART.ANY    mad.wide.NARROW mul24.lo.WORD   mad24.lo.WORD
    sad.ANY         QUOTIENT.ANY    ORDER.ANY       SIGN.SIGNED
    SUM.cc.LONG     addc{.cc}.LONG  subc{.cc}.LONG  mad.PART.cc.LONG                madc.PART{.cc}.LONG
"""
_LISTS = {
    "ANY": ("s16", "u16", "s32", "u32", "s64", "u64"), "NARROW": ("s16", "u16", "s32", "u32"), "WORD": ("s32", "u32"),
    "LONG": ("s32", "u32", "s64", "u64"), "SIGNED": ("s16", "s32", "s64"), "SUM": ("add", "sub"),
    "QUOTIENT": ("div", "rem"), "ORDER": ("min", "max"), "SIGN": ("abs", "neg"), "PART": ("lo", "hi"),
}  # fmt: skip
_NAMES = (
    "add", "sub", "mul.lo", "mul.wide", "mad.lo", "mad.wide", "mul.hi", "mad.hi", "mul24.lo", "mad24.lo", "sad",
    "div", "rem", "min", "max", "abs", "neg",
    "add.cc", "addc", "addc.cc", "sub.cc", "subc", "subc.cc", "mad.lo.cc", "madc.lo", "madc.lo.cc",
    "mad.hi.cc", "madc.hi", "madc.hi.cc",
)  # fmt: skip
_OPERATIONS = {name: i for i, name in enumerate(_NAMES)}
(
    _ADD, _SUB, _MUL, _MUL_WIDE, _MAD, _MAD_WIDE, _HIGH, _MAD_HIGH, _MUL24, _MAD24, _SAD,
    _DIV, _REM, _MIN, _MAX, _ABS, _NEG,
    _ADD_CC, _ADDC, _ADDC_CC, _SUB_CC, _SUBC, _SUBC_CC, _MAD_CC, _MADC, _MADC_CC, _HIGH_CC, _HIGHC, _HIGHC_CC,
) = range(len(_NAMES))  # fmt: skip
_TYPES = {"s16": 16, "u16": 16, "s32": 32, "u32": 32, "s64": 64, "u64": 64}
_TOP = np.uint64(1 << 63)
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_FULL = np.uint64(0xFFFFFFFFFFFFFFFF)
_NONE, _ONE = np.uint64(0), np.uint64(1)


@functools.cache
@host
def catalogue() -> frozenset[str]:
    """Return every opcode of the family."""
    return frozenset(expand(_GRAMMAR, _LISTS))


@host
def code_of(opcode: str, width: int) -> int | None:
    """Return the code of an opcode: the operation, the shift that extends the sign, the width of type and result."""
    if opcode not in catalogue():
        return None
    name, _, kind = opcode.rpartition(".")
    bits = _TYPES[kind]
    narrow = 24 if "24" in name else bits
    shift = 64 - narrow if kind[0] == "s" else 0
    result = 2 * bits if name.endswith("wide") else bits
    return _OPERATIONS[name] | shift << 8 | bits << 16 | result << 24 | (kind == "u64") << 32


@jit
def execute(regs, rows, mask, code):
    """Run one instruction."""
    operation, shift, bits, result = code & 255, (code >> 8) & 255, (code >> 16) & 255, (code >> 24) & 255
    flip = _TOP if code >> 32 else _NONE
    a, b, c = regs[rows[1]], regs[rows[2]], regs[rows[3]]
    if operation <= _MAD_WIDE:
        _product(operation, regs[OUT], a, b, c, shift)
    elif operation <= _SAD:
        _upper(operation, regs[OUT], a, b, c, shift, bits, flip)
    elif operation <= _NEG:
        _choice(operation, regs[OUT], a, b, shift, flip)
    else:
        _carried(operation, regs[OUT], regs[CARRY], a, b, c, shift, bits, flip, mask)
    settle(regs, rows[0], mask, _FULL >> np.uint64(64 - result))


@spliced
def _product(operation, out, a, b, c, shift):
    if operation == _ADD:
        for lane in range(LANES):
            out[lane] = a[lane] + b[lane]
    elif operation == _SUB:
        for lane in range(LANES):
            out[lane] = a[lane] - b[lane]
    elif operation == _MUL:
        for lane in range(LANES):
            out[lane] = a[lane] * b[lane]
    elif operation == _MAD:
        for lane in range(LANES):
            out[lane] = a[lane] * b[lane] + c[lane]
    elif operation == _MUL_WIDE:
        for lane in range(LANES):
            out[lane] = np.uint64(signed(a[lane], shift) * signed(b[lane], shift))
    else:
        for lane in range(LANES):
            out[lane] = np.uint64(signed(a[lane], shift) * signed(b[lane], shift)) + c[lane]


@inlined
def _high64(x, y, flip):
    """Return the upper half of a product of 64-bit numbers, which have a sign where ``flip`` is 0."""
    x0, x1, y0, y1 = x & _LOW, x >> _HALF, y & _LOW, y >> _HALF
    middle = x1 * y0 + ((x0 * y0) >> _HALF)
    upper = x1 * y1 + (middle >> _HALF) + ((x0 * y1 + (middle & _LOW)) >> _HALF)
    if flip == _NONE:
        upper -= (y if x & _TOP else _NONE) + (x if y & _TOP else _NONE)
    return upper


@inlined
def _high(x, y, shift, bits, flip):
    """Return the upper half of a product."""
    if bits == 64:
        return _high64(x, y, flip)
    return np.uint64((signed(x, shift) * signed(y, shift)) >> bits)


@spliced
def _upper(operation, out, a, b, c, shift, bits, flip):
    if operation == _HIGH:
        for lane in range(LANES):
            out[lane] = _high(a[lane], b[lane], shift, bits, flip)
    elif operation == _MAD_HIGH:
        for lane in range(LANES):
            out[lane] = _high(a[lane], b[lane], shift, bits, flip) + c[lane]
    elif operation == _MUL24:
        for lane in range(LANES):
            out[lane] = np.uint64(_narrow(a[lane], shift) * _narrow(b[lane], shift))
    elif operation == _MAD24:
        for lane in range(LANES):
            out[lane] = np.uint64(_narrow(a[lane], shift) * _narrow(b[lane], shift)) + c[lane]
    else:
        for lane in range(LANES):
            x, y = signed(a[lane] ^ flip, shift), signed(b[lane] ^ flip, shift)
            out[lane] = np.uint64(max(x, y) - min(x, y)) + c[lane]


@inlined
def _narrow(word, shift):
    """Return the low 24 bits of a word, with a sign where ``shift`` says so."""
    return signed(word, 40) if shift else np.int64(word & np.uint64(0xFFFFFF))


@spliced
def _choice(operation, out, a, b, shift, flip):
    if operation == _DIV:
        for lane in range(LANES):
            out[lane] = _divide(a[lane], b[lane], shift, flip)
    elif operation == _REM:
        for lane in range(LANES):
            out[lane] = a[lane] - _divide(a[lane], b[lane], shift, flip) * b[lane] if b[lane] else a[lane]
    elif operation == _MIN:
        for lane in range(LANES):
            out[lane] = a[lane] if signed(a[lane] ^ flip, shift) < signed(b[lane] ^ flip, shift) else b[lane]
    elif operation == _MAX:
        for lane in range(LANES):
            out[lane] = a[lane] if signed(a[lane] ^ flip, shift) > signed(b[lane] ^ flip, shift) else b[lane]
    elif operation == _ABS:
        for lane in range(LANES):
            out[lane] = np.uint64(abs(signed(a[lane], shift)))
    else:
        for lane in range(LANES):
            out[lane] = -a[lane]


@inlined
def _divide(x, y, shift, flip):
    """Return the quotient, rounded to zero; a division by 0 gives ones."""
    if y == _NONE:
        return _FULL
    if flip:
        return x // y
    top, bottom = signed(x, shift), signed(y, shift)
    size = np.uint64(abs(top)) // np.uint64(abs(bottom))  # the smallest number's magnitude has no place in an int64
    return -size if (top < 0) != (bottom < 0) else size


@spliced
def _carried(operation, out, carry, a, b, c, shift, bits, flip, mask):
    """Add or subtract with the carry of the instruction before, of the one after, or of both."""
    for lane in range(LANES):
        x, y, taken = a[lane], b[lane], _NONE
        if operation >= _MAD_CC:
            x = _high(x, y, shift, bits, flip) if operation >= _HIGH_CC else x * y
            x, y = x & (_FULL >> np.uint64(64 - bits)), c[lane]
        if operation in (_ADDC, _ADDC_CC, _SUBC, _SUBC_CC, _MADC, _MADC_CC, _HIGHC, _HIGHC_CC):
            taken = carry[lane]
        if operation >= _SUB_CC and operation <= _SUBC_CC:
            out[lane] = x - y - taken
            over = _ONE if x < y or (x == y and taken) else _NONE
        elif bits == 32:
            out[lane] = x + y + taken
            over = out[lane] >> _HALF
        else:
            out[lane] = x + y + taken
            over = _ONE if out[lane] < x or (out[lane] == x and taken) else _NONE
        if (mask >> lane) & 1 and operation not in (_ADDC, _SUBC, _MADC, _HIGHC):
            carry[lane] = over
