"""A conversation at the terminal."""

import argparse
import contextlib
import importlib
import sys
import time
from dataclasses import dataclass, field
from typing import Any

from gpu.cli.answering import ask, check_sampling, prepare, say
from gpu.cli.output import Answer, Output
from gpu.cli.prompts import check_text
from refimpl.command import check_unicode
from refimpl.contract import UsageError, host
from refimpl.flags import FLAGS, SAMPLING
from refimpl.interrupt import Brake

__all__ = ["Chat", "chat"]

_HELP = """/help           this list
/clear          forget the conversation
/system TEXT    set the system message and start anew; without TEXT, drop it
/set NAME VALUE change a setting; without VALUE, show the settings
/stats          speeds and memory of the last answer
/exit           leave, as Ctrl-D does; Ctrl-C stops an answer"""


@dataclass
class Chat:
    """A conversation: its settings and messages, and the last answer."""

    model: Any
    options: argparse.Namespace
    load_s: float
    hand: Brake
    messages: list[dict[str, str]] = field(default_factory=list)
    answer: Answer | None = None

    def reply(self, text: str, output: Output) -> None:
        """Answer a message; what Ctrl-C leaves of the answer stays in the conversation."""
        answer = Answer()
        self.messages.append({"role": "user", "content": check_text(text, "the message")})
        try:
            prepare(answer, self.messages, self.options, self.model)
        except (UsageError, ValueError):
            self.messages.pop()
            raise
        output.written = 0
        with contextlib.suppress(KeyboardInterrupt):
            ask(self.model, [answer], self.options, output, self.load_s, self.hand)
        output.finish([answer], self.load_s, all_done=True)
        self.messages.append({"role": "assistant", "content": answer.text})
        self.answer = answer
        if self.options.stats:
            self.show_stats()

    def show_stats(self) -> None:
        """Say what the last answer took."""
        from gpu.cli.stats import statistics

        say(*(statistics(self.model, [self.answer], self.load_s) if self.answer else ["nothing was answered yet"]))

    def change(self, name: str, value: str) -> None:
        """Change a setting, or show them all."""
        name = name.lstrip("-").replace("_", "-")
        if not name:
            say(*(f"{known} {getattr(self.options, known)}" for known in SAMPLING))
            return
        fitting = [known for known, flags in FLAGS.items() if any(flag.lstrip("-").startswith(name) for flag in flags)]
        if len(fitting) != 1:
            kind = "several" if fitting else "none"
            raise UsageError(f"settings are {', '.join(SAMPLING)}; {name} is {kind} of them")
        name = fitting[0]
        try:
            changed = argparse.Namespace(**{**vars(self.options), name: SAMPLING[name][0](value)})
        except argparse.ArgumentTypeError as error:
            raise UsageError(f"{name}: {error}") from None
        check_sampling(changed, self.model)
        self.options = changed

    def command(self, line: str) -> bool:
        """Obey a line that starts with a slash; return whether the conversation goes on."""
        name, _, rest = line.partition(" ")
        match name:
            case "/help":
                say(_HELP)
            case "/clear":
                self.messages.clear()
            case "/system":
                self.options.system = check_unicode(rest.strip(), "the system message") or None
                self.messages.clear()
            case "/set":
                setting, _, value = rest.strip().partition(" ")
                self.change(setting, value.strip())
            case "/stats":
                self.show_stats()
            case "/exit" | "/quit" | "/bye":
                return False
            case _:
                raise UsageError(f"there is no {name}; /help lists the commands")
        return True


def _read_line(asked: bool) -> str:
    """Return a line of the user; EOFError at the end."""
    if asked:
        return input("> ")
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line.rstrip("\r\n")


@host
def chat(model: Any, options: argparse.Namespace, output: Output, start: float, hand: Brake) -> int:
    """Talk until the user leaves; return the exit code."""
    if sys.stdin is None:
        raise UsageError("standard input is closed: --chat has nobody to talk to")
    if model.tokenizer is None or model.tokenizer.chat_template is None:
        raise UsageError("this model has no chat template: give it a prompt with --raw")
    asked = sys.stdin.isatty() and sys.stdout is not None and sys.stdout.isatty()
    if asked:
        with contextlib.suppress(ImportError):
            importlib.import_module("readline")  # input() then edits lines and remembers them
        say("Talk to the model; /help lists the commands, Ctrl-D leaves.")
    talk, interrupted = Chat(model, options, time.perf_counter() - start, hand), False
    while True:
        try:
            hand.release()
            line = _read_line(asked)
            if line.startswith("/"):
                if not talk.command(line.strip()):
                    return 0
            elif line.strip():
                talk.reply(line, output)
            interrupted = False
        except EOFError:
            if asked:
                say("")
            return 0
        except (UsageError, ValueError) as error:
            say(f"gpu.run: {error}")
        except KeyboardInterrupt:
            if interrupted or not asked:
                return 130
            interrupted = True
            say("\nCtrl-D or /exit leaves; so does Ctrl-C once more")
