"""Where prompts come from: words, files, standard input; each is text or a list of chat messages."""

import argparse
import io
import json
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

from refimpl.command import check_unicode
from refimpl.contract import UsageError, host
from refimpl.flags import RANDOM

__all__ = ["Prompt", "check_text", "read_prompts", "read_text", "shape_prompt"]

Prompt = str | list[dict[str, Any]] | range
"""Text, messages such as {"role": "user", "content": "Hello"}, or so many tokens whatever they are."""

_TOKENS_OF_RANDOM = 512  # of a prompt that random:NAME gets when none is named

_RECORD = ("prompt", "messages")
_MESSAGE = ("role", "content", "tool_calls", "tool_call_id", "name", "reasoning_content")
_ROLES = ("system", "user", "assistant", "tool")


@host
def check_text(text: str, where: str) -> str:
    """Return ``text`` if it can be a prompt: not empty, and Unicode that has a UTF-8 form.

    >>> check_text("Hello", "the prompt")
    'Hello'
    """
    if not text:
        raise UsageError(f"{where} is empty")
    return check_unicode(text, where)


def _decode(data: bytes, where: str) -> str:
    """Return the text of a file without byte-order mark and without the newline that ends it."""
    try:
        return data.decode("utf-8-sig").replace("\r\n", "\n").removesuffix("\n")
    except UnicodeDecodeError as error:
        raise UsageError(f"{where} is not valid UTF-8: byte {error.start} cannot be read") from None


@host
def read_text(path: str) -> str:
    """Return the text of a file, or of standard input for -, without the newline that ends it."""
    return check_text(_read_file(path), "standard input" if path == "-" else path)


def _read_file(path: str) -> str:
    if path == "-":
        return _read_stdin()
    try:
        return _decode(Path(path).read_bytes(), path)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None


def _read_stdin() -> str:
    if sys.stdin is None:
        raise UsageError("standard input is closed: it holds no prompt")
    try:
        stream = sys.stdin.buffer if isinstance(sys.stdin, io.TextIOWrapper) else None
        data = stream.read() if stream else sys.stdin.read().encode()
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read standard input: {error}") from None
    return _decode(data, "standard input")


def _check_keys(value: dict[str, Any], known: Collection[str], where: str) -> None:
    unknown = [key for key in value if key not in known]
    if unknown:
        raise UsageError(f"{where}: expected no keys but {' and '.join(known)}, got {unknown[0]!r}")


def _read_messages(messages: Any, where: str) -> list[dict[str, Any]]:
    if not isinstance(messages, list) or not messages:
        raise UsageError(f"{where}: expected a list of messages, at least one")
    for message in messages:
        calls = isinstance(message, dict) and message.get("tool_calls")  # the one message that needs no content
        needed = ("role",) if calls and message.get("content") is None else ("role", "content")
        if not isinstance(message, dict) or not all(isinstance(message.get(key), str) for key in needed):
            raise UsageError(f"{where}: a message needs a role and a content, both strings")
        _check_keys(message, _MESSAGE, where)
        if calls and not (isinstance(calls, list) and all(isinstance(call, dict) for call in calls)):
            raise UsageError(f"{where}: tool_calls are a list of objects")
        if message["role"] not in _ROLES:
            raise UsageError(f"{where}: the role of a message is {', '.join(_ROLES)}, not {message['role']!r}")
        check_unicode(message.get("content") or "", where)
    return messages


def _read_record(value: Any, where: str) -> Prompt:
    """Return the prompt of one JSON line."""
    if isinstance(value, str):
        return check_text(value, where)
    if not isinstance(value, dict) or len(value.keys() & set(_RECORD)) != 1:
        raise UsageError(f'{where}: expected a string, {{"prompt": "..."}} or {{"messages": [...]}}')
    _check_keys(value, _RECORD, where)
    if "messages" in value:
        return _read_messages(value["messages"], where)
    if not isinstance(value["prompt"], str):
        raise UsageError(f"{where}: a prompt is a string")
    return check_text(value["prompt"], where)


def _read_lines(path: str) -> list[Prompt]:
    """Return the prompts of a text file, a line each, or of a .jsonl file, a value each; blank lines are skipped."""
    prompts: list[Prompt] = []
    for number, line in enumerate(_read_file(path).split("\n"), 1):
        where = f"{path}, line {number}"
        if not line.strip():
            continue
        if not path.endswith((".jsonl", ".ndjson")):
            prompts.append(check_text(line, where))
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            raise UsageError(f"{where} is not JSON") from None
        prompts.append(_read_record(value, where))
    if not prompts:
        raise UsageError(f"{path} holds no prompt")
    return prompts


@host
def read_prompts(options: argparse.Namespace) -> list[Prompt]:
    """Return the prompts that the flags name; without one, standard input is the prompt unless it is a terminal."""
    if options.prompts is not None:
        return _read_lines(options.prompts)
    if options.prompt_tokens is not None:
        return [range(options.prompt_tokens)]
    if options.file is not None:
        return [check_text(_read_file(options.file), "the prompt in " + options.file)]
    text = " ".join(options.words) if options.words else options.prompt
    if text == "-":
        return [check_text(_read_stdin(), "the prompt on standard input")]
    if text is not None:
        return [check_text(text, "the prompt")]
    if options.model.startswith(RANDOM):
        return [range(_TOKENS_OF_RANDOM)]
    if sys.stdin is None or sys.stdin.isatty():
        raise UsageError("no prompt: give PROMPT, -f FILE, --prompts FILE, --chat, or text on standard input")
    return [check_text(_read_stdin(), "the prompt on standard input")]


@host
def shape_prompt(prompt: Prompt, system: str | None, templated: bool) -> Prompt:
    """Return the prompt as the model shall get it: messages for its chat template, or plain text.

    >>> shape_prompt("Hi", "Be brief.", True)
    [{'role': 'system', 'content': 'Be brief.'}, {'role': 'user', 'content': 'Hi'}]
    >>> shape_prompt("Hi", None, False)
    'Hi'
    """
    if not templated or isinstance(prompt, range):
        if system is not None or not isinstance(prompt, str):
            raise UsageError("messages and --system need a model with a chat template, and no --raw")
        return prompt
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    if system is not None and messages[0]["role"] != "system":
        messages = [{"role": "system", "content": system}, *messages]
    return messages
