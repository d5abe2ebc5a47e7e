"""A tokenizer as models see it, whatever its kind: tokens by id, text to ids and back.

Special tokens are ours to split, never an encoder's: only ``special=True`` recognises their spelling, and only a chat
template earns that. What a user types stays text, but for added tokens that are nothing but white space (the runs of
blanks of GPT-NeoX): they say what they spell, and are found in any text.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import regex

from refimpl.contract import CheckpointError, UsageError, host

__all__ = ["Encoder", "Tokenizer", "check_ids_of", "tokens_by_id"]

Encoder: TypeAlias = Callable[[str, bool], list[int]]
"""Text without special tokens to ids; the flag says whether the whole text begins with it."""

_MAX_VOCABULARY = 2**22


@host
def check_ids_of(tokens: Mapping[str, Any]) -> None:
    """Refuse token ids that are no ids.

    Errors: CheckpointError.
    """
    if any(type(id) is not int or not 0 <= id < _MAX_VOCABULARY for id in tokens.values()):
        raise CheckpointError(f"token ids must be integers from 0 to {_MAX_VOCABULARY - 1}")


@host
def tokens_by_id(
    words: Mapping[str, int], said: Callable[[str], bytes], specials: Mapping[str, int] | None = None
) -> tuple[bytes, ...]:
    """List what each token says; special tokens say their name."""
    named = {id: said(text) for text, id in words.items()}
    named |= {id: text.encode("utf-8", "replace") for text, id in (specials or {}).items()}
    return tuple(named.get(id, b"") for id in range(max(named, default=-1) + 1))


@dataclass(frozen=True, eq=False)
class Tokenizer:
    """A tokenizer with its special tokens and chat template."""

    tokens: tuple[bytes, ...]  # by id, as they stand inside a text; b"" where an id has no token
    specials: Mapping[str, int]
    controls: frozenset[int]  # specials that no text should spell; the others (<think>) may stand in an answer
    encoder: Encoder
    prefix: tuple[int, ...] = ()  # what the model expects before a text ...
    suffix: tuple[int, ...] = ()  # ... and behind it
    strips_left: frozenset[int] = frozenset()  # specials that take the white space before them along ...
    strips_right: frozenset[int] = frozenset()  # ... or behind them
    opening_blank: bool = False  # a text's first token begins with a blank that is not the text's
    bos_id: int | None = None
    eos_ids: tuple[int, ...] = ()
    mask_id: int | None = None
    chat_template: str | None = None

    @property
    def vocab_size(self) -> int:
        return len(self.tokens)

    @property
    def add_bos(self) -> bool:
        """Whether a text stands behind the BOS token."""
        return self.bos_id is not None and self.bos_id in self.prefix[:1]

    def _pattern(self, spellings: Iterable[str]) -> "regex.Pattern[str]":
        """Compile a pattern whose one group is the token, wherever white space around it goes along."""

        def spelled(text: str) -> str:
            left = r"(?:(?<!\s)\s+)?" if self.specials[text] in self.strips_left else ""
            right = r"\s*" if self.specials[text] in self.strips_right else ""
            return f"{left}({regex.escape(text)}){right}"

        longest_first = sorted(spellings, key=len, reverse=True)
        return regex.compile(f"(?|{'|'.join(map(spelled, longest_first))})" if longest_first else "(?!)")

    @cached_property
    def _special_pattern(self) -> "regex.Pattern[str]":
        return self._pattern(self.specials)

    @cached_property
    def _blank_pattern(self) -> "regex.Pattern[str]":
        return self._pattern(text for text, id in self.specials.items() if text.isspace() and id not in self.controls)

    def split(self, text: str, *, special: bool = True) -> list[str | int]:
        """Split at spelled special tokens: pieces of text, and ids in place of the tokens."""
        pieces: list[str | int] = []
        begin = 0
        for match in (self._special_pattern if special else self._blank_pattern).finditer(text):
            pieces += [text[begin : match.start()], self.specials[match[1]]]
            begin = match.end()
        return [piece for piece in [*pieces, text[begin:]] if piece != ""]

    def encode(self, text: str, *, special: bool = False, first: bool = True) -> list[int]:
        """Turn text into ids; ``special`` recognises spelled special tokens, for text that a template made.

        ``first``: the text stands at the beginning, not behind something else. What the vocabulary cannot spell is
        dropped or becomes its unknown token, lone surrogates become U+FFFD.
        """
        ids: list[int] = []
        for place, piece in enumerate(self.split(text, special=special)):
            ids += [piece] if isinstance(piece, int) else self.encoder(_whole(piece), first and place == 0)
        return ids

    def prompt_ids(self, text: str) -> list[int]:
        """Turn a raw prompt into ids, between the tokens that the model was trained with: a BOS, [CLS] and [SEP]."""
        return [*self.prefix, *self.encode(text), *self.suffix]

    def token_bytes(self, id: int) -> bytes:
        """Return the bytes of a token inside a text; an id above the vocabulary (a row of padding) has none."""
        if id < 0:
            raise UsageError(f"token ids are not negative, got {id}")
        return self.tokens[id] if id < len(self.tokens) else b""

    def from_start(self) -> Callable[[int], bytes]:
        """Return ``token_bytes`` for a text that begins here: it drops the blank before the first word."""
        awaited = self.opening_blank

        def spoken(id: int) -> bytes:
            nonlocal awaited
            piece = self.token_bytes(id)
            opening, awaited = awaited, awaited and not piece
            return piece.removeprefix(b" ") if opening else piece

        return spoken

    def decode(self, ids: Iterable[int]) -> str:
        """Turn ids into text; bytes that are not UTF-8 become U+FFFD."""
        return b"".join(map(self.from_start(), ids)).decode("utf-8", "replace")


def _whole(text: str) -> str:
    """Put U+FFFD for lone surrogates."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
