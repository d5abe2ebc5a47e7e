"""Where machine code is kept."""

import os
import subprocess
import sys
from pathlib import Path

from numba.core import config

from gpu.executor.jit import cache_folder, is_cold, jit

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
