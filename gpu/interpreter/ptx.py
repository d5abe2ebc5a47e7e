"""PTX text to declarations and instructions, by recursive descent. It knows no opcode."""

from dataclasses import replace

from gpu.interpreter.declarations import Declarations
from gpu.interpreter.syntax import (
    Address,
    Entry,
    Instruction,
    Module,
    Negated,
    Operand,
    Register,
    Symbol,
    Variable,
    Vector,
)
from refimpl.contract import host

__all__ = ["parse"]

_LINKAGE = (".visible", ".extern", ".weak", ".common")
_SPACES = (".global", ".const", ".shared", ".local", ".param")


@host
def parse(text: str) -> Module:
    """Return what a PTX module declares and the instructions of its functions."""
    return _Parser(text).module()


class _Parser(Declarations):
    """A place in the text, and the names that are declared there: a name of an inner scope hides an outer one."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.scopes: list[dict[str, Register | Symbol]] = []
        self.count = 0

    def module(self) -> Module:
        module = Module()
        while self.next() != "end of text":
            while self.next() in _LINKAGE:
                self.place += 1
            if self.next() in (".entry", ".func"):
                entry = self.function(self.take() == ".entry")
                if entry is not None:
                    module.entries[entry.name] = entry
            elif self.next() in _SPACES:
                for variable in self.declared():
                    module.variables[variable.name] = variable
            elif self.next() == ".section":
                self.section()
            else:
                self.skip_line()
        return module

    def section(self) -> None:
        """Skip debug information."""
        while self.take() != "}":
            pass

    def function(self, is_kernel: bool) -> Entry | None:
        """Parse a kernel or a function; one that is only declared gives None."""
        line = self.line()
        results = self.parameters() if self.next() == "(" else []
        name = self.take()
        entry = Entry(name, is_kernel, self.parameters() if self.next() == "(" else [], results, line)
        while self.next() not in ("{", ";"):  # .maxntid 128, 1, 1
            self.take()
        if self.accept(";"):
            return None
        self.scopes = []
        self.take("{")
        self.block(entry)
        return entry

    def parameters(self) -> list[Variable]:
        self.take("(")
        found: list[Variable] = []
        while not self.accept(")"):
            found.append(self.variable(*self.head()))
            self.accept(",")
        return found

    # ------------------------------------------------------------------------------------------------------ bodies

    def block(self, entry: Entry) -> None:
        """Parse up to the closing brace of a scope."""
        self.scopes.append({})
        while not self.accept("}"):
            text, after = self.next(), self.tokens[self.place + 1][1]
            if self.accept("{"):
                self.block(entry)
            elif text == ".reg":
                self.registers(entry)
            elif text in _SPACES:
                for variable in self.declared():
                    name = self.unique(variable.name)
                    self.scopes[-1][variable.name] = Symbol(name)
                    entry.variables[name] = replace(variable, name=name)
            elif text == ".pragma":
                while self.take() != ";":
                    pass
            elif text.startswith("."):
                self.skip_line()
            elif after == ":":
                self.label(entry)
            else:
                entry.body.append(self.instruction())
        self.scopes.pop()

    def unique(self, name: str) -> str:
        """Return a name that no other scope has."""
        self.count += 1
        return name if len(self.scopes) == 1 else f"{name}#{self.count}"

    def registers(self, entry: Entry) -> None:
        """Parse ``.reg .b32 %r<45>, x;``."""
        self.take()
        kind = self.take()[1:]
        while not self.accept(";"):
            name = self.take()
            if self.accept("<"):
                names = [f"{name}{i}" for i in range(self.whole())]
                self.take(">")
            else:
                names = [name]
            for name in names:
                self.scopes[-1][name] = register = Register(self.unique(name))
                entry.registers[register.name] = kind
            self.accept(",")

    def label(self, entry: Entry) -> None:
        """Parse ``$L__BB0_2:``, or the list of a ``brx.idx``."""
        name = self.take()
        self.take(":")
        if self.accept(".branchtargets"):
            entry.targets[name] = tuple(symbol.name for symbol in self.operands() if isinstance(symbol, Symbol))
        elif name in entry.labels:
            raise self.fail(f"a label other than {name}, which stands above,")
        else:
            entry.labels[name] = len(entry.body)

    def instruction(self) -> Instruction:
        line, guard, negated = self.line(), None, False
        if self.accept("@"):
            negated = self.accept("!")
            guard = self.register()
        opcode = self.take()
        return Instruction(opcode, self.operands(), guard, negated, line)

    def operands(self) -> tuple[Operand, ...]:
        """Parse operands up to the semicolon."""
        found: list[Operand] = []
        while not self.accept(";"):
            found.append(self.operand())
            if self.next() != ";":
                self.take(",")
        return tuple(found)

    def operand(self) -> Operand:
        if self.next() in ("[", "{", "("):
            return self.address() if self.accept("[") else self.vector()
        if self.accept("!"):
            return Negated(self.register())
        if self.next() == "-" or self.tokens[self.place][0] in ("whole", "real"):
            return self.literal()
        found = self.named()
        return Vector((found, self.operand())) if self.accept("|") else found

    def vector(self) -> Vector:
        """Parse ``{a, b}``, or ``(a, b)`` of a call."""
        close = {"{": "}", "(": ")"}[self.take()]
        items: list[Operand] = []
        while not self.accept(close):
            items.append(self.operand())
            self.accept(",")
        return Vector(tuple(items))

    def address(self) -> Address:
        base = self.whole() if self.tokens[self.place][0] == "whole" else self.named()
        offset = self.offset() if isinstance(base, Register) else 0
        self.take("]")
        return Address(base, offset)

    def offset(self) -> int:
        return self.whole() if self.accept("+") else 0

    def register(self) -> Register:
        found = self.named()
        if not isinstance(found, Register):
            raise self.fail("a register before it")
        return found

    def named(self) -> Register | Symbol:
        """Parse a name: a register, a special register, a variable with an offset, a label."""
        name = self.take()
        found = next((scope[name] for scope in reversed(self.scopes) if name in scope), None)
        if found is None:
            found = Register(name) if name[0] == "%" or name == "_" else Symbol(name)
        return Symbol(found.name, self.offset()) if isinstance(found, Symbol) else found
