"""A kernel as tables of numbers for the machine: every operand is a row of the register file.

Immediates, special registers and the addresses of variables are rows too, filled before the kernel runs.
"""

import functools
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gpu.interpreter import logic
from gpu.interpreter.codes import (
    CODE,
    COLLECTIVE,
    CONTROL,
    GUARD,
    LOGIC,
    MATRIX,
    MEMBERS,
    MMA,
    MOST_ROWS,
    OFFSET,
    SOURCE_OFFSET,
    TARGET,
)
from gpu.interpreter.control import BRANCH, SWITCH
from gpu.interpreter.declarations import SIZES
from gpu.interpreter.errors import KernelError
from gpu.interpreter.families import FAMILIES
from gpu.interpreter.lanes import ALL, FIRST_FREE, SINK, TRUE, ZERO
from gpu.interpreter.operands import addresses, arranged, kind_of, symbols, word_of
from gpu.interpreter.ptx import parse
from gpu.interpreter.syntax import (
    Address,
    Entry,
    Instruction,
    Module,
    Negated,
    Operand,
    Real,
    Register,
    Symbol,
    Variable,
    Vector,
)
from refimpl.contract import host

__all__ = ["Program", "decode"]

_AXES = tuple(f"%{name}.{axis}" for name in ("tid", "ntid", "ctaid", "nctaid") for axis in "xyz")
_SPECIAL = (
    *_AXES, "%laneid", "%warpid", "%nwarpid", "%smid", "%nsmid", "%gridid", "%dynamic_smem_size", "%total_smem_size",
    *(f"%lanemask_{order}" for order in ("eq", "le", "lt", "ge", "gt")),
)  # fmt: skip


@dataclass
class Program:
    """A decoded kernel."""

    name: str
    parameters: list[Variable]
    table: Any = None  # int64 [instructions, COLUMNS]
    rows: Any = None  # int32 [instructions, MOST_ROWS]
    jumps: Any = None  # int64: where a brx.idx can go
    opcodes: list[str] = field(default_factory=list)  # "" for what the decoder itself puts in
    lines: list[int] = field(default_factory=list)
    num_rows: int = FIRST_FREE
    words: dict[int, int] = field(default_factory=dict)  # row -> the word that stands in all its lanes
    specials: dict[str, int] = field(default_factory=dict)  # special register -> row
    addresses: dict[int, tuple[str, int]] = field(default_factory=dict)  # row -> variable and offset
    variables: dict[str, Variable] = field(default_factory=dict)  # those of global and constant memory that it uses
    shared_size: int = 0
    local_size: int = 0


@host
@functools.lru_cache(maxsize=256)
def decode(text: str, name: str) -> Program:
    """Return the kernel ``name`` of a PTX text, decoded."""
    module = parse(text)
    entry = module.entries.get(name)
    if entry is None or not entry.is_kernel:
        raise KernelError(f"the PTX has no kernel {name}; it has {', '.join(module.entries) or 'none'}")
    return _Decoder(module, entry).program()


