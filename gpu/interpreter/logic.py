"""Bits: logic, shifts, fields, counts, permutations."""

import functools

import numpy as np

from gpu.interpreter.bits import bit_length
from gpu.interpreter.grammar import expand
from gpu.interpreter.jit import inlined, jit, spliced
from gpu.interpreter.lanes import LANES, OUT, settle, signed
from refimpl.contract import host

__all__ = ["catalogue", "code_of", "execute"]

_GRAMMAR = """
    BINARY.ALL      not.ALL         cnot.BITS       lop3.b32        shl.BITS        shr.BITS        shr.NUMBER
    shf.SIDE.LIMIT.b32              popc.WHOLE      clz.WHOLE       brev.WHOLE      bfe.FIELD       bfi.WHOLE
    bfind{.shiftamt}.FIELD          prmt.b32
"""
_LISTS = {
    "BINARY": ("and", "or", "xor"), "BITS": ("b16", "b32", "b64"), "ALL": ("pred", "b16", "b32", "b64"),
    "WHOLE": ("b32", "b64"), "NUMBER": ("u16", "s16", "u32", "s32", "u64", "s64"), "SIDE": ("l", "r"),
    "FIELD": ("u32", "s32", "u64", "s64"), "LIMIT": ("wrap", "clamp"),
}  # fmt: skip
_NAMES = (
    "and", "or", "xor", "not", "cnot", "lop3", "shl", "shr", "shf.l.wrap", "shf.l.clamp", "shf.r.wrap", "shf.r.clamp",
    "popc", "clz", "brev", "bfe", "bfi", "bfind", "bfind.shiftamt", "prmt",
)  # fmt: skip
_OPERATIONS = {name: i for i, name in enumerate(_NAMES)}
(
    _AND, _OR, _XOR, _NOT, _CNOT, _LOP3, _SHL, _SHR, _LEFT_WRAP, _LEFT_CLAMP, _RIGHT_WRAP, _RIGHT_CLAMP,
    _POPC, _CLZ, _BREV, _BFE, _BFI, _BFIND, _BFIND_SHIFT, _PRMT,
) = range(len(_NAMES))  # fmt: skip
_WIDTHS = {"pred": 1, "b16": 16, "b32": 32, "b64": 64, "s16": 16, "u16": 16, "s32": 32, "u32": 32, "s64": 64, "u64": 64}
_FULL = np.uint64(0xFFFFFFFFFFFFFFFF)
_NONE, _ONE = np.uint64(0), np.uint64(1)
_HALF, _LOW = np.uint64(32), np.uint64(0xFFFFFFFF)


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
    bits = _WIDTHS[kind]
    result = 32 if name in ("popc", "clz", "bfind", "bfind.shiftamt") else bits
    has_sign = kind[0] == "s"
    return _OPERATIONS[name] | (64 - bits if has_sign else 0) << 8 | bits << 16 | result << 24 | has_sign << 32


@jit
def execute(regs, rows, mask, code):
    """Run one instruction."""
    operation, shift, bits, result = code & 255, (code >> 8) & 255, (code >> 16) & 255, (code >> 24) & 255
    a, b, c, d = regs[rows[1]], regs[rows[2]], regs[rows[3]], regs[rows[4]]
    if operation <= _LOP3:
        _combine(operation, regs[OUT], a, b, c, d[0])
    elif operation <= _RIGHT_CLAMP:
        _shift(operation, regs[OUT], a, b, c, shift, bits, code >> 32)
    else:
        _field(operation, regs[OUT], a, b, c, d, shift, bits, code >> 32)
    settle(regs, rows[0], mask, _FULL >> np.uint64(64 - result))


@spliced
def _flip(wanted):
    """Return what turns a bit that is as wanted into 1."""
    return _NONE if wanted else _FULL


@spliced
def _combine(operation, out, a, b, c, table):
    if operation == _AND:
        for lane in range(LANES):
            out[lane] = a[lane] & b[lane]
    elif operation == _OR:
        for lane in range(LANES):
            out[lane] = a[lane] | b[lane]
    elif operation == _XOR:
        for lane in range(LANES):
            out[lane] = a[lane] ^ b[lane]
    elif operation == _NOT:
        for lane in range(LANES):
            out[lane] = ~a[lane]
    elif operation == _CNOT:
        for lane in range(LANES):
            out[lane] = _NONE if a[lane] else _ONE
    else:
        for lane in range(LANES):
            out[lane] = _NONE
        for term in range(8):
            if (table >> np.uint64(term)) & _ONE:
                x, y, z = _flip(term & 4), _flip(term & 2), _flip(term & 1)
                for lane in range(LANES):
                    out[lane] |= (a[lane] ^ x) & (b[lane] ^ y) & (c[lane] ^ z)


