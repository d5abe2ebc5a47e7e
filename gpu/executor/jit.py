"""Numba for the CPU kernels: ``jit`` compiles once and keeps the machine code under a hash of these sources.

Numba watches only the file of the function it compiles, not the files of the functions that one calls, so a
stored kernel could outlive the code it came from. Here the folder of the store is named by a hash of every source
file of this package folder and of the versions of Numba and llvmlite: another source is another folder.
"""

import contextlib
import functools
import hashlib
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import llvmlite
import numba
from numba.core import config, types
from numba.core.caching import FunctionCache

from gpu.store import open_folder
from refimpl.contract import host

__all__ = ["cache_folder", "compile_now", "inlined", "is_cold", "jit", "jit_beside", "spliced"]

_LOCK = threading.Lock()
_OPTIONS = {"nogil": True, "error_model": "numpy", "fastmath": False, "forceinline": False}
"""The last is said since a function else takes it over from the caller for which it is first compiled."""
_IMPORT = re.compile(r"^from ([\w.]+) import (\([^)]*\)|.+)$", re.MULTILINE)


def _source_hash(sources: Iterable[Path]) -> str:
    """Return a short hash of some modules and of the compiler's versions."""
    digest = hashlib.sha256(f"{numba.__version__} {llvmlite.__version__}".encode())
    for path in sorted(sources):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


_FOLDER = open_folder("kernels", _source_hash(Path(__file__).parent.glob("*.py")))


@host
def cache_folder() -> Path:
    """Return the folder that keeps the compiled kernels of this version."""
    return _FOLDER


class _Store(FunctionCache):
    """Numba's store of a function, in which a damaged file is a missing one and a full disk keeps nothing."""

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        try:
            return super().load_overload(sig, target_context)
        except Exception:  # garbage can fail in as many ways as unpickling can
            with contextlib.suppress(OSError):
                self.flush()
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        with contextlib.suppress(OSError):
            super().save_overload(sig, data)


def _compiled(function: Callable[..., Any], folder: Path, **options: Any) -> Any:
    """Compile ``function`` and keep its machine code in ``folder``.

    Numba's own setting of the folder is restored at once: other users of Numba in the process do not see ours.
    """
    with _LOCK:
        saved, config.CACHE_DIR = config.CACHE_DIR, str(folder)
        try:
            dispatcher = numba.njit(**_OPTIONS | options)(function)
            dispatcher._cache = _Store(function)  # as cache=True does with the class that _Store extends
            return dispatcher
        finally:
            config.CACHE_DIR = saved


@host
def jit(function: Callable[..., Any]) -> Any:
    """Compile ``function`` with Numba: no global lock held, no fast-math, and kept on disk.

    No fast-math means that sums keep the written order, on which batch invariance rests.
    """
    return _compiled(function, _FOLDER)


@host
def jit_beside(file: str, **options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Return a ``jit`` for the package folder of ``file``.

    The store of a function follows the source of its module and of those in that folder which this one imports.
    """
    folder = Path(file).parent

    def jit(function: Callable[..., Any]) -> Any:
        return _compiled(function, _folder_of(Path(function.__code__.co_filename), folder), **options)

    return jit


@functools.cache
def _folder_of(module: Path, folder: Path) -> Path:
    return open_folder("kernels", _source_hash(_imported(module, folder)))


def _imported(module: Path, folder: Path) -> frozenset[Path]:
    """Return a module and those of a folder that it imports, directly or not."""
    found, left = {module}, [module]
    while left:
        imports = _IMPORT.findall(left.pop().read_text(encoding="utf-8"))
        names = set(re.findall(r"\w+", str(imports)))
        new = {folder / f"{name}.py" for name in names} & set(folder.glob("*.py")) - found
        found |= new
        left += new
    return frozenset(found)


@host
def inlined(function: Callable[..., Any]) -> Any:
    """Compile ``function`` as a piece of its callers, whose store keeps it."""
    return numba.njit(nogil=True, error_model="numpy", fastmath=False, forceinline=True)(function)


@host
def spliced(function: Callable[..., Any]) -> Any:
    """Write ``function`` into its callers before they are compiled: nothing of its own is optimised and thrown away."""
    return numba.njit(inline="always")(function)


@contextlib.contextmanager
def _interrupts_kept() -> Iterator[None]:
    """Raise a Ctrl-C again that came amid a callback from C, such as LLVM's, where Python has to drop it.

    Nothing can be raised from the hook, but at the next call or return outside it.
    """
    usual = sys.unraisablehook

    def hook(dropped: Any) -> None:
        if dropped.exc_type is KeyboardInterrupt:
            sys.setprofile(again)
        else:
            usual(dropped)

    def again(frame: FrameType, event: str, value: Any) -> None:
        if frame.f_code is not hook.__code__:
            sys.setprofile(None)
            raise KeyboardInterrupt

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = usual


@host
def compile_now(function: Any, arguments: tuple[Any, ...] | None = None) -> None:
    """Have a ``jit`` function ready, of integers if not told otherwise: loaded from the store, or compiled here.

    In the main thread a Ctrl-C ends the compiler; a thread of a team would go on, and the others wait for it.
    """
    arguments = arguments or (types.int64,) * function.py_func.__code__.co_argcount
    if arguments not in function.overloads:
        with _interrupts_kept():
            function.compile(arguments)


@host
def is_cold(function: Any) -> bool:
    """Say whether a ``jit`` function has no machine code on disk, so that its first call compiles."""
    name = function.py_func.__qualname__
    return not any(_FOLDER.glob(f"*/*.{name}-*.nbi"))
