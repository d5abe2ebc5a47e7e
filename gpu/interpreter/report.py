"""A fault as one sentence: kernel, line, block, thread, what."""

from gpu.interpreter import faults
from gpu.interpreter.decode import Program
from gpu.interpreter.lanes import LANES
from gpu.interpreter.layout import Layout
from gpu.interpreter.race_report import thread_of
from gpu.interpreter.regions import REGION_BITS
from gpu.interpreter.state import BLOCK, FAULT, FAULT_ADDRESS, FAULT_LANE, FAULT_PLACE, FAULT_WARP, REVERSED
from gpu.interpreter.watching import sentence
from refimpl.contract import host

__all__ = ["describe"]

_PLAIN = {
    faults.NOT_A_MEMBER: "the thread is not among the lanes that its mask names",
    faults.ABSENT: "the thread reads from a lane that does not take part",
    faults.DIVERGED_BARRIER: "the lanes of the warp do not come to this barrier together",
    faults.PARTIAL_WARP: "not all 32 lanes of the warp take part",
    faults.TRAPPED: "the kernel gives up (trap)",
    faults.BAD_INDEX: "the index of the branch is outside its list",
    faults.DIFFERENT_VALUES: "lanes of the warp store different values to the same bytes",
    faults.QUEUE_FULL: "the warp has more copies in flight than the machine holds",
    faults.IN_FLIGHT: "the thread ends with a cp.async that it has not waited for",
    faults.DEADLOCK: "the thread waits for ever: those it waits for do not come",
}  # fmt: skip


@host
def describe(program: Program, layout: Layout) -> str:
    """Return what has stopped the machine."""
    words = layout.state.words
    fault, place = int(words[FAULT]), int(words[FAULT_PLACE])
    thread = int(words[FAULT_WARP]) * LANES + int(words[FAULT_LANE])
    if fault == faults.RACE:
        thread = thread_of(layout.state.watching.watch)
        what = sentence(
            layout.state.watching, layout.regions, lambda at: _line(program, at), lambda at: _block(layout, int(at))
        )
    else:
        what = _PLAIN.get(fault) or _about_address(layout, fault)
    where = program.name if fault == faults.IN_FLIGHT else f"{program.name}, {_line(program, place)}"
    return f"{where}, block {_block(layout, int(words[BLOCK]))}, thread {thread}: {what}"


def _line(program: Program, place: int) -> str:
    return f"PTX line {program.lines[place]} ({program.opcodes[place]})"


def _block(layout: Layout, ordinal: int) -> str:
    """Return the index of the block that ran after so many others."""
    x, y, z = (int(size) for size in layout.state.grid)
    index = x * y * z - 1 - ordinal if layout.state.words[REVERSED] else ordinal
    place = (index % x, index // x % y, index // x // y)
    return str(place[0]) if y == z == 1 else str(place)


def _about_address(layout: Layout, fault: int) -> str:
    """Return what is wrong with an address."""
    address = int(layout.state.words[FAULT_ADDRESS])
    number = address >> REGION_BITS
    if not 0 < number < len(layout.regions):
        return f"address {address:#x} is in no array"
    region = layout.regions[number]
    where = f"byte {address - region.start} of {region.name}, which has {region.size}"
    match fault:
        case faults.OUTSIDE:
            return f"{where}: out of bounds"
        case faults.MISALIGNED:
            return f"{where}: misaligned"
        case faults.READ_ONLY:
            return f"{where}: a store to what can only be read"
    return f"{where}: not an address of the space that the instruction names"