@spliced
def _shift(operation, out, a, b, c, shift, bits, has_sign):
    last = np.uint64(bits - 1)
    if operation == _SHL:
        for lane in range(LANES):
            out[lane] = a[lane] << b[lane] if b[lane] <= last else _NONE
    elif operation == _SHR and has_sign:
        for lane in range(LANES):
            out[lane] = np.uint64(signed(a[lane], shift) >> np.int64(min(b[lane], last)))
    elif operation == _SHR:
        for lane in range(LANES):
            out[lane] = a[lane] >> b[lane] if b[lane] <= last else _NONE
    else:  # a funnel: 32 bits out of the 64 of b:a
        for lane in range(LANES):
            wrap = operation in (_LEFT_WRAP, _RIGHT_WRAP)
            count = c[lane] & np.uint64(31) if wrap else min(c[lane], _HALF)
            pair = (b[lane] << _HALF) | a[lane]
            left = operation <= _LEFT_CLAMP
            out[lane] = (pair << count) >> _HALF if left else pair >> count


@inlined
def _reversed(word):
    """Return the bits of a word in reverse order, within 64."""
    for step, mask in ((1, 0x5555555555555555), (2, 0x3333333333333333), (4, 0x0F0F0F0F0F0F0F0F)):
        word = ((word >> np.uint64(step)) & np.uint64(mask)) | ((word & np.uint64(mask)) << np.uint64(step))
    for step, mask in ((8, 0x00FF00FF00FF00FF), (16, 0x0000FFFF0000FFFF), (32, 0x00000000FFFFFFFF)):
        word = ((word >> np.uint64(step)) & np.uint64(mask)) | ((word & np.uint64(mask)) << np.uint64(step))
    return word


@inlined
def _count(word):
    """Return how many bits of a word are set."""
    word -= (word >> _ONE) & np.uint64(0x5555555555555555)
    word = (word & np.uint64(0x3333333333333333)) + ((word >> np.uint64(2)) & np.uint64(0x3333333333333333))
    word = (word + (word >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return (word * np.uint64(0x0101010101010101)) >> np.uint64(56)


@inlined
def _extract(word, start, length, shift, bits, has_sign):
    """Return the bits start .. start + length - 1 of a word; where they have a sign, the last one fills."""
    start, length = np.int64(start & np.uint64(255)), np.int64(length & np.uint64(255))
    if length == 0 or (start >= bits and not has_sign):
        return _NONE
    start = min(start, bits - 1)
    cut = 64 - min(length, bits - start)
    if has_sign:
        return np.uint64(signed(signed(word, shift) >> start, cut))
    return ((word >> np.uint64(start)) << np.uint64(cut)) >> np.uint64(cut)


@inlined
def _inserted(piece, word, start, length, bits):
    """Return a word with the low ``length`` bits of a piece put in at ``start``."""
    start, length = min(start & np.uint64(255), np.uint64(bits)), length & np.uint64(255)
    length = min(length, np.uint64(bits) - start)
    if length == _NONE:
        return word
    field = (_FULL >> (np.uint64(64) - length)) << start
    return (word & ~field) | ((piece << start) & field)


@inlined
def _permuted(a, b, selector):
    """Return 4 bytes out of the 8 of b:a; a selector's top bit repeats the byte's sign."""
    pair, result = (b << _HALF) | a, _NONE
    for place in range(4):
        choice = (selector >> np.uint64(4 * place)) & np.uint64(15)
        byte = (pair >> ((choice & np.uint64(7)) << np.uint64(3))) & np.uint64(255)
        if choice & np.uint64(8):
            byte = np.uint64(255) if byte & np.uint64(128) else _NONE
        result |= byte << np.uint64(8 * place)
    return result


@spliced
def _field(operation, out, a, b, c, d, shift, bits, has_sign):
    if operation == _POPC:
        for lane in range(LANES):
            out[lane] = _count(a[lane])
    elif operation == _CLZ:
        for lane in range(LANES):
            out[lane] = np.uint64(bits - bit_length(a[lane]))
    elif operation == _BREV:
        for lane in range(LANES):
            out[lane] = _reversed(a[lane]) >> np.uint64(64 - bits)
    elif operation == _BFE:
        for lane in range(LANES):
            out[lane] = _extract(a[lane], b[lane], c[lane], shift, bits, has_sign)
    elif operation == _BFI:
        for lane in range(LANES):
            out[lane] = _inserted(a[lane], b[lane], c[lane], d[lane], bits)
    elif operation == _PRMT:
        for lane in range(LANES):
            out[lane] = _permuted(a[lane], b[lane], c[lane])
    else:
        for lane in range(LANES):
            negative = has_sign and signed(a[lane], shift) < 0
            last = bit_length((~a[lane] << np.uint64(shift)) >> np.uint64(shift) if negative else a[lane]) - 1
            out[lane] = np.uint64(bits - 1 - last if operation == _BFIND_SHIFT and last >= 0 else last)
