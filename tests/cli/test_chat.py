"""A conversation over pipes."""

import io
import signal
import sys
from typing import Any

import pytest

from gpu.cli.chat import Chat
from gpu.cli.output import Answer, Output
from gpu.run import main


def _talk(monkeypatch: pytest.MonkeyPatch, capsys: Any, text: str, *argv: str) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    code = main(["--chat", "-n", "5", "--ignore-eos", "--no-stats", *argv])
    return code, *capsys.readouterr()


def _messages(monkeypatch: pytest.MonkeyPatch) -> list[list[dict[str, str]]]:
    """Return a list that fills with the messages of every turn."""
    seen: list[list[dict[str, str]]] = []
    reply = Chat.reply

    def recorded(self: Chat, text: str, output: Any) -> None:
        reply(self, text, output)
        seen.append(list(self.messages))

    monkeypatch.setattr(Chat, "reply", recorded)
    return seen


def test_turns_build_on_each_other(model: str, monkeypatch: Any, capsys: Any) -> None:
    turns = _messages(monkeypatch)
    code, out, _ = _talk(monkeypatch, capsys, "hello\n\nagain\n/clear\nhello\n", "-m", model)
    assert code == 0 and [len(messages) for messages in turns] == [2, 4, 2] and turns[2] == turns[0]
    assert out == "".join(messages[-1]["content"] + "\n" for messages in turns)


def test_commands(model: str, monkeypatch: Any, capsys: Any) -> None:
    lines = "/set repeat_penalty 1.5\n/stats\n/help\n/set max-tokens 2\n/set temp 0.5\n/set\nhello\n/stats\n"
    lines += "/system Be.\n/exit\nnot reached\n"
    turns = _messages(monkeypatch)
    code, _, err = _talk(monkeypatch, capsys, lines, "-m", model)
    assert code == 0 and len(turns) == 1
    settings = "max_tokens 2", "repetition_penalty 1.5", "temperature 0.5"
    for part in ("nothing was answered yet", "/clear", *settings, "decode   1 tokens"):
        assert part in err


@pytest.mark.parametrize(
    "line", ["/set top_p 2", "/set top 1", "/set foo 1", "/set seed", "/foo", "/set max_tokens 99999999", "long " * 90]
)
def test_a_slip_is_a_line_and_the_talk_goes_on(model: str, monkeypatch: Any, capsys: Any, line: str) -> None:
    turns = _messages(monkeypatch)
    code, _, err = _talk(monkeypatch, capsys, f"{line}\nhello\n", "-m", model, "-c", "64")
    assert code == 0 and sum(said.startswith("gpu.run: ") for said in err.splitlines()) == 1 and len(turns) == 1


def test_ctrl_c_stops_the_answer_alone(model: str, monkeypatch: Any, capsys: Any) -> None:
    turns, take = _messages(monkeypatch), Answer.take

    def pressed(self: Answer, token: Any, now: float) -> None:
        take(self, token, now)
        if len(self.ids) == 2:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Answer, "take", pressed)
    code, out, _ = _talk(monkeypatch, capsys, "one\ntwo\n", "-m", model)
    assert code == 0 and len(turns) == 2 and out == "".join(turn[-1]["content"] + "\n" for turn in turns)


def test_a_key_held_down_stops_the_answer_alone(model: str, monkeypatch: Any, capsys: Any) -> None:
    turns, take, finish = _messages(monkeypatch), Answer.take, Output.finish

    def pressed(self: Answer, token: Any, now: float) -> None:
        take(self, token, now)
        for _ in range(3):
            signal.raise_signal(signal.SIGINT)

    def pressed_again(self: Output, *args: Any, **keywords: Any) -> None:
        signal.raise_signal(signal.SIGINT)
        finish(self, *args, **keywords)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Answer, "take", pressed)
    monkeypatch.setattr(Output, "finish", pressed_again)
    code, out, _ = _talk(monkeypatch, capsys, "one\ntwo\n", "-m", model)
    assert code == 0 and len(turns) == 2 and out == "".join(turn[-1]["content"] + "\n" for turn in turns)


def test_who_cannot_talk(model: str, base: str, monkeypatch: Any, capsys: Any) -> None:
    assert _talk(monkeypatch, capsys, "hello\n", "-m", base)[0] == 2
    monkeypatch.setattr(sys, "stdin", None)
    assert main(["--chat", "-m", model]) == 2
    assert "standard input is closed" in capsys.readouterr().err
