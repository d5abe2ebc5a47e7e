"""Machine code on disk: folders of the user's cache, and files whose names hold the hash of their bytes."""

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

__all__ = ["kept", "open_folder"]

_DAYS_KEPT = 30


@host
def kept(key: str, suffix: str, make: Callable[[], bytes]) -> Path:
    """Return the file of what ``make`` returns. It is called where no earlier run has left its result under ``key``."""
    folder = open_folder("cuda", key)
    for path in folder.glob(f"*{suffix}"):
        with contextlib.suppress(OSError):  # a file that cannot be read is a missing one
            if path.name == _name(path.read_bytes(), suffix):
                return path
    data = make()
    path = folder / _name(data, suffix)
    try:
        _write(path, data)
    except OSError:  # a full disk: this run goes on with a file of its own
        path = Path(tempfile.mkdtemp(prefix="refimpl-")) / path.name
        _write(path, data)
    return path


def _name(data: bytes, suffix: str) -> str:
    """Return a name by which a damaged file is a missing one."""
    return hashlib.sha256(data).hexdigest()[:16] + suffix


def _write(path: Path, data: bytes) -> None:
    """Write a file whole or not at all, whoever else writes it at the same time."""
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        file.write(data)
    os.replace(file.name, path)


@host
def open_folder(room: str, name: str) -> Path:
    """Return a writable folder in a room of the user's cache; a read-only home gets a private temporary one."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "refimpl"
    folder = base / room / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
        os.utime(folder)
        _drop_stale(folder.parent)
    except (OSError, RuntimeError):  # RuntimeError: a user without a home
        base = Path(tempfile.gettempdir()) / f"refimpl-{os.getuid()}"
        base.mkdir(mode=0o700, exist_ok=True)
        if base.stat().st_uid != os.getuid():  # somebody else's folder must not feed us code
            base = Path(tempfile.mkdtemp(prefix="refimpl-"))
        folder = base / room / name
        folder.mkdir(parents=True, exist_ok=True)
    return folder


@cache
def _drop_stale(room: Path) -> None:
    """Delete, once, what no process has opened for a month."""
    oldest = time.time() - _DAYS_KEPT * 86400
    for folder in room.iterdir():
        with contextlib.suppress(OSError):  # another process deletes too
            if folder.stat().st_mtime < oldest:
                shutil.rmtree(folder, ignore_errors=True)
