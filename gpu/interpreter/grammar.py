"""Opcodes as the PTX ISA writes them: one line of grammar stands for every opcode that fits it.

A name with a list stands for each member, braces for what may be missing. What no line yields is unknown, so a modifier
that the machine does not implement can never be passed over.
"""

import re
from collections.abc import Iterator, Mapping
from itertools import product

from refimpl.contract import host

__all__ = ["expand"]

_TOKEN = re.compile(r"\{\.(?P<optional>[\w.]+)\}|\.?(?P<name>[\w:]+)")


@host
def expand(grammar: str, lists: Mapping[str, tuple[str, ...]]) -> Iterator[str]:
    """Yield every opcode of a grammar, whose lines stand between white space.

    >>> list(expand("cvt{.sat}.to.s32", {"to": ("u8", "u16")}))
    ['cvt.u8.s32', 'cvt.u16.s32', 'cvt.sat.u8.s32', 'cvt.sat.u16.s32']
    """
    for line in grammar.split():
        choices = [
            ("",) * bool(token["optional"]) + lists.get(token["optional"] or token["name"], (token[0].strip("{.}"),))
            for token in _TOKEN.finditer(line)
        ]
        yield from (".".join(filter(None, chosen)) for chosen in product(*choices))
