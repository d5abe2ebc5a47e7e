"""What this machine can do at best: bytes read and float32 operations a second, measured once and kept."""

import contextlib
import json
import os
import platform
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from refimpl.contract import host

__all__ = ["Machine", "cores", "machine", "measure", "peak_memory", "resident_memory"]

_BYTES = 192 << 20  # more than a last-level cache of today holds
_SIZE = 1024  # of the matrices multiplied


@dataclass(frozen=True)
class Machine:
    """Limits of a machine."""

    bytes_per_s: float
    flops_per_s: float


@host
def cores() -> int:
    """Return the number of processors this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _best(work: Callable[[Any], Any], parts: list[Any], repeats: int = 4) -> float:
    """Return the least seconds in which a thread for each part did ``work``."""
    best = float("inf")
    for _ in range(repeats):
        threads = [threading.Thread(target=work, args=(part,)) for part in parts]
        start = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        best = min(best, time.perf_counter() - start)
    return best


@host
def measure() -> Machine:
    """Measure this machine: a sum over memory by all cores, and a float32 matrix product (takes half a second)."""
    words = np.ones(_BYTES // 8, np.int64)
    bytes_per_s = words.nbytes / _best(np.add.reduce, np.array_split(words, cores()))
    a = np.ones((_SIZE, _SIZE), np.float32)
    flops_per_s = 2 * _SIZE**3 / _best(a.__matmul__, [a])
    return Machine(bytes_per_s, flops_per_s)


def _name() -> str:
    """Return what tells this machine from another that shares the home directory."""
    model = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    return f"{platform.node()} {model} x{cores()}"


def _kept(path: Path) -> Machine | None:
    """Return what was measured before; None where the file is not there or holds what no machine does."""
    try:
        stored = json.loads(path.read_text())[_name()]
        speeds = [float(stored[key]) for key in ("bytes_per_s", "flops_per_s")]
    except (OSError, ValueError, TypeError, LookupError, OverflowError, RecursionError):
        return None
    return Machine(*speeds) if all(1e6 < speed < 1e18 for speed in speeds) else None


@host
def machine(*, again: bool = False) -> Machine:
    """Return this machine's limits: those kept from an earlier run, else measured now and kept.

    ``again`` measures once more and keeps the better of both: a busy machine shows less than it can do.
    """
    path = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "refimpl" / "machine.json"
    kept = _kept(path)
    if kept and not again:
        return kept
    found = measure()
    if kept:
        found = Machine(*map(max, astuple(kept), astuple(found)))
    with contextlib.suppress(OSError):  # a read-only home: measured again next time
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({_name(): asdict(found)}) + "\n")
    return found


def _status(key: str) -> int:
    """Return a size from /proc/self/status in bytes; 0 where there is none."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith(key + ":")), 0)


@host
def resident_memory() -> int:
    """Return the bytes of memory this process holds now; 0 where the system does not say."""
    return _status("VmRSS")


@host
def peak_memory() -> int:
    """Return the most bytes of memory this process has held."""
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return _status("VmHWM") or (peak if platform.system() == "Darwin" else peak << 10)
