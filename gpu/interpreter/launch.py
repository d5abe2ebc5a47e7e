"""A launch: a kernel run in several orders of its warps and blocks, which must all give the same bytes."""

import ctypes
from collections.abc import Sequence
from typing import Any

import numba
import numpy as np

from gpu.executor.jit import compile_now
from gpu.interpreter import machine
from gpu.interpreter.clocks import begin_order
from gpu.interpreter.counters import Counters
from gpu.interpreter.decode import Program, decode
from gpu.interpreter.errors import KernelError
from gpu.interpreter.faults import NO_FAULT, SNAPSHOT
from gpu.interpreter.layout import Layout, lay_out
from gpu.interpreter.regions import Memory, Region
from gpu.interpreter.report import describe
from gpu.interpreter.state import BUDGET, CTAID, DIVERGED, FAULT, FAULT_ADDRESS, OPENED, REVERSED
from gpu.interpreter.units import load_units
from refimpl.contract import host

__all__ = ["launch"]

_SLICE = 2_000_000  # instructions between two looks at the keyboard
_BUDGET = 4_000_000_000  # instructions of an order: some minutes


@host
def launch(
    ptx: str, entry: str, grid: Sequence[int], block: Sequence[int], params: Sequence[Any],
    memory: Sequence[np.ndarray[Any, Any]], *, names: Sequence[str] = (), shared: int = 0, orders: int = 2,
    races: bool = True, budget: int = _BUDGET,
) -> Counters:  # fmt: skip
    """Run a kernel on arrays, and return what its first order counted.

    ``params`` are the kernel's parameters as NumPy scalars; a pointer is an address that ``Memory(memory)`` gives.
    """
    program = decode(ptx, entry)
    load_units()
    layout = lay_out(program, _three(grid), _three(block), params, Memory(memory, names), shared, orders, races)
    before: dict[int, Any] = {}
    _run(program, layout, 0, budget, before)
    counters = _counters(program, layout)
    first = {number: _bytes(layout.regions[number]).copy() for number in before}
    for order in range(1, orders):
        for number, content in before.items():
            _bytes(layout.regions[number])[:] = content
        _run(program, layout, order, budget, before)
        for number, content in before.items():
            _compare(program, layout.regions[number], first.get(number, content))
    return counters


def _three(size: "int | Sequence[int]") -> tuple[int, ...]:
    sizes = (size,) if isinstance(size, int) else tuple(size)
    return (*sizes, *(1,) * (3 - len(sizes)))


def _bytes(region: Region) -> Any:
    """Return the bytes of a region as they stand in memory."""
    return np.frombuffer((ctypes.c_uint8 * region.size).from_address(region.place), np.uint8)


def _run(program: Program, layout: Layout, order: int, budget: int, before: dict[int, Any]) -> None:
    """Run all blocks, the odd times from the end, and keep the bytes of what is written for the first time."""
    state, words = layout.state, layout.state.words
    words[:CTAID] = 0
    words[BUDGET], words[REVERSED] = budget, order % 2
    state.order[:] = state.order[::-1] if order < 2 else np.random.default_rng(order).permutation(len(state.order))
    begin_order(state.watching.watch)
    if not machine.run.overloads:
        compile_now(machine.run, (numba.typeof(state), numba.types.int64))
    while (status := machine.run(state, min(_SLICE, words[BUDGET]))) == machine.PAUSED:
        if words[FAULT] == SNAPSHOT:
            number = int(words[FAULT_ADDRESS])
            before.setdefault(number, _bytes(layout.regions[number]).copy())
            state.kept[number], words[FAULT] = 1, NO_FAULT
        if words[BUDGET] <= 0:
            raise KernelError(f"{program.name}: still running after {budget} instructions of its warps")
    if status == machine.FAILED:
        raise KernelError(describe(program, layout))


def _counters(program: Program, layout: Layout) -> Counters:
    state, names = layout.state, [region.name for region in layout.regions]
    watching, words = state.watching, state.words
    return Counters.collect(
        program.opcodes, state.executed, watching.tally, watching.sectors, names, words[OPENED], words[DIVERGED],
        len(state.warps) * int(state.grid.prod()),
    )


def _compare(program: Program, region: Region, first: Any) -> None:
    """Demand the bytes of the first order."""
    differ = np.flatnonzero(_bytes(region) != first)
    if len(differ):
        where = f"{len(differ)} bytes of {region.name} from byte {differ[0]} on"
        sums = any(opcode.startswith(("atom", "red")) and opcode.endswith(("f32", "f64")) for opcode in program.opcodes)
        why = "; it adds floats atomically, so launch it with one order" if sums else ""
        raise KernelError(f"{program.name}: {where} differ when warps and blocks run in another order{why}")
