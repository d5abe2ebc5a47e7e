"""Where lanes go: branches, exits, barriers; and what changes nothing here: hints, naps, fences within a block."""

import functools

from gpu.interpreter.grammar import expand
from refimpl.contract import host

__all__ = [
    "ACTIVE", "AND", "ARRIVE", "BARRIER", "BRANCH", "COUNT", "EXIT", "FENCE", "NOTHING", "OR", "SWITCH", "TRAP", "WAIT",
    "catalogue", "code_of",
]  # fmt: skip

BRANCH, SWITCH, EXIT, TRAP, BARRIER, FENCE, ACTIVE, NOTHING = range(8)
WAIT, ARRIVE, COUNT, AND, OR = range(5)  # what happens at a barrier
_PLAIN = {
    "bra": BRANCH, "bra.uni": BRANCH, "brx.idx": SWITCH, "brx.idx.uni": SWITCH, "ret": EXIT, "ret.uni": EXIT,
    "exit": EXIT, "trap": TRAP, "brkpt": TRAP, "activemask.b32": ACTIVE, "nanosleep.u32": NOTHING,
    "membar.cta": NOTHING, "membar.gl": FENCE, "membar.sys": FENCE,
}  # fmt: skip
_BARRIERS = """
    bar{.cta}.WAY           bar{.cta}.red.popc.u32              bar{.cta}.red.JOIN.pred
    barrier{.cta}.WAY{.aligned}         barrier{.cta}.red.popc{.aligned}.u32    barrier{.cta}.red.JOIN{.aligned}.pred
"""
_LISTS = {
    "WAY": ("sync", "arrive"), "JOIN": ("and", "or"), "ORDER": ("sc", "acq_rel", "acquire", "release"),
    "SCOPE": ("cta", "cluster", "gpu", "sys"), "SPACE": ("global", "local"), "LEVEL": ("L1", "L2"),
}  # fmt: skip
_MEANINGS = {"sync": WAIT, "arrive": ARRIVE, "popc": COUNT, "and": AND, "or": OR}


@functools.cache
@host
def catalogue() -> dict[str, int]:
    """Return every opcode of the family, with its code; that of a barrier also says what happens there."""
    codes = dict(_PLAIN)
    for opcode in expand("fence.ORDER.SCOPE", _LISTS):
        codes[opcode] = NOTHING if opcode.endswith(".cta") else FENCE
    codes |= dict.fromkeys(expand("prefetch{.SPACE}.LEVEL", _LISTS), NOTHING)
    for opcode in expand(_BARRIERS, _LISTS):
        codes[opcode] = BARRIER | next(_MEANINGS[word] for word in opcode.split(".") if word in _MEANINGS) << 8
    return codes


@host
def code_of(opcode: str, width: int) -> int | None:
    """Return the code of an opcode."""
    return catalogue().get(opcode)
