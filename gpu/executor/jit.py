"""Numba for the CPU kernels: ``jit`` compiles once and keeps the machine code under a hash of these sources.

Numba watches only the file of the function it compiles, not the files of the functions that one calls, so a
stored kernel could outlive the code it came from. Here the folder of the store is named by a hash of every source
file of this package folder and of the versions of Numba and llvmlite: another source is another folder.
"""

import hashlib
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llvmlite
import numba
from numba.core import config

from refimpl.contract import host

__all__ = ["cache_folder", "inlined", "is_cold", "jit"]

_DAYS_KEPT = 30
_LOCK = threading.Lock()


def _source_hash() -> str:
    """Return a short hash of the sources beside this file and of the compiler's versions."""
    digest = hashlib.sha256(f"{numba.__version__} {llvmlite.__version__}".encode())
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def _drop_stale(root: Path, kept: Path) -> None:
    """Delete the stores that no process has opened for a month."""
    oldest = time.time() - _DAYS_KEPT * 86400
    for folder in root.iterdir():
        if folder != kept and folder.stat().st_mtime < oldest:
            shutil.rmtree(folder, ignore_errors=True)


def _open_folder() -> Path:
    """Return a writable folder for this version's machine code; a read-only home gets a private temporary one."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = base / "refimpl" / "kernels" / _source_hash()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
        os.utime(folder)
        _drop_stale(folder.parent, folder)
    except (OSError, RuntimeError):  # RuntimeError: a user without a home
        folder = Path(tempfile.gettempdir()) / f"refimpl-kernels-{os.getuid()}" / folder.name
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder.parent.stat().st_uid != os.getuid():  # somebody else's folder must not feed us code
            folder = Path(tempfile.mkdtemp(prefix="refimpl-kernels-"))
    return folder


_FOLDER = _open_folder()


@host
def cache_folder() -> Path:
    """Return the folder that keeps the compiled kernels of this version."""
    return _FOLDER


@host
def jit(function: Callable[..., Any]) -> Any:
    """Compile ``function`` with Numba: no global lock held, no fast-math, and kept on disk.

    No fast-math means that sums keep the written order, on which batch invariance rests.
    Numba's own setting of the folder is restored at once: other users of Numba in the process do not see ours.
    """
    with _LOCK:
        saved, config.CACHE_DIR = config.CACHE_DIR, str(_FOLDER)
        try:
            return numba.njit(nogil=True, cache=True, error_model="numpy", fastmath=False)(function)
        finally:
            config.CACHE_DIR = saved


@host
def inlined(function: Callable[..., Any]) -> Any:
    """Compile ``function`` as a piece of its callers, whose store keeps it."""
    return numba.njit(nogil=True, error_model="numpy", fastmath=False, forceinline=True)(function)


@host
def is_cold(function: Any) -> bool:
    """Say whether a ``jit`` function has no machine code on disk, so that its first call compiles."""
    name = function.py_func.__qualname__
    return not any(_FOLDER.glob(f"*/*.{name}-*.nbi"))
