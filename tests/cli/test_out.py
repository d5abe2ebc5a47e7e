"""-o FILE: written with the first text, never over what is read, and left alone by a run that comes to nothing."""

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpu.cli.output import open_output
from gpu.run import main

Capture = pytest.CaptureFixture[str]
OLD = b"what was there before"


@pytest.fixture
def out(tmp_path: Path) -> Path:
    path = tmp_path / "out.txt"
    path.write_bytes(OLD)
    return path


def _files(folder: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_text_replaces_what_was_there(model: str, out: Path, capsys: Capture) -> None:
    assert main(["-m", model, "hello", "-n", "3", "--no-stats"]) == 0
    expected = capsys.readouterr().out
    assert main(["-m", model, "hello", "-n", "3", "--no-stats", "-o", str(out)]) == 0
    assert capsys.readouterr().out == "" and out.read_text(encoding="utf-8") == expected


@pytest.mark.parametrize(
    "argv",
    [
        ["--top-p", "2", "a"], ["-m", "nowhere.gguf", "a"], ["--device", "cuda", "a"], ["-f", "nowhere"], ["-p", ""],
        ["a", "-c", "99999999"], ["a", "-c", "16", "-n", "17"], ["a", "-c", "2"], ["--prompts", "nowhere"],
        ["a", "--logit-bias", "9999=1"], ["--chat"], ["a", "--explain", "-c", "2"], ["--foo"],
        ["a", "-c", "2", "--output", "json"], ["a", "-c", "2", "--output", "jsonl"],
    ],
    ids=" ".join,
)
def test_a_run_that_fails_changes_nothing(argv: list[str], model: str, out: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("sys.stdin", None)
    assert main([*([] if "-m" in argv else ["-m", model]), *argv, "-o", str(out)]) == 2
    assert out.read_bytes() == OLD


@pytest.mark.parametrize("form", ["text", "json", "jsonl"])
def test_ctrl_c_before_the_first_token_changes_nothing(form: str, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpu.cli.answering.load_model", lambda options: signal.raise_signal(signal.SIGINT))
    assert main(["hello", "--output", form, "-o", str(out)]) == 130
    assert out.read_bytes() == OLD


def test_version_and_help_change_nothing(out: Path, capsys: Capture) -> None:
    for flag in ("--version", "--help"):
        assert main([flag, "-o", str(out)]) == 0
        assert "gpu.run" in capsys.readouterr().out and out.read_bytes() == OLD


def _itself(path: Path, beside: Path) -> Path:
    return path


def _symbolic(path: Path, beside: Path) -> Path:
    (beside / "link").symlink_to(path)
    return beside / "link"


def _hard(path: Path, beside: Path) -> Path:
    os.link(path, beside / "link")
    return beside / "link"


@pytest.mark.parametrize("name", [_itself, _symbolic, _hard])
@pytest.mark.parametrize("flag", ["-m", "-f", "--prompts", "folder"])
def test_what_is_read_is_not_written(
    flag: str, name: Callable[[Path, Path], Path], model: str, tmp_path: Path, capsys: Capture
) -> None:
    folder = Path(shutil.copytree(model, tmp_path / "model"))
    (folder / "x.gguf").write_bytes(b"GGUF")
    (folder / "prompt").write_bytes(b"hello")
    read = {"-m": "x.gguf", "folder": "model.safetensors"}.get(flag, "prompt")
    argv = ["-m", str(folder), "hello"] if flag == "folder" else [flag, str(folder / read)]
    argv += ["hello"] if flag == "-m" else []
    path = name(folder / read, tmp_path)
    before = _files(tmp_path)
    assert main([*argv, "-o", str(path)]) == 2
    assert "would write over the " in capsys.readouterr().err and _files(tmp_path) == before


def test_a_new_file_may_lie_in_the_folder_of_the_model(model: str, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(model, tmp_path / "model"))
    assert main(["-m", str(folder), "hello", "-n", "1", "--no-stats", "-o", str(folder / "new")]) == 0
    assert (folder / "new").read_bytes().endswith(b"\n")


def test_where_nothing_can_be_written_is_said_before_the_model_loads(
    tmp_path: Path, out: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setattr("gpu.cli.answering.load_model", lambda options: pytest.fail("the model was loaded"))
    bad = [tmp_path, f"{tmp_path}/no/file", f"{tmp_path}/no/", f"{out}/file", tmp_path / ("x" * 300), "", "a\0b"]
    for path in bad:
        assert main(["hello", "-o", str(path)]) == 2
        assert capsys.readouterr().err.count("\n") == 1
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    for path in (out, tmp_path / "new"):
        assert main(["hello", "-o", str(path)]) == 2
        assert "Permission denied" in capsys.readouterr().err
    assert _files(tmp_path) == {str(out): OLD}


@pytest.mark.parametrize("flag", ["-o", "-f", "--prompts", "-m"])
def test_an_empty_path_is_named(flag: str, capsys: Capture) -> None:
    assert main([flag, "", *(["word"] if flag in ("-o", "-m") else [])]) == 2
    err = capsys.readouterr().err
    assert flag in err and "expected a path, got an empty string" in err


def test_a_device_is_written_as_it_is() -> None:
    with open_output(os.devnull) as stream:
        stream.write("text")
        stream.flush()
    assert not Path(os.devnull).is_file()


def test_a_full_disk_is_named(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["-m", model, "the cat", "-n", "2", "-o", "/dev/full"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err == "gpu.run: error: /dev/full: No space left on device\n"
