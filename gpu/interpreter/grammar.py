"""Opcodes as the PTX ISA writes them: one line of grammar stands for every opcode that fits it.

A name with a list stands for each member, braces for what may be missing. What no line yields is unknown, so a modifier
that the machine does not implement can never be passed over.
"""

import re
from collections.abc import Iterator, Mapping
from itertools import product

from refimpl.contract import host

__all__ = ["expand"]

_TOKEN = re.compile(r"\{\.(?P<optional>[\w.]+)\}|\.?(?P<name>\w+)")


@host
def expand(line: str, lists: Mapping[str, tuple[str, ...]]) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield every opcode of a line, with what each name became; a missing one became the empty string.

    >>> [opcode for opcode, _ in expand("cvt{.sat}.to.s32", {"to": ("u8", "u16")})]
    ['cvt.u8.s32', 'cvt.u16.s32', 'cvt.sat.u8.s32', 'cvt.sat.u16.s32']
    """
    tokens = list(_TOKEN.finditer(line))
    names = [token["optional"] or token["name"] for token in tokens]
    choices = [
        ("",) * bool(token["optional"]) + lists.get(name, (name,)) for token, name in zip(tokens, names, strict=True)
    ]
    for chosen in product(*choices):
        yield ".".join(filter(None, chosen)), dict(zip(names, chosen, strict=True))
