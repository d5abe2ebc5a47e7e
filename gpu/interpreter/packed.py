"""Arithmetic and comparisons of float16 and bfloat16, single and in pairs of one register."""

import functools
from itertools import accumulate

import numpy as np

from gpu.interpreter.grammar import expand
from gpu.interpreter.halves import OPERATIONS, SET, SETP, Rule, holds, result
from gpu.interpreter.jit import inlined, jit, spliced
from gpu.interpreter.lanes import LANES, OUT, settle
from refimpl.contract import host

__all__ = ["catalogue", "code_of", "execute"]

_GRAMMAR = """
    LINEAR{.rn}{.ftz}{.sat}.HALF        LINEAR{.rn}.BRAIN
    fma.rn{.ftz}{.sat}.HALF             fma.rn{.ftz}.relu.HALF      fma.rn{.relu}.BRAIN
    SIGN{.ftz}.HALF                     SIGN.BRAIN
    ORDER{.ftz}{.NaN}{.xorsign.abs}.HALF                            ORDER{.NaN}{.xorsign.abs}.BRAIN
    CURVE.approx.HALF                   ex2.approx.ftz.BRAIN        tanh.approx.BRAIN
    setp.RELATION{.LOGIC}{.ftz}.HALF    setp.RELATION{.LOGIC}.BRAIN
    set.RELATION{.ftz}.f16.f16          set.RELATION{.ftz}.INTEGER.f16      set.RELATION{.ftz}.f16x2.f16x2
    set.RELATION.bf16.bf16              set.RELATION.INTEGER.bf16           set.RELATION.bf16x2.bf16x2
    set.RELATION{.ftz}.WORD.f16x2       set.RELATION.WORD.bf16x2
"""
_RELATIONS = {"lt": 1, "eq": 2, "le": 3, "gt": 4, "ne": 5, "ge": 6}  # 1 less, 2 equal, 4 greater, 8 unordered
_RELATIONS |= {name + "u": accepted | 8 for name, accepted in _RELATIONS.items()} | {"num": 7, "nan": 8}
_LOGIC = {"and": 1, "or": 2, "xor": 3}
_LISTS = {
    "LINEAR": ("add", "sub", "mul"), "SIGN": ("neg", "abs"), "ORDER": ("min", "max"), "CURVE": ("ex2", "tanh"),
    "HALF": ("f16", "f16x2"), "BRAIN": ("bf16", "bf16x2"), "INTEGER": ("u16", "s16", "u32", "s32"),
    "WORD": ("u32", "s32"), "RELATION": tuple(_RELATIONS), "LOGIC": tuple(_LOGIC),
}  # fmt: skip
_ONES = {"u16": 0xFFFF, "s16": 0xFFFF, "u32": 0xFFFFFFFF, "s32": 0xFFFFFFFF, "f16": 0x3C00, "bf16": 0x3F80}
_PAIR_ONES = {"u32": 0xFFFF, "s32": 0xFFFF, "f16x2": 0x3C00, "bf16x2": 0x3F80}  # of one half
_FLAGS = ("ftz", "sat", "relu", "NaN", "xorsign")
_FULL = np.uint64(0xFFFFFFFFFFFFFFFF)
_HALF = np.uint64(16)
_SIZES = (4, 1, 1, 1, 1, 1, 1, 1, 4, 2, 32)
_PLACES = tuple(accumulate(_SIZES, initial=0))


def _rule(opcode: str) -> Rule:
    """Read an opcode that the grammar has."""
    name, *words = opcode.split(".")
    kind = words[-1]
    flags = [word in words for word in _FLAGS]
    ones = _PAIR_ONES if kind.endswith("x2") else _ONES
    true = ones[words[-2]] if name == "set" else 0
    accepted, logic = _RELATIONS.get(words[0], 0), next((_LOGIC[word] for word in words if word in _LOGIC), 0)
    return Rule(OPERATIONS.index(name), kind[0] == "b", kind.endswith("x2"), *flags, accepted, logic, true)


def _code(rule: Rule) -> int:
    """Return a rule as one number."""
    return sum(int(part) << place for part, place in zip(rule, _PLACES, strict=False))


@functools.cache
@host
def catalogue() -> dict[str, int]:
    """Return every opcode of 16-bit floats, with its code."""
    return {opcode: _code(_rule(opcode)) for opcode in expand(_GRAMMAR, _LISTS)}


@host
def code_of(opcode: str, width: int) -> int | None:
    """Return the code of an opcode, or None.

    >>> code_of("fma.rn.bf16x2", 32) is not None, code_of("fma.rz.bf16x2", 32)
    (True, None)
    """
    return catalogue().get(opcode)


@spliced
def _field(code, index):
    return (code >> _PLACES[index]) & ((1 << _SIZES[index]) - 1)


@jit
def _read(code):
    """Return the rule of a code."""
    return Rule(
        _field(code, 0), _field(code, 1), _field(code, 2), _field(code, 3), _field(code, 4), _field(code, 5),
        _field(code, 6), _field(code, 7), _field(code, 8), _field(code, 9), _field(code, 10),
    )  # fmt: skip


@jit
def execute(regs, rows, mask, code):
    """Run one instruction in the lanes of a mask."""
    rule = _read(code)
    if rule.operation in (SETP, SET):
        _compare(rule, regs, rows, mask)
        return
    out = regs[OUT]
    a, b, c = regs[rows[1]], regs[rows[2]], regs[rows[3]]
    for lane in range(LANES):
        if (mask >> lane) & 1:
            out[lane] = result(rule, a[lane], b[lane], c[lane])
            if rule.pair:
                upper = result(rule, a[lane] >> _HALF, b[lane] >> _HALF, c[lane] >> _HALF)
                out[lane] |= upper << _HALF
    settle(regs, rows[0], mask, _FULL)


@jit
def _compare(rule, regs, rows, mask):
    """Run ``setp`` and ``set``: the predicates of a pair's low and high half, or of a number and its opposite."""
    a, b, c = regs[rows[2]], regs[rows[3]], regs[rows[4]]
    first, second = regs[rows[0]], regs[rows[1]]
    for lane in range(LANES):
        if (mask >> lane) & 1:
            low = holds(rule, a[lane], b[lane])
            high = holds(rule, a[lane] >> _HALF, b[lane] >> _HALF) if rule.pair else low ^ np.uint64(1)
            if rule.operation == SET:
                true = np.uint64(rule.true)
                first[lane] = low * true | (high * true << _HALF if rule.pair else np.uint64(0))
            else:
                predicate = c[lane]  # whose register may be one of the two
                first[lane] = _joined(rule.logic, low, predicate)
                second[lane] = _joined(rule.logic, high, predicate)


@inlined
def _joined(logic, holds, predicate):
    """Combine a relation with a predicate."""
    if logic == 1:
        return holds & predicate
    if logic == 2:
        return holds | predicate
    return holds ^ predicate if logic == 3 else holds
