"""Compiled kernels on disk. A file's name holds the hash of its bytes, so that a damaged file is a missing one."""

import contextlib
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

from refimpl.contract import host

__all__ = ["kept"]

_DAYS_KEPT = 30


@host
def kept(key: str, suffix: str, make: Callable[[], bytes]) -> Path:
    """Return the file of what ``make`` returns. It is called where no earlier run has left its result under ``key``."""
    folder = _root() / key
    for path in folder.glob(f"*{suffix}"):
        if path.name == _name(path.read_bytes(), suffix):
            os.utime(folder)
            return path
    data = make()
    path = folder / _name(data, suffix)
    try:
        _write(path, data)
    except OSError:  # a full disk: this run goes on with a file of its own
        path = Path(tempfile.mkdtemp(prefix="refimpl-kernel-")) / path.name
        _write(path, data)
    return path


def _name(data: bytes, suffix: str) -> str:
    return hashlib.sha256(data).hexdigest()[:16] + suffix


def _write(path: Path, data: bytes) -> None:
    """Write a file whole or not at all, whoever else writes it at the same time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        file.write(data)
    os.replace(file.name, path)


@cache
def _root() -> Path:
    """Return a writable folder: in the user's cache, or a private temporary one where that is read-only."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = base / "refimpl" / "cuda"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
        _drop_stale(folder)
    except (OSError, RuntimeError):  # RuntimeError: a user without a home
        folder = Path(tempfile.mkdtemp(prefix="refimpl-kernels-"))
    return folder


def _drop_stale(root: Path) -> None:
    """Delete what no run has asked for in a month."""
    oldest = time.time() - _DAYS_KEPT * 86400
    for folder in root.iterdir():
        with contextlib.suppress(OSError):
            if folder.stat().st_mtime < oldest:
                shutil.rmtree(folder, ignore_errors=True)
