"""PTX text as tokens, and a place among them."""

import re
import struct
from collections.abc import Iterator

from gpu.interpreter.errors import KernelError
from gpu.interpreter.syntax import Real

__all__ = ["Cursor"]

_TOKEN = re.compile(
    r"""(?P<space>\s+|//[^\n]*|/\*.*?\*/)
      | (?P<string>"[^"]*")
      | (?P<real>0[fF][0-9a-fA-F]{8}|0[dD][0-9a-fA-F]{16}|\d+\.\d*(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+)
      | (?P<whole>0[xX][0-9a-fA-F]+U?|\d+U?)
      | (?P<word>(?:[A-Za-z_$%][\w$]*|\.[A-Za-z_]\w*)(?:(?:\.|::)\w+)*)
      | (?P<mark>[@!{}()\[\]<>,;:|+\-=])""",
    re.VERBOSE | re.DOTALL,
)


def _scan(text: str) -> Iterator[tuple[str, str, int]]:
    """Yield the kind, the text and the line of each token."""
    place, line = 0, 1
    while place < len(text):
        found = _TOKEN.match(text, place)
        if found is None:
            raise KernelError(f"PTX line {line}: cannot read {text[place : place + 20]!r}")
        if found.lastgroup != "space":
            yield str(found.lastgroup), found.group(), line
        line += found.group().count("\n")
        place = found.end()
    yield from [("end", "end of text", line)] * 2  # a look ahead from the first sees the second


def _number(kind: str, text: str) -> int | Real:
    """Return a literal: ``12``, ``0x1F``, ``0f3F800000``, ``1.5``."""
    if kind == "whole":
        text = text.rstrip("U")
        return int(text, 16 if text[1:2] in ("x", "X") else 8 if text[0] == "0" else 10)
    if text[1] in "fFdD":
        return Real(int(text[2:], 16), 32 if text[1] in "fF" else 64)
    return Real(struct.unpack("<Q", struct.pack("<d", float(text)))[0], 64)


class Cursor:
    """A place in the tokens of a text."""

    def __init__(self, text: str) -> None:
        self.tokens = list(_scan(text))
        self.place = 0

    def fail(self, wanted: str) -> KernelError:
        _, text, line = self.tokens[self.place]
        return KernelError(f"PTX line {line}: {wanted} should stand here, this is {text!r}")

    def next(self) -> str:
        return self.tokens[self.place][1]

    def line(self) -> int:
        return self.tokens[self.place][2]

    def take(self, wanted: str | None = None) -> str:
        text = self.next()
        if wanted is not None and text != wanted:
            raise self.fail(repr(wanted))
        if self.tokens[self.place][0] == "end":
            raise self.fail("more")
        self.place += 1
        return text

    def accept(self, text: str) -> bool:
        found = self.next() == text
        self.place += found
        return found

    def skip_line(self) -> None:
        """Skip a directive that ends with its line: ``.version``, ``.loc``."""
        line = self.line()
        while self.line() == line and self.next() != "end of text":
            self.place += 1

    def whole(self) -> int:
        minus = self.accept("-")
        kind, text, _ = self.tokens[self.place]
        value = _number(kind, text) if kind == "whole" else None
        if not isinstance(value, int):
            raise self.fail("a whole number")
        self.place += 1
        return -value if minus else value

    def literal(self) -> int | Real:
        kind, text, _ = self.tokens[self.place]
        if kind == "real":
            self.place += 1
            return _number(kind, text)
        return self.whole()
