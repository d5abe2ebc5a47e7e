"""Atomics: one lane after the other reads, combines and writes."""

import functools

import numpy as np

from gpu.interpreter.access import ATOMIC, space_of
from gpu.interpreter.bits import bits_to_float32, bits_to_float64, float32_to_bits, float64_to_bits
from gpu.interpreter.grammar import expand
from gpu.interpreter.jit import inlined, jit
from gpu.interpreter.lanes import LANES, signed
from gpu.interpreter.raw import load16, load32, load64, store16, store32, store64
from refimpl.contract import host

__all__ = ["catalogue", "code_of", "execute"]

_NAMES = ("add", "min", "max", "and", "or", "xor", "inc", "dec", "exch", "cas")
_ADD, _MIN, _MAX, _AND, _OR, _XOR, _INC, _DEC, _EXCH, _CAS = range(len(_NAMES))
_ORDERS = ("relaxed", "acquire", "release", "acq_rel")
_UNSIGNED, _SIGNED, _FLOAT = range(3)
_GRAMMAR = """
    atom{.SPACE}.LOGIC.BITS     atom{.SPACE}.MOST.NUMBER    atom{.SPACE}.TURN.u32       atom{.SPACE}.add.FLOAT
    red{.SPACE}.LOGIC.BITS      red{.SPACE}.MOST.NUMBER     red{.SPACE}.TURN.u32        red{.SPACE}.add.FLOAT
    atom{.ORDER}{.SCOPE}{.SPACE}.add.NUMBER                 atom{.ORDER}{.SCOPE}{.SPACE}.SWAP.BITS
    red{.WEAK}{.SCOPE}{.SPACE}.add.NUMBER                   atom{.ORDER}{.SCOPE}{.SPACE}.cas.b16
    atom.SPACE.SCOPE.add.NUMBER atom.SPACE.SCOPE.SWAP.BITS  atom.SPACE.SCOPE.MOST.NUMBER
"""
_LISTS = {
    "SPACE": ("global", "shared", "shared::cta"), "LOGIC": ("and", "or", "xor"), "BITS": ("b32", "b64"),
    "MOST": ("min", "max"), "NUMBER": ("u32", "s32", "u64", "s64"), "TURN": ("inc", "dec"), "FLOAT": ("f32", "f64"),
    "ORDER": _ORDERS, "SCOPE": ("cta", "cluster", "gpu", "sys"), "SWAP": ("exch", "cas"),
    "WEAK": ("relaxed", "release"),
}  # fmt: skip


@functools.cache
@host
def catalogue() -> frozenset[str]:
    """Return every opcode of the family."""
    return frozenset(expand(_GRAMMAR, _LISTS))


@host
def code_of(opcode: str, width: int) -> int | None:
    """Return the code of ``atom`` and ``red``: as of a load, and the operation and what kind of number it is on."""
    if opcode not in catalogue():
        return None
    *words, operation, kind = opcode.split(".")
    space = space_of(words)
    order = next((_ORDERS.index(word) + 1 for word in words if word in _ORDERS), 0)
    order = min(order, 1) if "cta" in words else order  # orders nothing between blocks
    number = {"s": _SIGNED, "f": _FLOAT}.get(kind[0], _UNSIGNED)
    return ATOMIC | space << 2 | int(kind[1:]) // 8 << 5 | order << 14 | _NAMES.index(operation) << 17 | number << 21


@jit
def execute(regs, rows, mask, code, places):
    """Run one instruction: rows are the result, the address and the operands."""
    size, operation, number = (code >> 5) & 31, (code >> 17) & 15, (code >> 21) & 3
    target, b, c = regs[rows[0]], regs[rows[2]], regs[rows[3]]
    for lane in range(LANES):
        if (mask >> lane) & 1:
            place, operand, other = places[lane], b[lane], c[lane]
            if size == 4:
                old = load32(place)
                store32(place, _combined(operation, number, size, old, operand, other))
            elif size == 8:
                old = load64(place)
                store64(place, _combined(operation, number, size, old, operand, other))
            else:
                old = load16(place)
                store16(place, other if old == operand else old)
            target[lane] = old


@inlined
def _combined(operation, number, size, old, operand, other):
    """Return what replaces the old value."""
    if operation == _ADD:
        return _sum(number, size, old, operand)
    if operation == _AND:
        return old & operand
    if operation == _OR:
        return old | operand
    if operation == _XOR:
        return old ^ operand
    if operation == _EXCH:
        return operand
    if operation == _CAS:
        return other if old == operand else old
    if operation == _INC:
        return np.uint64(0) if old >= operand else old + np.uint64(1)
    if operation == _DEC:
        return operand if old == np.uint64(0) or old > operand else old - np.uint64(1)
    shift = 64 - 8 * size
    less = signed(old, shift) < signed(operand, shift) if number == _SIGNED else old < operand
    return old if less == (operation == _MIN) else operand


@inlined
def _sum(number, size, old, operand):
    if number != _FLOAT:
        return old + operand
    if size == 4:
        return np.uint64(float32_to_bits(bits_to_float32(old) + bits_to_float32(operand)))
    return float64_to_bits(bits_to_float64(old) + bits_to_float64(operand))
