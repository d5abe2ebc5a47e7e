"""Where lanes go: branches, exits, barriers; and what changes nothing here: hints, naps, fences within a block."""

from refimpl.contract import host

__all__ = ["ACTIVE", "BARRIER", "BRANCH", "CLOCK", "EXIT", "FENCE", "NOTHING", "SWITCH", "TRAP", "code_of"]

BRANCH, SWITCH, EXIT, TRAP, BARRIER, FENCE, ACTIVE, CLOCK, NOTHING = range(9)
_PLAIN = {
    "bra": BRANCH, "bra.uni": BRANCH, "brx.idx": SWITCH, "brx.idx.uni": SWITCH, "ret": EXIT, "ret.uni": EXIT,
    "exit": EXIT, "trap": TRAP, "brkpt": TRAP, "activemask.b32": ACTIVE, "nanosleep.u32": NOTHING,
    "membar.cta": NOTHING, "membar.gl": FENCE, "membar.sys": FENCE,
    **{
        f"fence.{order}.{scope}": NOTHING if scope == "cta" else FENCE
        for order in ("sc", "acq_rel", "acquire", "release") for scope in ("cta", "cluster", "gpu", "sys")
    },
    **{f"prefetch.{space}{level}": NOTHING for space in ("", "global.", "local.") for level in ("L1", "L2")},
}  # fmt: skip
_REDUCTIONS = {"popc.u32": 2, "and.pred": 3, "or.pred": 4}
_WAIT, _ARRIVE = 0, 1


@host
def code_of(opcode: str, width: int) -> int | None:
    """Return the code of an opcode; that of a barrier also says what: 0 wait, 1 arrive, 2 count, 3 and, 4 or."""
    if opcode in _PLAIN:
        return _PLAIN[opcode]
    name, *words = opcode.split(".")
    if name not in ("bar", "barrier"):
        return None
    words = [word for word in words if word not in ("cta", "aligned")]
    if words in (["sync"], ["arrive"]):
        return BARRIER | (_ARRIVE if words == ["arrive"] else _WAIT) << 8
    kind = _REDUCTIONS.get(".".join(words[1:])) if words[:1] == ["red"] else None
    return kind if kind is None else BARRIER | kind << 8
