"""SentencePiece's frame around its models: blanks become letters, text becomes pieces, what is no piece becomes bytes.

    text -> normal form -> a blank in front -> symbols that the model's maker defined | the rest, cut before blanks
         -> pieces (merges or unigram) -> ids

A model never joins across a place where no piece of its vocabulary reaches across, so text is cut there first: time
grows with the longest stretch and not with the text, and stretches that come again are looked up.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import regex

from refimpl.contract import host

__all__ = ["BLANK", "SentencePiece", "cuts"]

BLANK = "\u2581"  # ▁, the letter for a blank
_REMEMBERED, _SHORT = 2**15, 64


@host
def cuts(pieces: Iterable[str]) -> "regex.Pattern[str]":
    """Return the pattern of places where text may be cut: before a blank, behind letters that no piece has there.

    >>> cuts(["a", "▁a", ">▁<"]).split("ab▁▁a>▁a▁b")
    ['ab', '▁▁a>▁a', '▁b']
    """
    behind = {BLANK} | {piece[at - 1] for piece in pieces for at in range(1, len(piece)) if piece[at] == BLANK}
    return regex.compile(f"(?={BLANK})(?<=[^{''.join(map(regex.escape, sorted(behind)))}])")


@dataclass(frozen=True, eq=False)
class SentencePiece:
    """Text to ids by a vocabulary of pieces."""

    segment: Callable[[str], list[str]]  # the model: a stretch of text to pieces and single letters
    ids: Mapping[str, int]  # of the pieces
    symbols: Mapping[str, int]  # what is a token wherever it stands in a text; ▁ also finds a blank
    bytes: Sequence[int] | None  # the ids of the 256 bytes, if the vocabulary has them all
    unknown: int | None  # the id of what is no piece, else it is dropped
    normalize: Callable[[str], str] = str
    prefix_blank: bool = True
    single_blanks: bool = False  # no blanks at the ends, and never two together

    def __call__(self, text: str, first: bool = True) -> list[int]:
        text = self.normalize(text)
        if self.single_blanks:
            text = " ".join(filter(None, text.split(" "))).rstrip(f" {BLANK}")
        if self.prefix_blank and text:
            text = f" {text}"
        return list(self._fused(id for part in self._parts(text) for id in part))

    def _parts(self, text: str) -> Iterator[Sequence[int | None]]:
        begin = 0
        for match in self._symbol_pattern.finditer(text) if self.symbols else ():
            yield from map(self._known, self._cuts.split(text[begin : match.start()].replace(" ", BLANK)))
            found = match.group()
            yield (self.symbols[found] if found in self.symbols else self._escaped_symbols[found.replace(" ", BLANK)],)
            begin = match.end()
        yield from map(self._known, self._cuts.split(text[begin:].replace(" ", BLANK)))

    def _known(self, stretch: str) -> Sequence[int | None]:
        return self._remembered(stretch) if len(stretch) <= _SHORT else self._stretch(stretch)

    def _stretch(self, stretch: str) -> tuple[int | None, ...]:
        ids: list[int | None] = []
        for piece in self.segment(stretch):
            if piece in self.ids or self.bytes is None:
                ids.append(self.ids.get(piece))
            else:
                ids += [self.bytes[byte] for byte in piece.encode()]
        return tuple(ids)

    def _fused(self, ids: Iterable[int | None]) -> Iterator[int]:
        """Give one unknown token for letters that are no pieces and stand together."""
        last: int | None = -1
        for id in ids:
            if id is not None:
                yield id
            elif last is not None and self.unknown is not None:
                yield self.unknown
            last = id

    @cached_property
    def _remembered(self) -> Callable[[str], Sequence[int | None]]:
        return lru_cache(_REMEMBERED)(self._stretch)

    @cached_property
    def _cuts(self) -> "regex.Pattern[str]":
        return cuts(self.ids)

    @cached_property
    def _escaped_symbols(self) -> Mapping[str, int]:
        return {text.replace(" ", BLANK): id for text, id in self.symbols.items()}

    @cached_property
    def _symbol_pattern(self) -> "regex.Pattern[str]":
        longest_first = sorted(self.symbols, key=len, reverse=True)
        return regex.compile("|".join(regex.escape(text).replace(BLANK, f"[ {BLANK}]") for text in longest_first))
