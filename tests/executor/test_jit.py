"""Where machine code is kept."""

import ctypes
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from numba import types
from numba.core import config

from gpu.executor.jit import cache_folder, compile_now, is_cold, jit

ROOT = Path(__file__).parents[2]
SCRIPT = "from gpu.executor.jit import cache_folder; print(cache_folder())"


@jit
def fresh(x):
    """Add one."""
    return x + 1


def folder(**environment: str) -> Path:
    """Return the folder that a process with this environment uses."""
    answer = subprocess.run(
        [sys.executable, "-c", SCRIPT], cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    return Path(answer.stdout.strip())


def test_others_see_nothing_of_our_folder():
    @jit
    def one():
        return 1

    assert os.environ.get("NUMBA_CACHE_DIR", "") == config.CACHE_DIR
    assert str(one.stats.cache_path).startswith(str(cache_folder()))


def test_a_function_is_cold_until_it_has_run():
    for path in cache_folder().glob("*/*.fresh-*"):
        path.unlink()
    assert is_cold(fresh) and fresh(1) == 2 and not is_cold(fresh)


def test_the_folder_follows_the_user_and_the_sources(tmp_path):
    own = folder(XDG_CACHE_HOME=str(tmp_path))
    assert own.is_dir() and own.parts[: len(tmp_path.parts)] == tmp_path.parts
    assert own.name == cache_folder().name and len(own.name) == 16


def test_a_home_that_cannot_be_written(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    other = folder(XDG_CACHE_HOME=str(blocked), TMPDIR=str(tmp_path))
    assert other.is_dir() and other.is_relative_to(tmp_path)


def test_compiled_now_is_compiled_for_integers():
    kernel = jit(fresh.py_func)
    compile_now(kernel)
    signatures = kernel.signatures
    assert kernel(1) == 2 and kernel.signatures == signatures and not is_cold(kernel)


def _spoil(path: Path, how: str) -> None:
    content = path.read_bytes()
    path.unlink()
    match how:
        case "garbage":
            path.write_bytes(b"\x93garbage" * 40)
        case "text":
            path.write_text("not a pickle")
        case "empty":
            path.write_bytes(b"")
        case "truncated":
            path.write_bytes(content[: len(content) // 2])
        case "another object":
            path.write_bytes(pickle.dumps([1, 2]))
        case "folder":
            path.mkdir()


@pytest.mark.parametrize("how", ["garbage", "text", "empty", "truncated", "another object", "folder", "missing"])
@pytest.mark.parametrize("suffix", ["nbi", "nbc"])
def test_a_damaged_store_is_made_anew(how, suffix, tmp_path, monkeypatch):
    monkeypatch.setattr("gpu.executor.jit._FOLDER", tmp_path)
    assert jit(fresh.py_func)(1) == 2
    (path,) = tmp_path.glob(f"*/*.fresh-*.{suffix}")
    _spoil(path, how)
    assert jit(fresh.py_func)(1) == 2
    mended = jit(fresh.py_func)
    assert mended(1) == 2
    assert how == "folder" or mended.stats.cache_hits


def test_a_disk_that_takes_nothing_stops_no_kernel(tmp_path, monkeypatch):
    monkeypatch.setattr("gpu.executor.jit._FOLDER", tmp_path)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("numba.core.caching.IndexDataCacheFile._save_data", full)
    assert jit(fresh.py_func)(1) == 2
    assert jit(fresh.py_func)(1) == 2


class _Interrupted:
    """Stands for a kernel: a Ctrl-C comes while C calls Python back, and the compiler goes on."""

    def __init__(self) -> None:
        self.overloads: dict[object, object] = {}
        self.py_func = fresh.py_func
        self.went_on = False

    def compile(self, signature: tuple[object, ...]) -> None:
        assert signature == (types.int64,)

        def interrupt():
            raise KeyboardInterrupt

        ctypes.CFUNCTYPE(None)(interrupt)()
        self.py_func(1)  # here it comes again
        self.went_on = True


def test_an_interrupt_in_a_callback_of_the_compiler_is_not_lost(capfd):
    kernel = _Interrupted()
    with pytest.raises(KeyboardInterrupt):
        compile_now(kernel)
    assert not kernel.went_on and capfd.readouterr() == ("", "")
