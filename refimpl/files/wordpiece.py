"""WordPiece, as BERT has it: words in a plain form, each cut into the longest pieces that the vocabulary knows."""

import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache

import regex

from refimpl.contract import host

__all__ = ["WordPiece", "plain_form", "wordpiece_bytes"]

_INSIDE = "##"  # begins a piece that does not begin a word
_LONGEST_WORD = 100
_DROPPED = regex.compile(r"[\0\uFFFD]|(?![\t\n\r])[\p{Cc}\p{Cf}\p{Co}]")
_IDEOGRAPHS = regex.compile(
    "[\u4e00-\u9fff\u3400-\u4dbf\U00020000-\U0002a6df\U0002a700-\U0002b73f\U0002b740-\U0002b81f\U0002b820-\U0002ceaf"
    "\uf900-\ufaff\U0002f800-\U0002fa1f]"
)
_PUNCTUATION = r"!-/:-@\[-`{-~\p{P}"
_WORD = regex.compile(rf"[{_PUNCTUATION}]|[^\s{_PUNCTUATION}]+")
_TIDY = (
    (" .", "."), (" ?", "?"), (" !", "!"), (" ,", ","), (" ' ", "'"), (" n't", "n't"), (" 'm", "'m"),
    (" do not", " don't"), (" 's", "'s"), (" 've", "'ve"), (" 're", "'re"),
)  # fmt: skip


@host
def plain_form(text: str, *, lower: bool = True, strip_accents: bool = True, ideographs: bool = True) -> str:
    """Drop control characters and, as asked, accents and capitals; set Chinese ideographs apart.

    Source: github.com/google-research/bert, tokenization.py.

    >>> plain_form("Caf\u00e9\u200b \u6771\u4eac")
    'cafe  \u6771  \u4eac '
    """
    if text.isascii() and text.isprintable():
        return text.lower() if lower else text
    text = _DROPPED.sub("", text)
    if ideographs:
        text = _IDEOGRAPHS.sub(lambda match: f" {match.group()} ", text)
    if strip_accents:
        text = regex.sub(r"\p{Mn}", "", unicodedata.normalize("NFD", text))
    return "".join(map(str.lower, text)) if lower else text


@host
def wordpiece_bytes(token: str) -> bytes:
    """Return what a token says inside a text: a blank before a word, none before a piece or most punctuation.

    >>> wordpiece_bytes("##ing"), wordpiece_bytes("sing"), wordpiece_bytes(",")
    (b'ing', b' sing', b',')
    """
    if token.startswith(_INSIDE):
        return token.removeprefix(_INSIDE).encode("utf-8", "replace")
    text = f" {token}"
    for apart, joined in _TIDY:
        text = text.replace(apart, joined)
    return text.encode("utf-8", "replace")


@dataclass(frozen=True, eq=False)
class WordPiece:
    """Text to ids; a word that is not made of pieces is the unknown token."""

    vocabulary: Mapping[str, int]
    unknown: int
    lower: bool = True
    strip_accents: bool = True
    ideographs: bool = True

    def __call__(self, text: str, first: bool = True) -> list[int]:
        plain = plain_form(text, lower=self.lower, strip_accents=self.strip_accents, ideographs=self.ideographs)
        unknown = (self.unknown,)
        words = (self._remembered(w) if len(w) <= _LONGEST_WORD else unknown for w in _WORD.findall(plain))
        return [id for word in words for id in word]

    @cached_property
    def _remembered(self) -> Callable[[str], tuple[int, ...]]:
        return lru_cache(2**15)(self._word)

    def _word(self, word: str) -> tuple[int, ...]:
        """Take the longest piece again and again."""
        ids, begin = list[int](), 0
        while begin < len(word):
            mark = _INSIDE if begin else ""
            ends = range(len(word), begin, -1)
            end = next((end for end in ends if mark + word[begin:end] in self.vocabulary), None)
            if end is None:
                return (self.unknown,)
            ids.append(self.vocabulary[mark + word[begin:end]])
            begin = end
        return tuple(ids)
