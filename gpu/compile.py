"""Kernels: Numba or CUDA C++ to PTX, which the interpreter runs, and on to machine code, which a GPU runs.

A kernel is compiled on first use and kept on disk under a hash of its source, options and compilers. The driver
never compiles: the PTX of a toolkit may be newer than what the driver of the machine reads.
"""

import functools
import re
import types
import unittest.mock
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpu.arguments import flatten
from gpu.fingerprint import fingerprint
from gpu.store import kept
from gpu.toolkit import link, need_toolkit, nvrtc_ptx, toolkit_key
from refimpl.contract import Array, host

__all__ = ["Kernel", "cuda_kernel", "device_function", "numba_kernel"]


@dataclass(frozen=True, eq=False)
class Kernel:
    """What ``device.launch`` takes: a function for the GPU, and the names and types of its arguments.

    A type is a scalar (``"float32"``), an array as Numba writes it (``"uint16[:, ::1]"``) or a pointer (``"uint16*"``).
    Arrays of bfloat16 and float16 pass for uint16.
    """

    name: str
    entry: str
    parameters: tuple[str, ...]
    types: tuple[str, ...]
    shared: int
    source: str
    """A hash of what the kernel is compiled from."""
    compile: Callable[[str], str] = field(repr=False)
    """From architecture to PTX."""

    def ptx(self, arch: str = "sm_90") -> str:
        """Return the kernel as PTX for an architecture."""
        return _ptx(self, arch)

    def cubin(self, arch: str) -> bytes:
        """Return the kernel as machine code."""
        return self.cubin_path(arch).read_bytes()

    def cubin_path(self, arch: str) -> Path:
        """Return the file that holds the kernel as machine code."""
        return kept(self._key(arch), ".cubin", lambda: link(self.name, self.ptx(arch), arch))

    def pack(self, args: Sequence[Array], address_of: Callable[[Array], int]) -> list[Any]:
        """Return the parameters of a launch as numbers; an array is as many as its compiler makes of it."""
        return flatten(self.name, self.parameters, self.types, args, address_of)

    def _key(self, arch: str) -> str:
        return fingerprint(self.source, arch, toolkit_key())


@functools.cache
def _ptx(kernel: Kernel, arch: str) -> str:
    return kept(kernel._key(arch), ".ptx", lambda: kernel.compile(arch).encode()).read_text()


@host
def numba_kernel(
    *types: str, name: str | None = None, launch_bounds: int | tuple[int, int] | None = None
) -> Callable[[Any], Kernel]:
    """Make a kernel of a Python function from the types of its parameters.

    ``launch_bounds`` are the most threads of a block and, beside it, the least blocks at a time on a multiprocessor.
    """

    def make(function: Any) -> Kernel:
        need_toolkit()
        parameters = function.__code__.co_varnames[: function.__code__.co_argcount]
        if len(types) != len(parameters):
            raise TypeError(f"{function.__name__} has {len(parameters)} parameters and {len(types)} types")
        source = fingerprint(function, types, launch_bounds)
        entry = function.__name__
        return Kernel(name or entry, entry, parameters, types, 0, source,
                      lambda arch: _numba_ptx(function, types, launch_bounds, arch))

    return make


@host
def device_function(function: Callable[..., Any]) -> Any:
    """Make a Python function callable from Numba kernels. It becomes a part of its callers."""
    need_toolkit()
    from numba import cuda

    return cuda.jit(function, device=True, forceinline=True)


def _numba_ptx(function: Any, types: tuple[str, ...], launch_bounds: Any, arch: str) -> str:
    from numba import cuda

    target = _compute_capability(arch)
    with _target(target):
        ptx, _ = cuda.compile_ptx(function, f"void({', '.join(types)})", cc=target, launch_bounds=launch_bounds)
    return _plain(ptx, function.__name__)


def _compute_capability(arch: str) -> tuple[int, int]:
    digits = arch.removeprefix("sm_")
    return int(digits[:-1]), int(digits[-1])


def _target(compute_capability: tuple[int, int]) -> Any:
    """Have Numba compile device functions for a target: it asks for the GPU at hand, and there may be none."""
    from numba.cuda import dispatcher

    answer = types.SimpleNamespace(compute_capability=compute_capability)
    return unittest.mock.patch.object(dispatcher, "get_current_device", lambda: answer)


def _plain(ptx: str, name: str) -> str:
    """Give the entry and arrays names without Numba's mangling and counters, and drop its unused globals."""
    mangled = re.search(r"\.entry (\w+)", ptx)
    assert mangled is not None
    lines = [line for line in ptx.splitlines() if not (line.startswith(".common .global") and "NumbaEnv" in line)]
    text = "\n".join(lines).replace(mangled[1], name) + "\n"
    for number, array in enumerate(dict.fromkeys(re.findall(r"\b_cudapy_[a-z]+_\d+\b", text))):
        text = re.sub(rf"\b{array}\b", f"array_{number}", text)
    return text


@host
def cuda_kernel(
    path: str | Path, entry: str, parameters: Sequence[tuple[str, str]], *,
    options: tuple[str, ...] = (), shared: int = 0, name: str | None = None,
) -> Kernel:
    """Make a kernel of an ``extern "C" __global__`` function of a CUDA C++ file, which includes only files beside it.

    ``parameters`` are names and types; ``shared`` is the dynamic shared memory in bytes.
    """
    sources = _sources(Path(path))
    return Kernel(
        name or entry, entry, tuple(name for name, _ in parameters), tuple(kind for _, kind in parameters), shared,
        fingerprint(sources, options), lambda arch: nvrtc_ptx(Path(path).name, sources, arch, options))


def _sources(path: Path) -> dict[str, str]:
    """Return the text of a file and, by name, of those that it includes."""
    text = path.read_text()
    found = {path.name: text}
    for included in re.findall(r'^\s*#include "([^"]+)"', text, re.MULTILINE):
        found |= _sources(path.parent / included)
    return found
