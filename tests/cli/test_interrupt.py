"""Ctrl-C, a reader that leaves, streams that are closed."""

import json
import os
import resource
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpu.cli import stats
from gpu.cli.output import Answer, Output
from gpu.executor import threads
from gpu.executor.cpu import CpuExecutor
from gpu.run import main
from refimpl.interrupt import brake

Start = Callable[..., "subprocess.Popen[bytes]"]
LONG = ["hello", "--raw", "-n", "60000", "--ignore-eos"]


def _press_at(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Press Ctrl-C while the ``count``-th token is taken."""
    take = Answer.take

    def pressed(self: Answer, token: Any, now: float) -> None:
        take(self, token, now)
        if len(self.ids) == count:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Answer, "take", pressed)


@pytest.mark.parametrize("form", ["json", "jsonl"])
def test_ctrl_c_leaves_whole_json(model: str, monkeypatch: pytest.MonkeyPatch, capsys: Any, form: str) -> None:
    _press_at(monkeypatch, 5)
    assert main(["-m", model, *LONG, "--output", form]) == 130
    answer = json.loads(capsys.readouterr().out)
    assert answer["stop"] == "interrupt" and len(answer["ids"]) == 5 == answer["usage"]["completion_tokens"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def _press_in(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> list[str]:
    """Press Ctrl-C before and after a function does its work; return the list of its calls."""
    work, calls = getattr(owner, name), list[str]()

    def pressed(*args: Any, **keywords: Any) -> Any:
        calls.append(name)
        signal.raise_signal(signal.SIGINT)
        done = work(*args, **keywords)
        signal.raise_signal(signal.SIGINT)
        return done

    monkeypatch.setattr(owner, name, pressed)
    return calls


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (Output, "finish"), (Output, "show"), (Output, "_write_json"), (Answer, "record"), (stats, "statistics"),
        (CpuExecutor, "free"), (CpuExecutor, "step"), (threads, "_dismiss"),
    ],
)
def test_pressed_again_while_it_ends(
    owner: Any, name: str, model: str, monkeypatch: pytest.MonkeyPatch, capsys: Any, recwarn: Any
) -> None:
    calls = _press_in(monkeypatch, owner, name)
    _press_at(monkeypatch, 5)
    form = "json" if name in ("record", "_write_json") else "text"
    assert main(["-m", model, *LONG, "--stats", "--output", form]) == 130
    out, err = capsys.readouterr()
    assert calls and out.endswith("\n") and "Traceback" not in err and "ignored" not in err and not recwarn.list
    assert form == "text" or json.loads(out)["stop"] == "interrupt"


def test_a_hang_can_be_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 0.5, 0.9, 2.0, 2.1, 9.0])
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    with brake() as hand:
        hand.armed = True
        for _ in range(3):
            signal.raise_signal(signal.SIGINT)
        assert hand.pulled
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_ctrl_c_while_loading_leaves_whole_json(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    def load(options: Any) -> None:
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr("gpu.cli.answering.load_model", load)
    assert main(["hello", "--output", "json"]) == 130
    assert json.loads(capsys.readouterr().out)["stop"] == "interrupt"


def test_ctrl_c_in_a_batch_keeps_what_is_done(model: str, monkeypatch: Any, capsys: Any, tmp_path: Any) -> None:
    path = tmp_path / "prompts.txt"
    path.write_text("one\ntwo\n")
    _press_at(monkeypatch, 4)
    assert main(["-m", model, "--prompts", str(path), *LONG[2:], "--output", "jsonl"]) == 130
    answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(answers) == 2 and all(answer["stop"] == "interrupt" for answer in answers)


def test_ctrl_c_ends_a_stream_of_text(model: str, start: Start) -> None:
    with start("-m", model, *LONG) as process:
        assert process.stdout and process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        assert process.returncode == 130 and out.endswith(b"\n") and b"Traceback" not in err


def test_a_reader_that_leaves_is_no_error(model: str, start: Start) -> None:
    with start("-m", model, *LONG) as process:
        assert process.stdout and process.stderr and process.stdout.read(1)
        process.stdout.close()
        err = process.stderr.read()
        assert process.wait(timeout=60) == 2 and b"rror" not in err and b"Traceback" not in err


def _close(number: int) -> Callable[[], None]:
    return lambda: os.close(number)


def test_closed_streams_are_one_line(model: str, start: Start) -> None:
    with start("-m", model, stdin=None, preexec_fn=_close(0)) as process:
        out, err = process.communicate(timeout=60)
        assert process.returncode == 2 and out == b""
        assert err.startswith(b"gpu.run: error: no prompt") and err.count(b"\n") == 1
    with start("-m", model, "hello", stdout=None, preexec_fn=_close(1)) as process:
        _, err = process.communicate(timeout=60)
        assert process.returncode == 2 and b"standard output is closed" in err and err.count(b"\n") == 1
    with start("--help", stdout=None, preexec_fn=_close(1)) as process:
        _, err = process.communicate(timeout=60)
        assert process.returncode == 2 and b"standard output is closed" in err and err.count(b"\n") == 1


def test_a_stream_that_takes_no_more_is_one_line(model: str, start: Start, tmp_path: Path) -> None:
    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))

    with (
        open(tmp_path / "full", "w") as full,
        start("-m", model, "hello", "-n", "2", "--no-stats", stdout=full, preexec_fn=limit) as process,
    ):
        _, err = process.communicate(timeout=60)
    errors = [line for line in err.splitlines() if not line.startswith(b"compiling")]
    assert process.returncode == 2 and len(errors) == 1 and errors[0].startswith(b"gpu.run: error: ")


def test_an_import_is_not_broken_off() -> None:
    with brake() as hand:
        done = []
        with pytest.raises(KeyboardInterrupt), hand.held():
            signal.raise_signal(signal.SIGINT)
            done.append("the import")
    assert done == ["the import"]
