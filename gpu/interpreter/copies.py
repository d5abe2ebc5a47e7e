"""``cp.async``: what an opcode says."""

from refimpl.contract import host

__all__ = ["COMMIT", "COPY", "WAIT", "WAIT_ALL", "code_of"]

COPY, COMMIT, WAIT, WAIT_ALL = range(4)
_HINTS = ("L2::64B", "L2::128B", "L2::256B")
_PLAIN = {"cp.async.commit_group": COMMIT, "cp.async.wait_group": WAIT, "cp.async.wait_all": WAIT_ALL}


@host
def code_of(opcode: str, width: int) -> int | None:
    """Return the code of an opcode."""
    words = opcode.split(".")
    if words[:2] == ["cp", "async"] and words[2:3] in (["ca"], ["cg"]):
        is_plain = words[3:5] in (["shared", "global"], ["shared::cta", "global"])
        return COPY if is_plain and (not words[5:] or (len(words) == 6 and words[5] in _HINTS)) else None
    return _PLAIN.get(opcode)
