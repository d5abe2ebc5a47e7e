"""What the machine code of a kernel is: NVIDIA's disassembler and its table of resources, from Python packages."""

import re
import subprocess
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

from refimpl.contract import UsageError, host

__all__ = ["Resources", "disassemble", "resources"]


@dataclass(frozen=True)
class Resources:
    """What a thread of a kernel holds, and a block: registers, bytes of stack, local and static shared memory."""

    registers: int
    stack: int
    local: int
    shared: int


@host
@cache
def disassemble(cubin: Path) -> str:
    """Return the machine code of a cubin as text."""
    return _run("nvdisasm", "-c", str(cubin))


@host
@cache
def resources(cubin: Path, entry: str) -> Resources:
    """Return what a kernel of a cubin takes."""
    text = _run("cuobjdump", "-res-usage", str(cubin))
    line = text.partition(f" Function {entry}:")[2].split("\n")[1]
    found = {name: int(number) for name, number in re.findall(r"(\w+):(\d+)", line)}
    return Resources(found["REG"], found["STACK"], found["LOCAL"], found["SHARED"])


def _run(tool: str, *args: str) -> str:
    done = subprocess.run([_path(tool), *args], capture_output=True, text=True, check=False)
    if done.returncode:
        raise UsageError(f"{tool} cannot read {args[-1]}: {(done.stderr or done.stdout).strip().splitlines()[0]}")
    return done.stdout


@cache
def _path(tool: str) -> str:
    """Return where a package of NVIDIA has put its program."""
    package = f"nvidia-cuda-{tool}"
    try:
        return next(str(file.locate()) for file in files(package) or () if file.name == tool)
    except (PackageNotFoundError, StopIteration):
        raise UsageError(f"machine code is read with {tool}: pip install {package}") from None