class _Decoder:
    """What is known of a kernel while its instructions are read."""

    def __init__(self, module: Module, entry: Entry) -> None:
        self.entry = entry
        self.done = Program(entry.name, entry.parameters)
        parameters = {variable.name: variable for variable in entry.parameters}
        self.known = {**module.variables, **parameters, **entry.variables}
        self.registers = {"_": SINK}
        self.literals = {0: ZERO, 1: TRUE}
        self.places = self.lay_out()
        self.table: list[list[int]] = []
        self.rows: list[list[int]] = []
        self.jumps: list[int] = []

    def fail(self, instruction: Instruction, what: str) -> KernelError:
        return KernelError(f"{self.entry.name}, PTX line {instruction.line}: {what}")

    def lay_out(self) -> dict[str, int]:
        """Return where each variable of shared, local and parameter memory begins; what has no size comes last."""
        used = {name for instruction in self.entry.body for name in symbols(instruction.operands)}
        places: dict[str, int] = {}
        ends = {"shared": 0, "local": 0, "param": 0}
        for variable in sorted(self.known.values(), key=lambda variable: variable.size == 0):
            if variable.space in ends and (variable.name in used or variable.space == "param"):
                places[variable.name] = -(-ends[variable.space] // variable.align) * variable.align
                ends[variable.space] = places[variable.name] + variable.size
        self.done.shared_size, self.done.local_size = ends["shared"], ends["local"]
        return places

    def program(self) -> Program:
        starts = []
        last = self.entry.body[-1].line if self.entry.body else self.entry.line
        for instruction in (*self.entry.body, Instruction("exit", (), None, False, last)):
            starts.append(len(self.table))
            self.append(instruction)
        done = self.done
        done.table, done.rows = np.array(self.table, np.int64), np.array(self.rows, np.int32)
        done.jumps = np.array([starts[i] for i in self.jumps], np.int64)
        done.table[:, TARGET] = np.array(starts)[done.table[:, TARGET]]
        done.words = {row: word for word, row in self.literals.items()}
        return done

    def append(self, instruction: Instruction) -> None:
        """Decode one instruction; a predicate that it reads as its opposite is negated by one more before it."""
        opcode, operands = arranged(instruction)
        width = self.width(operands[0]) if operands else 0
        codes = ((family, module.code_of(opcode, width)) for family, module in enumerate(FAMILIES))
        family, code = next(((family, code) for family, code in codes if code is not None), (-1, 0))
        if family < 0:
            raise self.fail(instruction, f"{instruction.opcode} is not an instruction that this machine knows")
        line = [family, code, -1, int(instruction.negated), 0, 0, 0, 0]
        if family == CONTROL:
            operands = self.aimed(instruction, operands, line)
        kinds = [kind_of(opcode, i) for i in range(len(operands))]
        pairs = zip(operands, kinds, strict=True)
        rows = [row for operand, kind in pairs for row in self.rows_of(instruction, operand, kind)]
        for column, address in zip((OFFSET, SOURCE_OFFSET), addresses(operands), strict=False):
            line[column] = address.offset
        if instruction.guard is not None:
            line[GUARD] = self.register(instruction, instruction.guard)
        if family in (MATRIX, MMA):
            line[MEMBERS] = self.literal(ALL, "b32")
        elif family == COLLECTIVE:
            line[MEMBERS] = rows[-1] if rows else ZERO
        self.emit(instruction.opcode, instruction.line, line, rows)

    def emit(self, opcode: str, number: int, line: list[int], rows: list[int]) -> None:
        self.table.append(line)
        self.rows.append([*rows, *[ZERO] * (MOST_ROWS - len(rows))])
        self.done.opcodes.append(opcode)
        self.done.lines.append(number)

    def width(self, operand: Operand) -> int:
        """Return how many bits a destination has."""
        while isinstance(operand, Vector):
            operand = operand.items[0]
        kind = self.entry.registers.get(operand.name, "b32") if isinstance(operand, Register) else "b64"
        return 8 * SIZES[kind]

    def aimed(self, instruction: Instruction, operands: tuple[Operand, ...], line: list[int]) -> tuple[Operand, ...]:
        """Write where a branch goes, and return the operands that are left."""
        labels = [operand for operand in operands if isinstance(operand, Symbol)]
        if not labels and line[CODE] in (BRANCH, SWITCH):
            raise self.fail(instruction, f"{instruction.opcode} names no label")
        if not labels:
            return operands
        names = self.entry.targets.get(labels[0].name, (labels[0].name,))
        for name in names:
            if name not in self.entry.labels:
                raise self.fail(instruction, f"there is no label {name}")
        line[TARGET], line[OFFSET] = self.entry.labels[names[0]], len(self.jumps)
        line[SOURCE_OFFSET] = len(names)
        self.jumps += [self.entry.labels[name] for name in names]
        return tuple(operand for operand in operands if not isinstance(operand, Symbol))

    def rows_of(self, instruction: Instruction, operand: Operand, kind: str) -> list[int]:
        """Return the rows of an operand, in order; ``kind`` is the type of a literal."""
        match operand:
            case Vector():
                return [row for item in operand.items for row in self.rows_of(instruction, item, kind)]
            case Negated():
                row = self.new_row()
                source = self.register(instruction, operand.register)
                negate = [LOGIC, logic.code_of("not.pred", 1) or 0, -1, 0, 0, 0, 0, 0]
                self.emit("", instruction.line, negate, [row, source])
                return [row]
            case Address():
                return self.rows_of(instruction, operand.base, "b64")
            case Register():
                return [self.register(instruction, operand)]
            case Symbol():
                return [self.address(instruction, operand)]
        return [self.literal(operand, kind)]

    def new_row(self) -> int:
        self.done.num_rows += 1
        return self.done.num_rows - 1

    def register(self, instruction: Instruction, register: Register) -> int:
        name = register.name
        if name not in self.registers:
            if name not in self.entry.registers and name not in _SPECIAL:
                raise self.fail(instruction, f"there is no register {name}")
            self.registers[name] = row = self.new_row()
            if name not in self.entry.registers:
                self.done.specials[name] = row
        return self.registers[name]

    def address(self, instruction: Instruction, symbol: Symbol) -> int:
        """Return the row of a variable's address: a place in its space, for global memory known only at the launch."""
        if symbol.name in self.places:
            return self.literal(self.places[symbol.name] + symbol.offset, "b64")
        if symbol.name not in self.known:
            raise self.fail(instruction, f"there is no variable {symbol.name}")
        self.done.variables[symbol.name] = self.known[symbol.name]
        row = self.new_row()
        self.done.addresses[row] = (symbol.name, symbol.offset)
        return row

    def literal(self, value: "int | Real", kind: str) -> int:
        word = word_of(value, kind)
        if word not in self.literals:
            self.literals[word] = self.new_row()
        return self.literals[word]
