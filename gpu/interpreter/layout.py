"""A launch laid out in memory: the state of the machine before its first instruction."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from gpu.interpreter.async_copy import make_queue
from gpu.interpreter.decode import Program
from gpu.interpreter.errors import KernelError
from gpu.interpreter.lanes import LANES, SINK
from gpu.interpreter.regions import MIDDLE, REGION_BITS, Memory, Region
from gpu.interpreter.state import CTAID, NUM_WORDS, WARP_WORDS, State
from gpu.interpreter.watching import make_watching
from refimpl.contract import host

__all__ = ["Layout", "lay_out"]

_MOST_BLOCKS, _MOST_ALONG = (2**31 - 1, 65535, 65535), (1024, 1024, 64)  # along the axes of a grid, of a block
_MOST_THREADS, _MOST_SHARED, _MOST_LOCAL = 1024, 232448, 1 << 19  # of a block, of a block and of a thread, on sm_90
_POISON = 0xFF


class Layout:
    """The state of a launch, and what its arrays mean."""

    def __init__(self, state: State, regions: list[Region], owners: list[Any]) -> None:
        self.state, self.regions, self.owners = state, regions, owners  # the owners keep the memory of the regions


@host
def lay_out(
    program: Program, grid: Sequence[int], block: Sequence[int], params: Sequence[Any], memory: Memory, shared: int,
    orders: int, races: bool,
) -> Layout:  # fmt: skip
    """Return the launch of a program on blocks of so many threads."""
    _check_limits(program, grid, block, shared)
    threads = block[0] * block[1] * block[2]
    warps = -(-threads // LANES)
    lanes = np.arange(warps * LANES).reshape(warps, LANES)
    block_memory = np.empty(program.shared_size + shared, np.uint8)
    thread_memory = np.empty(warps * LANES * program.local_size, np.uint8)
    parameters = _packed(program, params)
    variables = {name: _initial(variable) for name, variable in program.variables.items()}
    regions, addresses = _regions(program, memory, variables, block_memory, thread_memory, parameters)
    registers = np.full((warps, program.num_rows, LANES), 0xFFFFFFFFFFFFFFFF, np.uint64)
    words = np.zeros(NUM_WORDS, np.int64)
    state = State(
        table=program.table, rows=program.rows, jumps=program.jumps, registers=registers,
        warps=np.zeros((warps, WARP_WORDS), np.int64), threads=((lanes < threads) * (1 << lanes % LANES)).sum(1),
        order=np.arange(warps), grid=np.array(grid, np.int64), words=words,
        regions=np.array([region.row() for region in regions], np.int64), shared=block_memory, local=thread_memory,
        lanes=np.zeros((4, LANES), np.int64), quads=np.zeros((LANES, 4), np.uint32),
        executed=np.zeros(len(program.table), np.int64),
        kept=np.full(len(regions), orders == 1, np.uint8), queue=make_queue(warps),
        watching=make_watching(program.opcodes, [region.size for region in regions], threads, races, orders),
    )  # fmt: skip
    for row, word in program.words.items():
        registers[:, row] = word
    for row, (name, offset) in program.addresses.items():
        registers[:, row] = addresses[name] + offset
    sizes = {"dynamic": shared, "total": program.shared_size + shared}
    for name, value in _special(lanes, grid, block, sizes).items():
        if name in program.specials:
            registers[:, program.specials[name]] = value
    words[CTAID : CTAID + 3] = [program.specials.get(f"%ctaid.{axis}", SINK) for axis in "xyz"]
    return Layout(state, regions, [memory, variables, parameters])


def _check_limits(program: Program, grid: Sequence[int], block: Sequence[int], shared: int) -> None:
    """Refuse what a GPU would not launch; a grid without blocks runs nothing."""
    for name, sizes, least, limits in (("grid", grid, 0, _MOST_BLOCKS), ("block", block, 1, _MOST_ALONG)):
        if len(sizes) != 3 or not all(least <= size <= most for size, most in zip(sizes, limits, strict=True)):
            raise KernelError(f"{program.name}: a {name} of {tuple(sizes)}; along its axes it has at most {limits}")
    threads, shared_size = math.prod(block), program.shared_size + shared
    if threads > _MOST_THREADS or shared < 0 or shared_size > _MOST_SHARED:
        size = f"{threads} threads and {shared_size} bytes of shared memory"
        raise KernelError(f"{program.name}: a block has {size}; it can have {_MOST_THREADS} and {_MOST_SHARED}")
    if program.local_size > _MOST_LOCAL:
        size = f"{program.local_size} bytes of its own"
        raise KernelError(f"{program.name}: a thread has {size}; it can have {_MOST_LOCAL}")


def _initial(variable: Any) -> Any:
    return np.frombuffer(bytearray(variable.initial or bytes(variable.size)), np.uint8)


def _regions(
    program: Program, memory: Memory, variables: dict[str, Any], block_memory: Any, thread_memory: Any, parameters: Any
) -> tuple[list[Region], dict[str, int]]:
    """Return the regions, and the addresses of the variables in global memory."""
    regions = [
        Region("nothing", 0, 0, 0, False),
        Region("shared memory", 1 << REGION_BITS, block_memory.size, block_memory.ctypes.data),
        Region("local memory", 2 << REGION_BITS, program.local_size, thread_memory.ctypes.data),
        Region("the parameters", 3 << REGION_BITS, parameters.size, parameters.ctypes.data, False),
        *memory.regions,
    ]  # fmt: skip
    addresses = {}
    for name, content in variables.items():
        addresses[name] = (len(regions) << REGION_BITS) + MIDDLE
        is_writable = program.variables[name].space != "const"
        regions.append(Region(name, addresses[name], content.size, content.ctypes.data, is_writable))
    return regions, addresses


def _special(lanes: Any, grid: Sequence[int], block: Sequence[int], shared: dict[str, int]) -> dict[str, Any]:
    """Return what the special registers hold, whole or per warp and lane; %ctaid changes with the block."""
    x, y, _ = block
    lane = lanes % LANES
    return {
        "%tid.x": lanes % x, "%tid.y": lanes // x % y, "%tid.z": lanes // (x * y), "%laneid": lane,
        "%warpid": lanes // LANES, "%nwarpid": len(lanes), "%smid": 0, "%nsmid": 1, "%gridid": 0,
        "%dynamic_smem_size": shared["dynamic"], "%total_smem_size": shared["total"],
        "%lanemask_eq": 1 << lane, "%lanemask_lt": (1 << lane) - 1, "%lanemask_le": (2 << lane) - 1,
        "%lanemask_gt": 2**32 - (2 << lane), "%lanemask_ge": 2**32 - (1 << lane),
        **{f"%ntid.{axis}": size for axis, size in zip("xyz", block, strict=True)},
        **{f"%nctaid.{axis}": size for axis, size in zip("xyz", grid, strict=True)},
    }  # fmt: skip


def _packed(program: Program, params: Sequence[Any]) -> Any:
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
