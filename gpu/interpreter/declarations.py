"""Declarations of PTX: ``.shared .align 4 .b8 name[128];`` and what a variable starts with."""

from collections.abc import Iterator

from gpu.interpreter.syntax import Real, Variable
from gpu.interpreter.tokens import Cursor

__all__ = ["SIZES", "Declarations"]

SIZES = {
    **{f"{letter}{bits}": bits // 8 for letter in "busf" for bits in (8, 16, 32, 64) if (letter, bits) != ("f", 8)},
    "pred": 1, "b128": 16, "f16x2": 4, "bf16": 2, "bf16x2": 4,
}  # fmt: skip


class Declarations(Cursor):
    """A place in a text where variables are declared."""

    def declared(self) -> Iterator[Variable]:
        """Parse ``.shared .align 4 .b8 name[128], other;``."""
        head = self.head()
        yield self.variable(*head)
        while self.accept(","):
            yield self.variable(*head)
        self.take(";")

    def head(self) -> tuple[str, int, int]:
        """Parse what stands before a name: the space, the alignment (0 if none is given) and the size of an element."""
        space, align, count, size = self.take()[1:], 0, 1, 0
        while self.next().startswith("."):
            word = self.take()[1:]
            if word == "align":
                align = self.whole()
            elif word in ("v2", "v4"):
                count = int(word[1])
            elif word in SIZES:
                size = SIZES[word]
            elif word == "ptr":  # what a pointer points at: a promise to the compiler
                while self.next().startswith("."):
                    if self.take() == ".align":
                        self.whole()
        if not size:
            raise self.fail("a type")
        return space, align, size * count

    def variable(self, space: str, align: int, size: int) -> Variable:
        line, name, count = self.line(), self.take(), 1
        while self.accept("["):
            count *= 0 if self.next() == "]" else self.whole()
            self.take("]")
        initial = self.initial(size, size * count) if self.accept("=") else None
        return Variable(name, space, size * count, align or size, initial, line)

    def initial(self, size: int, total: int) -> bytes:
        """Parse the values that a variable starts with; those not given are 0."""
        data, depth = b"", 0
        while self.next() != ";":
            if self.next() == "," and depth == 0:
                break
            if self.next() in "{},":
                text = self.take()
                depth += (text == "{") - (text == "}")
                continue
            value = self.literal()
            bits = value.bits if isinstance(value, Real) else value % (1 << 8 * size)
            data += bits.to_bytes(size, "little")
        return data.ljust(total, b"\0")
