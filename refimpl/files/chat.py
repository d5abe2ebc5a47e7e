"""From a conversation to the ids that a model was trained to continue."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from itertools import pairwise
from typing import Any

import regex

from refimpl.contract import UsageError, host
from refimpl.files.sandbox import render_template, template_reads
from refimpl.files.tokenizer import Tokenizer

__all__ = ["render_chat", "chat_ids"]

Message = Mapping[str, Any]


@host
def render_chat(
    template: str | None,
    messages: Sequence[Message],
    *,
    add_generation_prompt: bool = True,
    bos_token: str = "",
    eos_token: str = "",
    now: datetime | None = None,
    **options: Any,
) -> str:
    """Render messages by a chat template; ``options`` are further variables of the template (enable_thinking ...).

    Errors: UsageError when there is no template, when it refuses the messages, fails or does not end, and when there
    are tools or documents that it does not read.

    >>> template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    >>> render_chat(template, [{"role": "user", "content": "Hi"}])
    '<user>Hi'
    """
    if template is None:
        raise UsageError("the model has no chat template; give it a raw prompt (--raw)")
    variables = {
        "messages": list(messages), "add_generation_prompt": add_generation_prompt,
        "bos_token": bos_token, "eos_token": eos_token, "tools": None, "documents": None,
    }  # fmt: skip
    text = render_template(template, variables | options, now)
    for name in ("tools", "documents"):
        if options.get(name) and not template_reads(template, name):
            raise UsageError(f"the model's chat template reads no {name}: they would be left out")
    return text


def _strings(value: Any) -> list[str]:
    """List all strings inside messages and tools."""
    if isinstance(value, str):
        return [value]
    inner = [*value, *value.values()] if isinstance(value, Mapping) else value
    return [text for entry in inner for text in _strings(entry)] if isinstance(inner, list | tuple) else []


def _veil(value: Any, spellings: "regex.Pattern[str]", mark: str) -> Any:
    """Put ``mark`` behind the first letter of each special token spelled inside a message."""
    if isinstance(value, Mapping):
        veiled = ((_veil(key, spellings, mark), key, entry) for key, entry in value.items())
        return {name: entry if key == "role" else _veil(entry, spellings, mark) for name, key, entry in veiled}
    if isinstance(value, list | tuple):
        return [_veil(entry, spellings, mark) for entry in value]
    if not isinstance(value, str):
        return value
    cuts = [0, *(match.start() + 1 for match in spellings.finditer(value, overlapped=True)), len(value)]
    return mark.join(value[begin:end] for begin, end in pairwise(cuts))


@host
def chat_ids(
    tokenizer: Tokenizer, messages: Sequence[Message], *, add_generation_prompt: bool = True,
    now: datetime | None = None, **options: Any,
) -> list[int]:
    """Turn messages into ids: the template's special tokens are special, those that a message spells stay text.

    ``options`` are variables of the template: ``tools`` (a list of JSON schemas), ``documents``, enable_thinking ...
    A mark that no message and no tool holds hides the spellings from ``Tokenizer.split`` and is taken out afterwards.
    An answer of the model may spell tokens that are not control tokens (<think>): templates look for them, so they stay
    visible. No BOS is added: a template that wants one writes it.

    Errors: as ``render_chat``.
    """
    used = "".join(_strings([*messages, options]))
    mark = next((letter for letter in map(chr, range(0xFDD0, 0xFDF0)) if letter not in used), None)
    if mark is None:
        raise UsageError("the messages hold every noncharacter from U+FDD0 to U+FDEF")
    escaped = f"\\u{ord(mark):x}"  # as JSON of a tool may spell the mark
    every = _spellings(tokenizer.specials)
    control = _spellings([text for text, id in tokenizer.specials.items() if id in tokenizer.controls])
    veiled = [_veil(message, control if message.get("role") == "assistant" else every, mark) for message in messages]
    names = {"bos_token": tokenizer.bos_id, "eos_token": next(iter(tokenizer.eos_ids), None)}
    text = render_chat(
        tokenizer.chat_template,
        veiled,
        add_generation_prompt=add_generation_prompt,
        now=now,
        **{name: "" if id is None else tokenizer.decode([id]) for name, id in names.items()},
        **_veil(options, every, mark),
    )
    ids: list[int] = []
    for place, piece in enumerate(tokenizer.split(text)):
        if isinstance(piece, int):
            ids.append(piece)
        else:
            ids += tokenizer.encode(piece.replace(mark, "").replace(escaped, ""), first=place == 0)
    return ids


def _spellings(texts: Iterable[str]) -> "regex.Pattern[str]":
    return regex.compile("|".join(map(regex.escape, texts)) or "(?!)")
