"""Operands brought into one form: literals as words, sinks for results that nobody asks for."""

import struct

import numpy as np

from gpu.interpreter.declarations import SIZES
from gpu.interpreter.syntax import Address, Instruction, Operand, Real, Register, Symbol, Vector
from refimpl.contract import host

__all__ = ["addresses", "arranged", "kind_of", "symbols", "word_of"]


@host
def kind_of(opcode: str, place: int) -> str:
    """Return the type of a literal at a place among the operands."""
    return "b64" if opcode.startswith("mad.wide") and place == 3 else opcode.rpartition(".")[2]


@host
def addresses(operands: tuple[Operand, ...]) -> list[Address]:
    """Return the operands that are addresses."""
    return [operand for operand in operands if isinstance(operand, Address)]


@host
def symbols(operands: tuple[Operand, ...]) -> set[str]:
    """Return the names that operands refer to."""
    names: set[str] = set()
    for operand in operands:
        if isinstance(operand, Vector):
            names |= symbols(operand.items)
        base = operand.base if isinstance(operand, Address) else operand
        names |= {base.name} if isinstance(base, Symbol) else set()
    return names


@host
def word_of(value: "int | Real", kind: str) -> int:
    """Return a literal as the word that a register of this type would hold."""
    size = 1 if kind == "pred" else 8 * SIZES.get(kind, 8)
    if isinstance(value, int):
        return value % (1 << max(size, 32 if kind == "pred" else 16))
    if size == 32 and value.width == 64:
        return int(np.float32(struct.unpack("<d", struct.pack("<Q", value.bits))[0]).view(np.uint32))
    if size == 64 and value.width == 32:
        return int(np.float64(np.uint32(value.bits).view(np.float32)).view(np.uint64))
    return value.bits


@host
def arranged(instruction: Instruction) -> tuple[str, tuple[Operand, ...]]:
    """Return opcode and operands in the one form that the families know: sinks where a result is not asked for."""
    opcode, operands = instruction.opcode, instruction.operands
    name = opcode.partition(".")[0]
    sink = Register("_")
    if name in ("setp", "set", "shfl", "elect") or opcode.startswith("match.all"):
        if not isinstance(operands[0], Vector):
            operands = (Vector((operands[0], sink)), *operands[1:])
    elif name == "red":
        operands = (sink, *operands)
    elif name in ("bar", "barrier") and opcode.partition(".")[2] != "warp.sync":
        operands = _barrier(opcode, operands)
    elif opcode.startswith(("cp.async.ca", "cp.async.cg")) and len(operands) == 3:
        operands = (*operands, operands[2])  # as many bytes are read as are written
    elif name == "mov":
        head, _, kind = opcode.rpartition(".")
        if isinstance(operands[0], Vector):
            opcode = f"{head}.unpack{len(operands[0].items)}.{kind}"
        elif isinstance(operands[1], Vector):
            opcode = f"{head}.pack{len(operands[1].items)}.{kind}"
    return opcode, operands


def _barrier(opcode: str, operands: tuple[Operand, ...]) -> tuple[Operand, ...]:
    """Return the operands of a barrier as result, number, threads (0: all), predicate."""
    if ".red." not in opcode:
        return (Register("_"), *operands, *(0,) * (2 - len(operands)), 0)
    result, number, *threads, predicate = operands
    return (result, number, *(threads or [0]), predicate)
