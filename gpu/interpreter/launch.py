"""A launch: parameters and memory laid out, the machine run in several orders, results compared, faults told."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from gpu.interpreter import machine
from gpu.interpreter.decode import Program, decode
from gpu.interpreter.errors import KernelError
from gpu.interpreter.lanes import LANES
from gpu.interpreter.regions import REGION_BITS, Memory, Region
from gpu.interpreter.state import (
    BLOCK,
    BUDGET,
    CTAID,
    FAULT,
    FAULT_ADDRESS,
    FAULT_LANE,
    FAULT_PLACE,
    FAULT_WARP,
    REVERSED,
    WARP_WORDS,
    State,
)  # fmt: skip
from refimpl.contract import host

__all__ = ["launch"]

_SLICE = 2_000_000  # instructions between two looks at the keyboard
_BUDGET = 20_000_000_000
_MOST_SHARED = 232448  # bytes of shared memory that a block of sm_90 can have


@host
def launch(
    ptx: str, entry: str, grid: Sequence[int], block: Sequence[int], params: Sequence[Any],
    memory: Sequence[np.ndarray[Any, Any]], *, names: Sequence[str] = (), shared: int = 0, orders: int = 2,
    races: bool = True, budget: int = _BUDGET,
) -> Any:  # fmt: skip
    """Run a kernel on arrays, in so many orders of its warps and blocks, which must give the same bytes."""
    program = decode(ptx, entry)
    run = _Run(program, _three(grid), _three(block), params, Memory(memory, names), shared)
    before = [array.copy() for array in memory] if orders > 1 else []
    for order in range(orders):
        if order:
            after = [array.copy() for array in memory]
            for array, old in zip(memory, before, strict=True):
                if array.flags.writeable:
                    array[...] = old
        run.go(order, budget)
        if order:
            for i, (array, first) in enumerate(zip(memory, after, strict=True)):
                if array.tobytes() != first.tobytes():
                    name = names[i] if i < len(names) else f"array {i}"
                    raise KernelError(f"{entry}: {name} differs when warps and blocks run in another order")
    return run.state


def _three(size: Any) -> tuple[int, int, int]:
    sizes = (size,) if isinstance(size, int) else tuple(size)
    return (*sizes, *(1,) * (3 - len(sizes)))


class _Run:
    """A launch of a program: the state of its machine."""

    def __init__(self, program: Program, grid: Any, block: Any, params: Any, memory: Memory, shared: int) -> None:
        self.program, self.grid, self.block, self.memory = program, grid, block, memory
        threads = block[0] * block[1] * block[2]
        warps = -(-threads // LANES)
        lanes = np.arange(warps * LANES)
        present = (lanes < threads).reshape(warps, LANES)
        self.parameters = _pack(program, params)
        self.variables = {
            name: np.frombuffer(bytearray(variable.initial or bytes(variable.size)), np.uint8)
            for name, variable in program.variables.items()
        }
        shared_memory = np.empty(program.shared_size + shared, np.uint8)
        local = np.empty((warps * LANES, program.local_size), np.uint8)
        regions, addresses = self.lay_out(shared_memory, local)
        self.state = State(
            table=program.table, rows=program.rows, jumps=program.jumps,
            registers=np.full((warps, program.num_rows, LANES), 2**64 - 1, np.uint64),
            warps=np.zeros((warps, WARP_WORDS), np.int64),
            threads=(present * (1 << np.arange(LANES))).sum(1),
            order=np.arange(warps), grid=np.array(grid, np.int64), words=np.zeros(48, np.int64),
            regions=regions, shared=shared_memory, local=local.reshape(-1),
            lanes=np.zeros((2, LANES), np.int64), executed=np.zeros(len(program.table), np.int64),
        )  # fmt: skip
        self.fill(lanes.reshape(warps, LANES), addresses)

    def lay_out(self, shared: Any, local: Any) -> tuple[Any, dict[str, int]]:
        """Return the table of regions, and the addresses of the variables in global memory."""
        regions = [
            Region("nothing", 0, 0, 0), Region("shared memory", 1 << REGION_BITS, shared.size, shared.ctypes.data),
            Region("local memory", 2 << REGION_BITS, self.program.local_size, local.ctypes.data),
            Region("the parameters", 3 << REGION_BITS, self.parameters.size, self.parameters.ctypes.data, False),
            *self.memory.regions,
        ]  # fmt: skip
        addresses = {}
        for name, content in self.variables.items():
            addresses[name] = len(regions) << REGION_BITS
            writable = self.program.variables[name].space != "const"
            regions.append(Region(name, addresses[name], content.size, content.ctypes.data, writable))
        self.regions = regions
        return np.array([region.row() for region in regions], np.int64), addresses

    def fill(self, threads: Any, addresses: dict[str, int]) -> None:
        """Fill the rows that no instruction writes: literals, special registers, addresses."""
        registers, program = self.state.registers, self.program
        for row, word in program.words.items():
            registers[:, row] = word
        for row, (name, offset) in program.addresses.items():
            registers[:, row] = addresses[name] + offset
        x, y, _ = self.block
        lane = threads % LANES
        values = {
            "%tid.x": threads % x, "%tid.y": threads // x % y, "%tid.z": threads // (x * y), "%laneid": lane,
            "%warpid": threads // LANES, "%nwarpid": len(threads), "%smid": 0, "%nsmid": 1, "%gridid": 0,
            "%dynamic_smem_size": self.state.shared.size - program.shared_size,
            "%total_smem_size": self.state.shared.size,
            "%lanemask_eq": 1 << lane, "%lanemask_lt": (1 << lane) - 1, "%lanemask_le": (2 << lane) - 1,
            "%lanemask_gt": 2**32 - (2 << lane), "%lanemask_ge": 2**32 - (1 << lane),
            **{f"%ntid.{axis}": size for axis, size in zip("xyz", self.block, strict=True)},
            **{f"%nctaid.{axis}": size for axis, size in zip("xyz", self.grid, strict=True)},
        }  # fmt: skip
        for name, row in program.specials.items():
            if name in values:
                registers[:, row] = values[name]
        for i, axis in enumerate("xyz"):
            self.state.words[CTAID + i] = program.specials.get(f"%ctaid.{axis}", 1)

    def go(self, order: int, budget: int) -> None:
        """Run all blocks: the first time in order, the second time from the end."""
        words = self.state.words
        words[:CTAID] = 0
        words[BUDGET], words[REVERSED] = budget, order % 2
        self.state.order[:] = self.state.order[::-1] if order else np.arange(len(self.state.order))
        while (status := machine.run(self.state, _SLICE)) == machine.PAUSED:
            if words[BUDGET] <= 0:
                raise KernelError(f"{self.program.name}: still running after {budget} instructions of its warps")
        if status == machine.FAILED:
            raise KernelError(self.describe())

    def describe(self) -> str:
        """Return the sentence of a fault."""
        words = self.state.words
        thread = words[FAULT_WARP] * LANES + words[FAULT_LANE]
        place = words[FAULT_PLACE]
        where = f"{self.program.name}, PTX line {self.program.lines[place]} ({self.program.opcodes[place]})"
        return f"{where}, block {words[BLOCK]}, thread {thread}: fault {words[FAULT]} at {words[FAULT_ADDRESS]:#x}"


def _pack(program: Program, params: Sequence[Any]) -> Any:
    """Return the parameters as a kernel finds them in memory."""
    if len(params) != len(program.parameters):
        raise KernelError(f"{program.name} takes {len(program.parameters)} parameters, got {len(params)}")
    data = bytearray()
    for variable, value in zip(program.parameters, params, strict=True):
        data += bytes(-len(data) % variable.align)
        raw = value if isinstance(value, bytes) else np.asarray(value).tobytes()
        if len(raw) != variable.size:
            raise KernelError(f"{program.name}: {variable.name} has {variable.size} bytes, got {len(raw)}")
        data += raw
    return np.frombuffer(bytes(data), np.uint8)
