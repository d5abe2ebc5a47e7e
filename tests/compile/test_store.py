"""What is kept on disk, and what happens where it cannot be."""

import os
import stat
import tempfile
import time
from pathlib import Path

import pytest

from gpu import store
from gpu.store import kept, open_folder
from tests.compile.made import scaled

pytestmark = pytest.mark.usefixtures("cache")


def fail() -> bytes:
    raise AssertionError("made again")


def test_result_is_made_once(cache: Path) -> None:
    path = kept("key", ".ptx", lambda: b"text")
    assert path.read_bytes() == b"text" and path.is_relative_to(cache)
    assert kept("key", ".ptx", fail) == path


def test_keys_and_suffixes_stand_apart() -> None:
    contents = {(key, suffix): f"{key}{suffix}".encode() for key in "ab" for suffix in (".ptx", ".cubin")}
    for (key, suffix), data in contents.items():
        assert kept(key, suffix, lambda data=data: data).read_bytes() == data
    assert all(kept(*place, fail).read_bytes() == data for place, data in contents.items())


@pytest.mark.parametrize("damage", [b"", b"tex", b"texT", b"text\n"])
def test_damaged_file_is_a_missing_one(damage: bytes) -> None:
    kept("key", ".ptx", lambda: b"text").write_bytes(damage)
    assert kept("key", ".ptx", lambda: b"text").read_bytes() == b"text"


def test_what_cannot_be_read_is_a_missing_file(cache: Path) -> None:
    folder = kept("key", ".ptx", lambda: b"text").parent
    (folder / "folder.ptx").mkdir()
    (folder / "dangling.ptx").symlink_to("nowhere")
    assert kept("key", ".ptx", fail).read_bytes() == b"text"


def test_damaged_kernel_is_compiled_again() -> None:
    first = scaled(2.0)
    cubin = first.cubin("sm_90")
    for path in first.cubin_path("sm_90").parent.iterdir():
        path.write_bytes(path.read_bytes()[:100])
    assert scaled(2.0).cubin("sm_90") == cubin


def test_home_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    path = kept("key", ".ptx", lambda: b"text")
    assert path.is_relative_to(tmp_path / f"refimpl-{os.getuid()}")
    assert stat.S_IMODE((tmp_path / f"refimpl-{os.getuid()}").stat().st_mode) == 0o700
    assert kept("key", ".ptx", fail) == path


def test_temporary_folder_of_another_user_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    stranger = os.getuid() + 1
    monkeypatch.setattr(os, "getuid", lambda: stranger)
    folder = open_folder("cuda", "key")
    assert folder.is_dir() and not folder.is_relative_to(tmp_path / f"refimpl-{stranger}")


def test_full_disk_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    monkeypatch.setattr(store, "_write", lambda path, data, write=store._write: (
        write(path, data) if "cache" in path.parts else path.write_bytes(data)))
    path = kept("key", ".ptx", lambda: b"text")
    assert path.read_bytes() == b"text" and "cache" not in path.parts


def test_what_nobody_has_asked_for_in_a_month_goes(cache: Path) -> None:
    old, recent = (kept(key, ".ptx", lambda: b"text").parent for key in ("old", "recent"))
    month = 31 * 86400
    os.utime(old, (time.time() - month, time.time() - month))
    store._drop_stale.cache_clear()
    kept("new", ".ptx", lambda: b"text")
    assert not old.exists() and recent.exists()
