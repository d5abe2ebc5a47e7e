"""python -m gpu.report: what every kernel takes and moves, as the page docs/kernels.md.

Every variant of the registry runs its workload on the interpreter, with all its checks. A row is a kernel that it
launched: what its machine code for compute capability 9.0 takes, and what its launches moved.
"""

import functools
import hashlib
import json
import operator
import platform
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu import device
from gpu.compile import Kernel
from gpu.device import Launch
from gpu.occupancy import Occupancy, occupancy
from gpu.registry import Variant, fused, variants
from gpu.sass import Counts, Resources, count, resources
from gpu.toolkit import spilled, toolkit_versions
from refimpl.contract import host

__all__ = ["Row", "page", "ptx_hash", "ran_right", "rows"]

_ARCH = "sm_90"


@dataclass(frozen=True)
class Row:
    """A kernel at work for a variant of an operation."""

    variant: Variant
    kernel: Kernel
    launches: tuple[Launch, ...]
    resources: Resources
    spilled: int
    counts: Counts
    occupancy: Occupancy
    counters: Any
    """What the interpreter counted, in all launches together."""


@host
def rows(chosen: Iterable[Variant] | None = None) -> list[Row]:
    """Run the workloads, and return a row for every kernel of every variant."""
    found = []
    for variant in (*variants(), *fused()) if chosen is None else chosen:
        with device.use("emulated"), device.recording() as launches:
            variant.call(**variant.workload())
        for kernel in dict.fromkeys(launch.kernel for launch in launches):
            found.append(_row(variant, kernel, tuple(launch for launch in launches if launch.kernel is kernel)))
    return found


def _row(variant: Variant, kernel: Kernel, launches: tuple[Launch, ...]) -> Row:
    path = kernel.cubin_path(_ARCH)
    taken = resources(path, kernel.entry)
    fits = occupancy(_threads(launches), taken.registers, taken.shared + launches[0].shared)
    counters = functools.reduce(operator.add, (launch.counters for launch in launches))
    bytes_spilled = spilled(kernel.name, kernel.ptx(_ARCH), _ARCH)
    return Row(variant, kernel, launches, taken, bytes_spilled, count(path), fits, counters)


def _threads(launches: Sequence[Launch]) -> int:
    x, y, z = launches[0].block
    return x * y * z


@host
def ptx_hash(kernel: Kernel) -> str:
    """Return a short hash of a kernel's instructions, by which a run on a GPU is known again."""
    lines = [line for line in kernel.ptx(_ARCH).splitlines() if not line.startswith(("//", ".version"))]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


@host
def page(rows: Sequence[Row], ran: Mapping[str, tuple[str, str]]) -> str:
    """Return the page; ``ran``: by a kernel's name, on which GPU it was right, and the hash of what ran there."""
    code = [_CODE, *(_code(row) for row in {row.kernel.name: row for row in rows}.values())]
    work = [_WORK, *(_work(row, *ran.get(row.kernel.name, ("no", ""))) for row in rows)]
    major, minor, _ = platform.python_version_tuple()
    made = f"Python {major}.{minor}, {toolkit_versions()}"
    return _PAGE.format(made=made, code=_table(code), work=_table(work))


def _table(lines: Sequence[Sequence[object]]) -> str:
    head, *body = [f"| {' | '.join(map(str, cells))} |" for cells in lines]
    return "\n".join([head, "|" + "---|" * len(lines[0]), *body])


def _code(row: Row) -> tuple[object, ...]:
    taken, dynamic = row.resources, row.launches[0].shared
    shared = f"{taken.shared} + {dynamic}" if dynamic else taken.shared
    full = f"{row.occupancy.share:.0%}, {row.occupancy.limit}"
    counts = row.counts.loads_128, row.counts.ldmatrix, row.counts.mma
    memory = row.spilled, taken.stack + taken.local, shared
    return f"`{row.kernel.name}`", _threads(row.launches), taken.registers, *memory, full, *counts


def _work(row: Row, gpu: str, known: str) -> tuple[object, ...]:
    grid = " × ".join(str(size) for size in row.launches[0].grid if size > 1) or "1"
    blocks = f"{len(row.launches)} times {grid}" if len(row.launches) > 1 else grid
    moved = row.counters
    shared = f"{moved.shared_wavefronts} / {moved.shared_ideal}" if moved.shared_ideal else ""
    on = gpu if known in ("", ptx_hash(row.kernel)) else f"{gpu}, another version"
    names = f"{row.variant.op} ({row.variant.name})", f"`{row.kernel.name}`"
    sectors = _sectors(row.kernel, moved.loads), _sectors(row.kernel, moved.stores)
    return *names, blocks, *sectors, shared, moved.barriers, 0, on


def _sectors(kernel: Kernel, moved: Mapping[str, tuple[int, int]]) -> str:
    """Return the sectors of each array in the order of the kernel's arguments, whatever the order in memory."""
    place = {name: number for number, name in enumerate(kernel.parameters)}
    arrays = sorted(moved, key=lambda names: place.get(names.split(", ")[0], len(place)))
    return ", ".join(f"{name} {moved[name][0]} / {moved[name][1]}" for name in arrays)


_CODE = (
    "kernel", "threads", "registers", "spilled", "stack", "shared memory", "occupancy, and what limits it", "LDG.128",
    "LDSM", "MMA",
)
_WORK = ("operation", "kernel", "blocks", "loads", "stores", "shared memory", "barriers", "races", "run on a GPU")
_PAGE = """\
# Kernels

Written by `make kernels`, which runs every kernel on the interpreter and reads its machine code. Made with
{made}.

## What they take

Machine code for compute capability 9.0. Bytes spilled are those that a thread stores and loads again because it has too
few registers; the stack holds arrays. Shared memory is what a block has, in bytes, static and, after the plus, dynamic.
Occupancy is the share of a multiprocessor's 64 warps that fit. The last columns count instructions in the code, not
runs of them: loads of 16 bytes from global memory, loads of matrices from shared memory, and tensor cores at work.

{code}

## What they move

One call on a small but usual input. Loads and stores of each array are 32-byte sectors of global memory: those asked
for, and the fewest that hold the same bytes. Shared memory: wavefronts, and how few there would be without bank
conflicts. Barriers are counted per block. Races are those that the interpreter found; it raises at the first.

{work}
"""


@host
def ran_right(path: Path) -> dict[str, tuple[str, str]]:
    """Return what ran right on a GPU, from the file that benchmarks/gpu_check.py wrote, if it ever has."""
    if not path.exists():
        return {}
    measured = json.loads(path.read_text())
    gpu = next(row["what"] for row in measured if row["unit"] == "GiB")
    right = [row for row in measured if not row["note"].startswith("WRONG")]
    return {name: (gpu, known) for row in right for name, known in row["kernels"].items()}


if __name__ == "__main__":
    print(page(rows(), ran_right(Path(sys.argv[1])) if sys.argv[1:] else {}), end="")
