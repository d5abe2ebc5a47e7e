"""``cp.async``: what an opcode says."""

import functools

from gpu.interpreter.grammar import expand
from refimpl.contract import host

__all__ = ["COMMIT", "COPY", "WAIT", "WAIT_ALL", "catalogue", "code_of"]

COPY, COMMIT, WAIT, WAIT_ALL = range(4)
_COPIES = "cp.async.ca.ROOM.global{.FETCH} cp.async.cg.ROOM.global{.FETCH}"
_LISTS = {"ROOM": ("shared", "shared::cta"), "FETCH": ("L2::64B", "L2::128B", "L2::256B")}
_PLAIN = {"cp.async.commit_group": COMMIT, "cp.async.wait_group": WAIT, "cp.async.wait_all": WAIT_ALL}


@functools.cache
@host
def catalogue() -> dict[str, int]:
    """Return every opcode of the family, with its code."""
    return _PLAIN | dict.fromkeys(expand(_COPIES, _LISTS), COPY)


@host
def code_of(opcode: str, width: int) -> int | None:
    """Return the code of an opcode."""
    return catalogue().get(opcode)
