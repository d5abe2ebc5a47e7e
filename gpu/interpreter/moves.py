"""Moves: whole registers, pieces of them, and addresses from one space to another."""

import functools

import numpy as np

from gpu.interpreter.grammar import expand
from gpu.interpreter.jit import jit, spliced
from gpu.interpreter.lanes import LANES, OUT, SCRATCH, settle
from gpu.interpreter.regions import FIRST, REGION_BITS, WINDOWS
from refimpl.contract import host

__all__ = ["catalogue", "code_of", "execute"]

_GRAMMAR = """
    mov.pred                mov.WORD                cvta{.to}.SPACE.u64             isspacep.WINDOW
    mov.PAIR.b32            mov.PAIR.b64            mov.FOUR.b64
"""
_LISTS = {
    "WORD": (*(f"{letter}{bits}" for letter in "bus" for bits in (16, 32, 64)), "f32", "f64"),
    "SPACE": ("global", "const", "shared", "local", "param"), "WINDOW": ("global", *WINDOWS),
    "PAIR": ("pack2", "unpack2"), "FOUR": ("pack4", "unpack4"),
}  # fmt: skip
_MOVE, _ADD, _SUBTRACT, _PACK, _UNPACK, _IS_SPACE = range(6)
_WIDTHS = {"pred": 1, **{f"{letter}{bits}": bits for letter in "busf" for bits in (16, 32, 64)}}
_FULL = np.uint64(0xFFFFFFFFFFFFFFFF)


@functools.cache
@host
def catalogue() -> frozenset[str]:
    """Return every opcode of the family."""
    return frozenset(expand(_GRAMMAR, _LISTS))


@host
def code_of(opcode: str, width: int) -> int | None:
    """Return the code of an opcode; the decoder writes ``mov.pack2.b64`` for ``mov.b64 d, {a, b}``."""
    if opcode not in catalogue():
        return None
    name, *words, kind = opcode.split(".")
    if name == "isspacep":
        return _IS_SPACE | 1 << 8 | WINDOWS.get(kind, 0) << 16
    if name == "cvta":
        window = WINDOWS.get(words[-1], 0)
        return ((_SUBTRACT if words[0] == "to" else _ADD) if window else _MOVE) | 64 << 8 | window << 16
    if not words:
        return _MOVE | _WIDTHS[kind] << 8
    count = int(words[0][-1])
    return (_PACK if words[0][0] == "p" else _UNPACK) | _WIDTHS[kind] // count << 8 | count << 16


@jit
def execute(regs, rows, mask, code):
    """Run one instruction."""
    operation, bits, detail = code & 255, np.uint64((code >> 8) & 255), (code >> 16) & 255
    out, a = regs[OUT], regs[rows[1]]
    window = np.uint64(detail << REGION_BITS)
    if operation == _MOVE:
        for lane in range(LANES):
            out[lane] = a[lane]
    elif operation == _ADD:
        for lane in range(LANES):
            out[lane] = a[lane] + window
    elif operation == _SUBTRACT:
        for lane in range(LANES):
            out[lane] = a[lane] - window
    elif operation == _IS_SPACE:
        for lane in range(LANES):
            region = np.int64(a[lane] >> np.uint64(REGION_BITS))
            out[lane] = np.uint64(region == detail if detail else region >= FIRST)
    elif operation == _PACK:
        _pack(regs, rows, detail, bits)
        bits *= np.uint64(detail)
    else:
        _unpack(regs, rows, mask, detail, bits)
        return
    settle(regs, rows[0], mask, _FULL >> (np.uint64(64) - bits))


@spliced
def _pack(regs, rows, count, bits):
    """Join pieces to one word, the first one lowest."""
    out = regs[OUT]
    for lane in range(LANES):
        out[lane] = regs[rows[1], lane]
    for i in range(1, count):
        piece = regs[rows[1 + i]]
        for lane in range(LANES):
            out[lane] |= piece[lane] << (np.uint64(i) * bits)


@spliced
def _unpack(regs, rows, mask, count, bits):
    """Part one word into pieces, the lowest first."""
    whole = regs[SCRATCH]
    for lane in range(LANES):
        whole[lane] = regs[rows[count], lane]
    for i in range(count):
        out = regs[OUT]
        for lane in range(LANES):
            out[lane] = whole[lane] >> (np.uint64(i) * bits)
        settle(regs, rows[i], mask, _FULL >> (np.uint64(64) - bits))
