"""What a launch holds while it runs: the arrays that the machine works on."""

from typing import Any, NamedTuple

__all__ = [
    "ARRIVED", "BLOCK", "BUDGET", "CTAID", "DIVERGED", "FAULT", "FAULT_ADDRESS", "FAULT_LANE", "FAULT_PLACE",
    "FAULT_WARP", "LIVE", "NUM_WORDS", "OPENED", "REVERSED", "STARTED", "SYNCING", "WAITING", "WARP_WORDS", "State",
]  # fmt: skip

LIVE, WAITING, SYNCING, WARP_WORDS = 32, 33, 34, 35  # words of a warp after the places of its 32 lanes: masks of lanes
(
    BUDGET, BLOCK, STARTED, FAULT, FAULT_WARP, FAULT_LANE, FAULT_PLACE, FAULT_ADDRESS, DIVERGED, OPENED, REVERSED,
) = range(11)  # fmt: skip
CTAID, ARRIVED, NUM_WORDS = 16, 32, 48  # the rows of %ctaid, and how many threads have arrived at each of 16 barriers


class State(NamedTuple):
    """The arrays of a launch. NumPy makes them, the machine changes them in place."""

    table: Any  # int64 [instructions, COLUMNS]: gpu/interpreter/codes.py
    rows: Any  # int32 [instructions, MOST_ROWS]: the rows of the register file that are the operands
    jumps: Any  # int64: the targets of indexed branches
    registers: Any  # uint64 [warps, rows, 32]
    warps: Any  # int64 [warps, WARP_WORDS]
    threads: Any  # int64 [warps]: which lanes there are, as a mask
    order: Any  # int64 [warps]: which warp runs first
    grid: Any  # int64 [3]
    words: Any  # int64 [48]: counters and what went wrong
    regions: Any  # int64 [regions, 4]: gpu/interpreter/regions.py
    shared: Any  # uint8: the memory of a block
    local: Any  # uint8: that of all threads of a block
    lanes: Any  # int64 [4, 32]: of an access the addresses and where their bytes stand; of a copy targets and sizes
    quads: Any  # uint32 [32, 4]: the rows of ldmatrix
    executed: Any  # int64 [instructions]: how often each ran
    kept: Any  # uint8 [regions]: whose bytes are kept for another order
    queue: Any  # gpu/interpreter/async_copy.py
    watching: Any  # gpu/interpreter/watching.py
