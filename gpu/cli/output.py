"""An answer and how it is written: text as it is made, or JSON when it is done."""

import contextlib
import errno
import io
import json
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO, cast

from refimpl.contract import UsageError, host

__all__ = ["Answer", "Output", "check_writable", "open_output", "spare"]


@dataclass
class Answer:
    """What one prompt got, with the moments (seconds of a monotonic clock) at which things happened."""

    prompt_ids: list[int] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    text: str = ""
    stop: str = "interrupt"  # until the model says otherwise
    logprobs: list[dict[str, Any]] = field(default_factory=list)
    asked: float = 0.0  # the prompt is known
    begun: float = 0.0  # its ids go to the model
    first: float = 0.0  # the first token is there
    last: float = 0.0
    drafted: int = 0  # tokens that a draft had proposed

    @property
    def done(self) -> bool:
        """Whether the model ended the answer."""
        return self.stop != "interrupt"

    def take(self, token: Any, now: float) -> None:
        """Add a drawn token."""
        self.first = self.first or now
        self.last = now
        self.ids.append(token.id)
        self.drafted += token.drafted
        self.text += token.text
        self.stop = token.stop or self.stop

    def timings(self) -> dict[str, float]:
        """Return the seconds to the first token, in the prompt and in the tokens after the first."""
        if not self.ids:
            return {"ttft_s": 0.0, "prompt_s": 0.0, "decode_s": 0.0}
        first, prompt, decode = self.first - self.asked, self.first - self.begun, self.last - self.first
        return {"ttft_s": round(first, 6), "prompt_s": round(prompt, 6), "decode_s": round(decode, 6)}

    def record(self, load_s: float, logprobs: bool) -> dict[str, Any]:
        """Return the answer as JSON shall show it."""
        return {
            "prompt_ids": self.prompt_ids,
            "ids": self.ids,
            "text": self.text,
            "stop": self.stop,
            "usage": {"prompt_tokens": len(self.prompt_ids), "completion_tokens": len(self.ids)},
            "timings": {"load_s": round(load_s, 6), **self.timings()},
            **({"logprobs": self.logprobs} if logprobs else {}),
        }


@dataclass
class Output:
    """Where answers go, and in which form."""

    stream: TextIO
    form: str = "text"
    live: bool = True
    logprobs: bool = False
    many: bool = False  # prompts, so that JSON is a list
    written: int = 0  # answers that are out

    def show(self, text: str) -> None:
        """Write a piece of text now."""
        if self.form == "text" and self.live and text:
            self.stream.write(text)
            self.stream.flush()

    def finish(self, answers: list[Answer], load_s: float, *, all_done: bool = False) -> None:
        """Write the answers that are done and whose predecessors are, each once; ``all_done``: the rest as it is."""
        while self.form != "json" and self.written < len(answers) and (all_done or answers[self.written].done):
            answer = answers[self.written]
            self.written += 1
            if self.form == "jsonl":
                self._write_json(answer.record(load_s, self.logprobs))
            else:
                gap = "\n" if self.written < len(answers) else ""
                self.stream.write(("" if self.live else answer.text) + "\n" + gap)
        if self.form == "json" and all_done:
            records = [answer.record(load_s, self.logprobs) for answer in answers]
            self._write_json(records if self.many else records[0])
        self.stream.flush()

    def write(self, line: str, record: dict[str, Any]) -> None:
        """Write what is no answer: a line, or a record as JSON."""
        if self.form == "text":
            self.stream.write(line + "\n")
        else:
            self._write_json(record)
        self.stream.flush()

    def _write_json(self, value: Any) -> None:
        # Escaped to ASCII, which every encoding of standard output can carry unchanged.
        self.stream.write(json.dumps(value) + "\n")


@host
def spare(path: str | None, kept: Mapping[str, str | Path | int | None], flag: str = "-o") -> None:
    """Refuse to write over what is read: files and folders, by the names that a user gives them."""
    if path is None or not os.path.isfile(path):
        return
    for name, other in kept.items():
        parts = Path(other).rglob("*") if isinstance(other, str | Path) and os.path.isdir(other) else [other]
        for part in parts:
            with contextlib.suppress(OSError):  # it is not there, or cannot be looked at
                if part is not None and os.path.samefile(path, part):
                    raise UsageError(f"{flag} {path} would write over {name}")


@host
def check_writable(path: str) -> None:
    """Refuse a path that cannot be written; nothing is touched."""
    try:
        if os.path.isdir(path) or not os.path.basename(path):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        folder = os.path.dirname(os.path.realpath(path))
        place, rights = (path, os.W_OK) if os.path.exists(path) else (folder, os.W_OK | os.X_OK)
        os.stat(place)
        with contextlib.suppress(FileNotFoundError):
            os.stat(path)  # a name that is too long, or below a file, is another error
        if not os.access(place, rights):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from None


class _Late(io.TextIOBase):
    """A file that is opened when its first text comes: a run that ends before leaves it as it was.

    What goes wrong with it later, a full disk for one, names it too.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._file: TextIO | None = None

    def write(self, text: str) -> int:
        if self._file is None:
            self._file = io.TextIOWrapper(io.BufferedWriter(io.FileIO(self._path, "w")), encoding="utf-8")
        with self._named():
            return self._file.write(text)

    def flush(self) -> None:
        if self._file is not None:
            with self._named():
                self._file.flush()

    def close(self) -> None:
        if self._file is not None:
            with self._named():
                self._file.close()

    @contextlib.contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise OSError(error.errno, error.strerror, self._path) from None


@host
@contextlib.contextmanager
def open_output(path: str | None) -> Iterator[TextIO]:
    """Give a stream for the answer: a file, or standard output where no path is given."""
    if path not in (None, "-"):
        check_writable(str(path))
        with contextlib.closing(_Late(str(path))) as late:
            yield cast(TextIO, late)
        return
    if sys.stdout is None:
        raise UsageError("standard output is closed: give -o FILE")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that cannot show a character shows a question mark
    yield sys.stdout
