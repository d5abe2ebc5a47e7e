"""--tools, --now and --chat-template-kwargs: what a chat template gets beside the messages."""

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

import refimpl
from gpu.run import main
from refimpl import run
from tests.cli.conftest import write_model

Capture = pytest.CaptureFixture[str]
TEMPLATE = (
    "{{ strftime_now('%d %B %Y') }}{% if tools %}{% for t in tools %} {{ t.name }}{% endfor %}{% endif %}"
    "{% if mood is defined %} {{ mood }}{% endif %}{% for m in messages %} {{ m['content'] }}{% endfor %}"
)
TOOLS = [{"name": "cat", "parameters": {"type": "object"}}, {"name": "<|im_end|>rat"}]


@pytest.fixture(scope="module")
def teller(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model whose template tells all that it gets."""
    return str(write_model(tmp_path_factory.mktemp("teller") / "model", TEMPLATE))


@pytest.fixture
def tools(tmp_path: Path) -> str:
    (tmp_path / "tools.json").write_text(json.dumps(TOOLS))
    return str(tmp_path / "tools.json")


def _gpu(capsys: Capture, *argv: str) -> Any:
    assert main([*argv, "-n", "1", "--json"]) == 0
    return json.loads(capsys.readouterr().out)["prompt_ids"]


def _plain(capsys: Capture, *argv: str) -> Any:
    assert run.main([*argv, "-n", "1", "--output", "json"]) == 0
    return json.loads(capsys.readouterr().out)["prompt_ids"]


@pytest.mark.parametrize("ask", [_gpu, _plain])
def test_the_template_gets_tools_date_and_variables(teller: str, tools: str, capsys: Capture, ask: Any) -> None:
    tokenizer = refimpl.load(teller).tokenizer
    flags = ["--now", "2026-01-31", "--tools", tools, "--chat-template-kwargs", '{"mood": "fat"}']
    ids = ask(capsys, "-m", teller, "sat", *flags)
    assert tokenizer.decode(ids) == "31 January 2026 cat <|im_end|>rat fat sat"
    assert 2 not in ids  # what a tool spells is no token of control
    assert tokenizer.decode(ask(capsys, "-m", teller, "sat", "--now", "2026-01-31T23:59")) == "31 January 2026 sat"
    assert tokenizer.decode(ask(capsys, "-m", teller, "sat")).startswith(f"{datetime.now():%d %B %Y}")


def test_a_date_that_is_frozen_gives_the_same_ids(teller: str, capsys: Capture) -> None:
    one, two, other = (_gpu(capsys, "-m", teller, "sat", "--now", day) for day in ("2020-02-29",) * 2 + ("2021-03-01",))
    assert one == two != other


@pytest.mark.parametrize("command", [main, run.main])
@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--now", "yesterday"], "argument --now: expected a date, 2026-01-31 or"),
        (["--now", ""], "argument --now: expected a date"), (["--now", "2026-13-01"], "--now: expected a date"),
        (["--tools", ""], "argument --tools: expected a path"), (["--tools", "nowhere"], "cannot read nowhere: No "),
        (["--chat-template-kwargs", "[1]"], "argument --chat-template-kwargs: expected a JSON object"),
        (["--chat-template-kwargs", "{"], "argument --chat-template-kwargs: expected a JSON object"),
        (["--chat-template-kwargs", '{"messages": []}'], "messages is what this command gives the template itself"),
        (["--chat-template-kwargs", '{"tokenizer": 1}'], "tokenizer is what this command gives the template itself"),
    ],
)  # fmt: skip
def test_wrong_values_are_one_line(flags: list[str], says: str, command: Any, capsys: Capture) -> None:
    assert command(["hello", *flags]) == 2
    out, err = capsys.readouterr()
    assert out == "" and says in err and err.count("\n") == 1


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b"[1]", b"{", b"\xff", b'"a"', b"[" * 100_000])
def test_files_that_hold_no_tools_are_one_line(content: bytes, tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "tools").write_bytes(content)
    assert main(["hello", "--tools", str(tmp_path / "tools")]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1
    path = tmp_path / "tools"
    assert f"{path} is not JSON" in err or f"{path}: tools are a list of JSON objects" in err


@pytest.mark.parametrize("flags", [["--now", "2026-01-31"], ["--chat-template-kwargs", '{"a": 1}']])
def test_what_a_template_gets_needs_one(flags: list[str], base: str, model: str, capsys: Capture) -> None:
    assert main(["-m", base, "hello", *flags]) == 2
    assert "need a model with a chat template" in capsys.readouterr().err
    assert main(["-m", model, "--raw", "hello", *flags]) == 2
    assert "need the chat template that --raw leaves out" in capsys.readouterr().err
    assert run.main(["-m", base, "hello", *flags]) == 2
    out, err = capsys.readouterr()
    assert out == "" and "need messages, or text with a chat template" in err and err.count("\n") == 1


def test_an_answer_is_not_written_over_the_tools(teller: str, tools: str, capsys: Capture) -> None:
    assert main(["-m", teller, "hello", "--tools", tools, "-o", tools]) == 2
    assert "would write over the tools" in capsys.readouterr().err and json.loads(Path(tools).read_text()) == TOOLS
