"""What runs where: arrays and launches on ``cuda`` (CuPy) and ``emulated`` (the PTX interpreter on NumPy arrays)."""

import contextlib
import functools
import importlib.util
import math
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from refimpl.contract import Array, UsageError, host

if TYPE_CHECKING:
    from gpu.compile import Kernel

__all__ = [
    "DEVICES", "Launch", "array", "checks", "current", "empty", "is_aligned", "launch", "pick", "recording", "to_host",
    "use",
]

DEVICES = ("cpu", "cuda", "emulated")

_CURRENT: ContextVar[str | None] = ContextVar("device", default=None)
_CHECKS: ContextVar[tuple[int, bool]] = ContextVar("checks", default=(2, True))
_RECORD: ContextVar["list[Launch] | None"] = ContextVar("record", default=None)


@dataclass(frozen=True)
class Launch:
    """A launch and, when it was emulated, what the interpreter counted."""

    kernel: "Kernel"
    grid: tuple[int, ...]
    block: tuple[int, ...]
    shared: int
    counters: Any


@host
def pick(name: str = "auto") -> str:
    """Return the device to run a model on: ``auto`` is CUDA where there is a GPU that CuPy finds, and else the CPU.

    >>> pick("cpu")
    'cpu'
    """
    if name == "auto":
        return "cpu" if _why_no_cuda() else "cuda"
    if name not in DEVICES:
        raise UsageError(f"device {name} is not there: this version runs on {', '.join(DEVICES)}")
    if name == "cuda" and (reason := _why_no_cuda()):
        raise UsageError(f"device cuda is not there: {reason}")
    if name == "emulated":
        from gpu.toolkit import need_toolkit

        need_toolkit()
    return name


@functools.cache
def _why_no_cuda() -> str:
    """Return why CUDA kernels cannot run here, or nothing when they can."""
    if importlib.util.find_spec("cupy") is None:
        return 'CuPy is not installed: pip install -e ".[cuda12]" or ".[cuda13]"'
    import cupy

    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        return f"CuPy finds no GPU: {error}"
    return "" if count else "CuPy finds no GPU"


@host
def current() -> str:
    """Return where kernels run: ``cuda`` or ``emulated``."""
    return _CURRENT.get() or ("emulated" if _why_no_cuda() else "cuda")


@host
@contextlib.contextmanager
def use(name: str) -> Iterator[None]:
    """Run kernels on a device inside the ``with`` block.

    >>> with use("emulated"):
    ...     current()
    'emulated'
    """
    if name not in DEVICES[1:]:
        raise UsageError(f"kernels run on cuda and emulated, not on {name}")
    with _set(_CURRENT, pick(name)):
        yield


@host
def checks(orders: int = 2, races: bool = True) -> contextlib.AbstractContextManager[None]:
    """Have emulated launches inside the ``with`` block run in so many orders of warps, and look for races or not."""
    return _set(_CHECKS, (orders, races))


@host
@contextlib.contextmanager
def recording() -> Iterator[list[Launch]]:
    """Collect the launches inside the ``with`` block."""
    launches: list[Launch] = []
    with _set(_RECORD, launches):
        yield launches


@contextlib.contextmanager
def _set(variable: ContextVar[Any], value: Any) -> Iterator[None]:
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


@host
def array(x: Any, dtype: Any = None) -> Array:
    """Return ``x`` as a C-contiguous array of the current device, its elements at addresses that kernels can read."""
    if current() == "emulated":
        return np.require(to_host(x), dtype, ("C", "ALIGNED"))
    import cupy

    return cupy.ascontiguousarray(cupy.asarray(x, dtype))


@host
def empty(shape: int | tuple[int, ...], dtype: Any) -> Array:
    """Return an array of the current device to write into. An emulated one holds NaN or -1: a forgotten write shows."""
    if current() == "emulated":
        fresh = np.empty(shape, dtype)
        fresh.reshape(-1).view(np.uint8).fill(0xFF)
        return fresh
    import cupy

    return cupy.empty(shape, dtype)


@host
def is_aligned(x: Array, size: int = 16) -> bool:
    """Say whether an array begins where words of ``size`` bytes may be read; one still to be copied to a GPU will."""
    if hasattr(x, "get"):
        return bool(x.data.ptr % size == 0)
    if current() == "cuda":
        return True
    from gpu.interpreter import Memory

    return Memory([x]).address(x) % size == 0


@host
def to_host(x: Array) -> np.ndarray:
    """Return an array of any device as a NumPy array."""
    return x.get() if hasattr(x, "get") else np.asarray(x)


@host
def launch(
    kernel: "Kernel", grid: int | tuple[int, ...], block: int | tuple[int, ...], *args: Any, shared: int = 0,
) -> None:
    """Run a kernel on arrays of the current device. A grid without blocks runs nothing.

    ``shared`` is the dynamic shared memory in bytes, where it is not the kernel's own.
    """
    blocks, threads = _three(grid), _three(block)
    if math.prod(blocks) == 0:
        return
    run = _launch_emulated if current() == "emulated" else _launch_cuda
    counters = run(kernel, blocks, threads, args, shared or kernel.shared)
    record = _RECORD.get()
    if record is not None:
        record.append(Launch(kernel, blocks, threads, shared or kernel.shared, counters))


def _three(size: int | tuple[int, ...]) -> tuple[int, ...]:
    axes = tuple(size) if isinstance(size, tuple) else (int(size),)
    return axes + (1,) * (3 - len(axes))


def _launch_emulated(
    kernel: "Kernel", grid: tuple[int, ...], block: tuple[int, ...], args: tuple[Any, ...], shared: int,
) -> Any:
    from gpu import interpreter

    named = {name: x for name, x in zip(kernel.parameters, args, strict=False) if isinstance(x, np.ndarray)}
    arrays = list(named.values())
    orders, races = _CHECKS.get()
    return interpreter.launch(
        kernel.ptx(), kernel.entry, grid, block, kernel.pack(args, interpreter.Memory(arrays).address), arrays,
        names=tuple(named), shared=shared, orders=orders, races=races)


def _launch_cuda(
    kernel: "Kernel", grid: tuple[int, ...], block: tuple[int, ...], args: tuple[Any, ...], shared: int,
) -> None:
    import cupy

    function = _loaded(kernel, cupy.cuda.Device().id)
    if shared and shared > function.max_dynamic_shared_size_bytes:  # 48 KB, less what the kernel declares
        function.max_dynamic_shared_size_bytes = shared
    function(grid, block, tuple(kernel.pack(args, lambda x: x.data.ptr)), shared_mem=shared)


@functools.cache
def _loaded(kernel: "Kernel", device: int) -> Any:
    """Return a kernel as a function of the current GPU, from machine code made for it."""
    import cupy

    arch = f"sm_{cupy.cuda.Device(device).compute_capability}"
    return cupy.RawModule(path=str(kernel.cubin_path(arch))).get_function(kernel.entry)
