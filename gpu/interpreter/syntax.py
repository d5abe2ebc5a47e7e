"""What a PTX module is made of."""

from dataclasses import dataclass, field

__all__ = [
    "Address", "Entry", "Instruction", "Module", "Negated", "Operand", "Real", "Register", "Symbol", "Variable",
    "Vector",
]  # fmt: skip


@dataclass(frozen=True)
class Register:
    """A register or a special register: ``%r1``, ``%tid.x``; ``_`` is a sink."""

    name: str


@dataclass(frozen=True)
class Negated:
    """A predicate read as its opposite: ``!%p``."""

    register: Register


@dataclass(frozen=True)
class Real:
    """A floating-point literal: its bits, 32 or 64 of them."""

    bits: int
    width: int


@dataclass(frozen=True)
class Symbol:
    """The address of a variable, or a label, with an offset in bytes."""

    name: str
    offset: int = 0


@dataclass(frozen=True)
class Address:
    """``[base + offset]``; the base is a register, a symbol or an absolute address."""

    base: "Register | Symbol | int"
    offset: int = 0


@dataclass(frozen=True)
class Vector:
    """``{a, b}``, ``p|q`` and the lists of a call: several operands in the place of one."""

    items: "tuple[Operand, ...]"


Operand = Register | Negated | Symbol | Address | Vector | Real | int


@dataclass(frozen=True)
class Instruction:
    """One instruction, with the register that guards it."""

    opcode: str
    operands: tuple[Operand, ...]
    guard: Register | None
    negated: bool
    line: int


@dataclass(frozen=True)
class Variable:
    """A named piece of memory: its space without the dot, its size, and the bytes that it starts with, if any."""

    name: str
    space: str
    size: int
    align: int
    initial: bytes | None = None
    line: int = 0


@dataclass
class Entry:
    """A kernel or a function: its parameters and its body."""

    name: str
    is_kernel: bool
    parameters: list[Variable]
    results: list[Variable]
    line: int
    registers: dict[str, str] = field(default_factory=dict)
    variables: dict[str, Variable] = field(default_factory=dict)
    labels: dict[str, int] = field(default_factory=dict)
    targets: dict[str, tuple[str, ...]] = field(default_factory=dict)
    body: list[Instruction] = field(default_factory=list)


@dataclass
class Module:
    """Everything in one PTX text."""

    entries: dict[str, Entry] = field(default_factory=dict)
    variables: dict[str, Variable] = field(default_factory=dict)
