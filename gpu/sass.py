"""What the machine code of a kernel is: NVIDIA's disassembler and its table of resources, from Python packages."""

import re
import subprocess
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

from refimpl.contract import UsageError, host

__all__ = ["Counts", "Resources", "count", "disassemble", "resources"]

_RESERVED = 1 << 10  # bytes that Hopper's driver keeps in a block which has shared memory; the tools count them


@dataclass(frozen=True)
class Resources:
    """What a thread of a kernel holds, and a block: registers, bytes of stack, local and static shared memory."""

    registers: int
    stack: int
    local: int
    shared: int


@dataclass(frozen=True)
class Counts:
    """Instructions of a kernel's machine code, each once, however often it runs."""

    loads_128: int
    """Loads of 16 bytes from global memory, to registers or, as copies that run beside, to shared memory."""
    ldmatrix: int
    mma: int
    spilled: int
    """Loads and stores of local memory."""


@host
@cache
def disassemble(cubin: Path) -> str:
    """Return the machine code of a cubin as text."""
    return _run("nvdisasm", "-c", str(cubin))


@host
def count(cubin: Path) -> Counts:
    """Return how often the instructions that matter stand in a cubin."""
    opcodes = re.findall(r"^\s*/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)", disassemble(cubin), re.MULTILINE)
    patterns = (r"LDG(STS)?\b.*\b128\b", r"LDSM\b", r"[HIQ]G?MMA\b", r"(LDL|STL)\b")
    return Counts(*(sum(bool(re.match(pattern, opcode)) for opcode in opcodes) for pattern in patterns))


@host
@cache
def resources(cubin: Path, entry: str) -> Resources:
    """Return what a kernel of a cubin takes."""
    text = _run("cuobjdump", "-res-usage", str(cubin))
    line = text.partition(f" Function {entry}:")[2].split("\n")[1]
    found = {name: int(number) for name, number in re.findall(r"(\w+):(\d+)", line)}
    kept = _RESERVED if found["SHARED"] and "EF_CUDA_SM90" in disassemble(cubin) else 0
    return Resources(found["REG"], found["STACK"], found["LOCAL"], found["SHARED"] - kept)


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
