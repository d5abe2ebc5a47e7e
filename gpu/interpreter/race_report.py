"""A race as half a sentence: what the thread does, to which bytes, and who did what to them before."""

from collections.abc import Callable
from typing import Any

import numpy as np

from gpu.interpreter.clocks import MOST_BLOCKS, MOST_RELEASES, PENDING
from gpu.interpreter.races import ASYNC, ATOMIC, FULL, GLOBAL, READ, STRONG_READ, STRONG_WRITE, WRITE
from refimpl.contract import host

__all__ = ["describe", "thread_of"]

_NOW = {
    READ: "reads", WRITE: "writes", STRONG_READ: "reads (strongly)", STRONG_WRITE: "writes (strongly)",
    ASYNC: "copies to", ATOMIC: "updates atomically",
}  # fmt: skip
_THEN = {READ: "read", WRITE: "wrote", STRONG_READ: "read (strongly)", STRONG_WRITE: "updated atomically"}


@host
def thread_of(watch: Any) -> int:
    """Return the number in its block of the thread that ran into the race."""
    fault = watch[0]["fault"]
    return int(32 * fault["warp"] + (fault["pair"] >> 5 & 31))


def _blocks(state: Any) -> int:
    """Count the blocks of this order that have begun; those after MOST_BLOCKS count as the last one."""
    starts = state["starts"]
    return int(np.argmax(starts == state["start"])) + 1 if (starts == state["start"]).any() else MOST_BLOCKS


@host
def describe(
    watch: Any,
    line_of: Callable[[int], str],
    name_of: Callable[[int, int], str],
    block_of: Callable[[int], str],
) -> str:
    """Say what the access that ``races.access`` stopped would do.

    ``line_of(place)`` names a place of the program, ``name_of(space, offset)`` a byte, ``block_of(ordinal)`` the block
    that ran after ``ordinal`` others.
    """
    state = watch[0]
    space, offset, _, pair, kind, _, time, who = (int(number) for number in state["fault"])
    if pair == FULL:
        return f"orders blocks with more than {MOST_RELEASES} atomics, the most that the race detector follows"
    here, then, line = thread_of(watch), who & 0x3E0 | pair & 31, line_of(who >> 13)
    what = f"{_NOW[kind]} {name_of(space, offset)}"
    if time == PENDING and then == here:
        return f"{what} before the wait for its own cp.async there ({line})"
    if time == PENDING:
        return f"{what}, where the cp.async of thread {then} ({line}) is still under way"
    did = f"{_THEN[who >> 11 & 3]} ({line})"
    if space == GLOBAL and time < state["start"]:
        ordinal = int(np.searchsorted(state["starts"][: _blocks(state)], time, side="right")) - 1
        missing = "no fence and atomic there, then atomic and fence here, on one address"
        return f"{what}, which thread {then} of block {block_of(ordinal)} {did}: {missing}"
    if then == here:
        return f"{what}, which it {did} itself: nothing orders the two"
    if then >> 5 != here >> 5:
        return f"{what}, which thread {then} {did}: no barrier between them"
    return f"{what}, which thread {then} of its warp {did}: no bar.warp.sync between them"
