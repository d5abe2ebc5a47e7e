"""What both commands share: no flag takes --, text is Unicode, and whatever fails is one line and exit code 2."""

import argparse
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import gpu.run
import refimpl.run
from refimpl.command import Parser, guard
from refimpl.contract import CheckpointError, ContractError, UsageError

Capture = pytest.CaptureFixture[str]
COMMANDS = {"gpu.run": gpu.run.main, "refimpl.run": refimpl.run.main}


def _one_line(capsys: Capture, name: str) -> str:
    out, err = capsys.readouterr()
    assert out == "" and err.startswith(f"{name}: error: ") and err.count("\n") == 1 and len(err) < 600
    return err


def _spellings(name: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return every flag of a command that takes a value."""
    parsers: list[argparse.ArgumentParser] = []
    monkeypatch.setattr(Parser, "read", lambda self, argv: parsers.append(self) or sys.exit(0))
    assert COMMANDS[name](["word"]) == 0
    monkeypatch.undo()
    (parser,) = parsers
    return [flag for action in parser._actions if action.nargs is None for flag in action.option_strings]


@pytest.mark.parametrize("name", COMMANDS)
def test_no_flag_takes_two_hyphens_for_a_value(name: str, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    flags = _spellings(name, monkeypatch)
    assert {"-n", "--max-tokens", "--output", "--stop", "--temperature"} <= set(flags)
    underscored = [flag[:2] + flag[2:].replace("-", "_") for flag in flags]
    glued = [f"{flag}--" for flag in flags if len(flag) == 2] + ["-in--"]
    for argument in [*(f"{flag}=--" for flag in [*flags, *underscored]), *glued]:
        assert COMMANDS[name]([argument, "word"]) == 2
        assert "expected a value, got --" in _one_line(capsys, name)


def test_values_may_hold_two_hyphens() -> None:
    parser = Parser()
    parser.add_argument("words", nargs="*")
    parser.add_argument("-p", "--prompt")
    for given, value in (("--prompt=a--", "a--"), ("--prompt=a=--", "a=--"), ("-pa--", "a--"), ("--prompt=---", "---")):
        assert parser.read([given]).prompt == value
    assert parser.read(["-p", "-1 + x=--", "one", "--", "--prompt=--"]).words == ["one", "--prompt=--"]


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("argv", [["a\udcff"], ["a", "--system", "\udcff"], ["a", "--stop", "b", "--stop=\udcff"]])
def test_text_that_is_not_unicode_is_refused(name: str, argv: list[str], capsys: Capture) -> None:
    assert COMMANDS[name](argv) == 2
    assert "not valid UTF-8" in _one_line(capsys, name)


def test_a_bias_that_is_not_unicode_is_refused(capsys: Capture) -> None:
    for bias in ("\udcff=1", '{"\udcff": 1}'):
        assert gpu.run.main(["a", "--logit-bias", bias]) == 2
        assert "--logit-bias" in _one_line(capsys, "gpu.run")


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("text", ["null", "[]", '"a"', "{}", '{"model_type": 3}', '{"model_type": "qwen2"}', "[" * 999])
def test_any_config_is_one_line(name: str, text: str, model: str, tmp_path: Path, capsys: Capture) -> None:
    folder = shutil.copytree(model, tmp_path / "model")
    (folder / "config.json").write_text(text)
    assert COMMANDS[name](["a", "-m", str(folder), "--offline"]) == 2
    _one_line(capsys, name)


def _raise(error: BaseException) -> Callable[[Any], int]:
    def work(hand: Any) -> int:
        raise error

    return work


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (UsageError("a\nb"), "a b"), (CheckpointError("a"), "a"), (ContractError("C1: a"), "C1: a"),
        (OSError(28, "no space", "file"), "file: no space"), (MemoryError(), "not enough memory"),
        (KeyError("x"), "fault of the program: KeyError"), (ZeroDivisionError("a" * 9999), "fault of the program"),
        (RecursionError("deep"), "fault of the program"),
    ],
)
def test_whatever_fails_is_one_line(error: BaseException, words: str, capsys: Capture) -> None:
    assert guard("name", _raise(error)) == 2
    assert words in _one_line(capsys, "name")


def test_what_is_no_error_says_nothing(capsys: Capture) -> None:
    codes = [guard("name", _raise(e)) for e in (KeyboardInterrupt(), BrokenPipeError(), SystemExit(0))]
    assert codes == [130, 2, 0] and capsys.readouterr() == ("", "")


def test_what_ctrl_c_breaks_is_no_fault(capsys: Capture) -> None:
    def work(hand: Any) -> int:
        try:
            signal.raise_signal(signal.SIGINT)
        finally:
            raise AttributeError("it was never set")

    assert guard("name", work) == 130 and capsys.readouterr() == ("", "")


@pytest.mark.parametrize("name", COMMANDS)
def test_ctrl_c_while_python_imports_is_no_traceback(name: str, tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "numpy.py").write_text("import signal\nsignal.raise_signal(signal.SIGINT)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    argv = [sys.executable, "-m", name, "hello"]
    done = subprocess.run(argv, cwd=Path(__file__).parents[2], capture_output=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("pause", [0.0, 0.02, 0.1])
def test_a_key_held_down_ends_a_stream_of_text(name: str, pause: float, model: str) -> None:
    argv = [sys.executable, "-m", name, "hello", "-m", model, "-n", "60000", "--ignore-eos"]
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(argv, cwd=Path(__file__).parents[2], **pipes) as process:
        assert process.stdout and process.stderr and process.stdout.read(1)
        while process.poll() is None:
            process.send_signal(signal.SIGINT)
            time.sleep(pause)
        out, err = process.stdout.read(), process.stderr.read()
    assert process.returncode == 130 and out.endswith(b"\n")
    assert [line for line in err.splitlines() if not line.startswith(b"compiling")] == []


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("flag", ["--help", "--version"])
def test_a_full_device_is_one_line(name: str, flag: str) -> None:
    argv = [sys.executable, "-m", name, flag if name == "gpu.run" else "--help"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(argv, cwd=Path(__file__).parents[2], stdout=full, stderr=subprocess.PIPE, timeout=60)
    assert done.returncode == 2 and done.stderr.startswith(f"{name}: error: ".encode())
    assert done.stderr.count(b"\n") == 1
