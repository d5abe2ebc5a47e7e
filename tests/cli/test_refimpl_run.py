"""python -m refimpl.run answers plainly, and says in one line what it cannot do."""

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import refimpl
from refimpl import run


@pytest.fixture(autouse=True)
def no_input(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    yield


def answer(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, Any]:
    assert run.main([*argv, "--output", "json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_json_holds_what_was_asked_and_made(model: str, capsys: pytest.CaptureFixture[str]):
    out = answer(capsys, "the", "cat", "-m", model, "-n", "5", "--ignore_eos")
    loaded = refimpl.load(model)
    assert out["prompt_ids"] == loaded.prompt_ids("the cat")
    assert out["ids"] == loaded.greedy(out["prompt_ids"], 5)
    assert out["text"] == loaded.tokenizer.decode(out["ids"])
    assert (out["stop"], out["usage"]) == ("length", {"prompt_tokens": len(out["prompt_ids"]), "completion_tokens": 5})
    assert set(out["timings"]) == {"load_s", "ttft_s", "prompt_s", "decode_s"}


def test_text_is_the_answer_and_a_newline(model: str, capsys: pytest.CaptureFixture[str]):
    text = answer(capsys, "the cat", "-m", model, "-n", "5")["text"]
    assert run.main(["the cat", "-m", model, "-n", "5"]) == 0
    assert capsys.readouterr().out == text + "\n"


def test_raw_system_and_template(model: str, base: str, capsys: pytest.CaptureFixture[str]):
    loaded = refimpl.load(model)
    ask = ("the cat", "-m", model, "-n", "1")
    assert answer(capsys, *ask, "--raw")["prompt_ids"] == loaded.tokenizer.encode("the cat")
    messages = [{"role": "system", "content": "sit"}, {"role": "user", "content": "the cat"}]
    assert answer(capsys, *ask, "--system", "sit")["prompt_ids"] == loaded.prompt_ids(messages)
    assert answer(capsys, "the cat", "-m", base, "-n", "1")["prompt_ids"] == loaded.tokenizer.encode("the cat")
    assert run.main([*ask, "--raw", "--system", "sit"]) == 2


def test_drawn_text_follows_the_seed(model: str, capsys: pytest.CaptureFixture[str]):
    draw = ("the", "-m", model, "-n", "8", "--temperature", "3", "--top-k", "50", "--ignore-eos")
    one, same, other = (answer(capsys, *draw, "--seed", seed)["ids"] for seed in "112")
    assert one == same != other


@pytest.mark.parametrize("flag", ["--repeat-penalty", "--repetition-penalty", "--repetition_penalty"])
def test_what_was_said_is_not_said_again(model: str, capsys: pytest.CaptureFixture[str], flag: str):
    ids = answer(capsys, "the", "-m", model, "-n", "8", "--ignore-eos", flag, "1000")["ids"]
    assert len(set(ids)) == len(ids)


def test_prompt_from_standard_input(model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    expected = answer(capsys, "the hat", "-m", model, "-n", "2")["prompt_ids"]
    for words in ([], ["-"]):
        monkeypatch.setattr(sys, "stdin", io.StringIO("the hat\n"))
        assert answer(capsys, *words, "-m", model, "-n", "2")["prompt_ids"] == expected


def test_stop_string_ends_the_text(model: str, capsys: pytest.CaptureFixture[str]):
    ask = ("the cat", "-m", model, "-n", "20", "--ignore-eos")
    whole = answer(capsys, *ask)["text"]
    stop = whole[3:5]
    out = answer(capsys, *ask, "--stop", stop)
    assert (out["stop"], out["text"]) == ("stop", whole[: whole.index(stop)])


@pytest.mark.parametrize(
    ("message", "argv"),
    [
        ("the prompt is empty", [""]),
        ("from 1 to", ["a", "-n", "0"]),
        ("from 1 to", ["a", "-n", "-3"]),
        ("expected a whole number", ["a", "-n", "many"]),
        ("expected a number", ["a", "--temperature", "nan"]),
        ("from 0 to 1", ["a", "--top-p", "1.5"]),
        ("unrecognized", ["a", "--top-q", "1"]),
        ("no model", ["a", "-m", "nowhere.gguf"]),
        ("--model: expected text, got an empty string", ["a", "-m", ""]),
        ("stop string", ["a", "--stop", ""]),
        ("no room", ["the" * 70000]),
    ],
)
def test_what_cannot_be_done_is_one_line(
    message: str, argv: list[str], model: str, capsys: pytest.CaptureFixture[str]
):
    assert run.main([*argv, *([] if "-m" in argv else ["-m", model])]) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith("refimpl.run: error: ") and shown.err.count("\n") == 1
    assert message in shown.err


def test_help_is_not_an_error(capsys: pytest.CaptureFixture[str]):
    assert run.main(["--help"]) == 0
    assert "--temperature" in capsys.readouterr().out


def start(model: str, *flags: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "refimpl.run", "the cat", "-m", model, "--ignore-eos", "-n", "60000", *flags]
    root = Path(__file__).parents[2]
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, cwd=root, text=True, env=os.environ | {"PYTHONIOENCODING": "utf-8"}, **pipes)


def test_ctrl_c_leaves_the_text_so_far(model: str):
    process = start(model)
    assert process.stdout is not None and process.stdout.read(5)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, "")
    assert out.endswith("\n")


def test_a_reader_that_leaves_is_no_traceback(model: str):
    process = start(model)
    assert process.stdout is not None and process.stderr is not None and process.stdout.read(5)
    process.stdout.close()
    begun = time.monotonic()
    assert process.wait(timeout=60) == 2
    assert process.stderr.read() == ""
    process.stderr.close()
    assert time.monotonic() - begun < 60
