"""Opcodes as the PTX ISA writes them: one line of grammar stands for every opcode that fits it.

A name in capitals stands for each member of a list, braces for what may be missing. What no line yields is unknown, so
a modifier that the machine does not implement can never be passed over.
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

    >>> list(expand("cvt{.sat}.TO.s32", {"TO": ("u8", "u16")}))
    ['cvt.u8.s32', 'cvt.u16.s32', 'cvt.sat.u8.s32', 'cvt.sat.u16.s32']
    """
    for line in grammar.split():
        choices = []
        for token in _TOKEN.finditer(line):
            name = token["optional"] or token["name"]
            choices.append(("",) * bool(token["optional"]) + (lists[name] if name.isupper() else (name,)))
        yield from (".".join(filter(None, chosen)) for chosen in product(*choices))
