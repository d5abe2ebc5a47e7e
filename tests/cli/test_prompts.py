"""Where prompts come from, and what cannot be one."""

import io
import json
import sys
from pathlib import Path

import pytest

from gpu.cli.arguments import parse_arguments
from gpu.cli.prompts import read_prompts, shape_prompt
from refimpl.contract import UsageError


def _read(*argv: str) -> list[object]:
    return list(read_prompts(parse_arguments(argv)))


def _pipe(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), encoding="utf-8"))


def test_words_are_joined() -> None:
    assert _read("What", "is", "it?") == ["What is it?"]


@pytest.mark.parametrize("argv", [[], ["-p", "-"], ["-f", "-"], ["-"]])
def test_standard_input(monkeypatch: pytest.MonkeyPatch, argv: list[str]) -> None:
    _pipe(monkeypatch, "Grüße\n".encode())
    assert _read(*argv) == ["Grüße"]


def test_a_file_loses_mark_and_last_newline_alone(tmp_path: Path) -> None:
    path = tmp_path / "prompt"
    path.write_bytes(b"\xef\xbb\xbf one\r\n\ntwo \n\n")
    assert _read("-f", str(path)) == [" one\n\ntwo \n"]


def test_lines_of_text(tmp_path: Path) -> None:
    path = tmp_path / "prompts.txt"
    path.write_text('one\n\n{"prompt": "two"}\n')
    assert _read("--prompts", str(path)) == ["one", '{"prompt": "two"}']


def test_lines_of_json(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('"one"\n{"prompt": "two"}\n{"messages": [{"role": "user", "content": "three"}]}\n')
    assert _read("--prompts", str(path)) == ["one", "two", [{"role": "user", "content": "three"}]]


def test_messages_of_tools(tmp_path: Path) -> None:
    call = {"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
    messages = [
        {"role": "user", "content": "1 + 1"}, {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "name": "add", "content": "2"}, {"role": "assistant", "content": None, "tool_calls": [call]},
    ]  # fmt: skip
    path = tmp_path / "prompts.jsonl"
    path.write_text(json.dumps({"messages": messages}))
    assert _read("--prompts", str(path)) == [messages]


@pytest.mark.parametrize(
    "line",
    ["{", "1", "null", "[]", "{}", '{"prompt": 1}', '{"messages": []}', '{"messages": [1]}', '""', "[" * 5000,
     '{"prompt": "a", "messages": [{"role": "user", "content": "a"}]}', '{"prompt": "a", "max_tokens": 5}',
     '{"prompt": "a", "promt": "b"}', '{"messages": "a"}', '{"messages": [{"role": "robot", "content": "a"}]}',
     '{"messages": [{"role": "user", "content": "a", "nam": "b"}]}', '{"messages": [{"role": "", "content": "a"}]}',
     '{"messages": [{"role": "user", "content": "\\ud800"}]}', '{"messages": [{"role": ["user"], "content": "a"}]}',
     '{"messages": [{"role": "tool", "tool_calls": []}]}', '{"messages": [{"role": "assistant", "content": null}]}',
     '{"messages": [{"role": "assistant", "tool_calls": [1]}]}', '{"messages": [{"role": "tool", "tool_calls": "a"}]}',
     '{"messages": [{"role": "user"}]}', '{"messages": [{"role": "user", "content": 3}]}', '"\\ud800"'],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('"fine"\n' + line + "\n")
    with pytest.raises(UsageError, match="line 2"):
        _read("--prompts", str(path))


@pytest.mark.parametrize("line", ['{"prompt": "a", "seed": 1}', '{"seed": 1, "messages": []}'])
def test_an_unknown_key_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(line)
    with pytest.raises(UsageError, match="line 1: expected no keys but prompt and messages, got 'seed'"):
        _read("--prompts", str(path))


@pytest.mark.parametrize("data", [b"", b"\n", b"\xff"])
def test_no_text_on_standard_input(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    _pipe(monkeypatch, data)
    with pytest.raises(UsageError, match="standard input"):
        _read()


def test_standard_input_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(UsageError, match="standard input"):
        _read("-p", "-")
    with pytest.raises(UsageError, match="no prompt"):
        _read()


@pytest.mark.parametrize("argv", [["-p", ""], [""], ["-p", "\udcff"], ["-f", "no/such/file"], ["-f", "."]])
def test_what_cannot_be_a_prompt(argv: list[str]) -> None:
    with pytest.raises(UsageError):
        _read(*argv)


def test_a_system_message_goes_first_and_once() -> None:
    own = [{"role": "system", "content": "own"}, {"role": "user", "content": "hi"}]
    assert shape_prompt(own, "other", True) == own
    assert [m["content"] for m in shape_prompt("hi", "other", True)] == ["other", "hi"]
    with pytest.raises(UsageError, match="chat template"):
        shape_prompt(own, None, False)
