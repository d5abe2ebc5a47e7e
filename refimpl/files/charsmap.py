"""SentencePiece's normal form: a table of replacements that comes with the model, as a trie in one array.

    u32 bytes of the trie | units of the trie, u32 | replacements in UTF-8, each with a zero behind it

A unit holds a label, the offset to its children and whether a value hangs below; a child stands at offset XOR label
("double array"). The longest key that stands in the text is replaced.
"""

from dataclasses import dataclass

import numpy as np

from refimpl.contract import CheckpointError, host

__all__ = ["CharsMap", "read_charsmap"]


@dataclass(frozen=True)
class CharsMap:
    """Text to its normal form."""

    units: tuple[int, ...]
    texts: bytes

    def __call__(self, text: str) -> str:
        data, at, pieces = text.encode(), 0, list[str]()
        while at < len(data):
            size, value = self._longest(data, at)
            if value is None:
                size = 1 + (data[at] > 0xBF) + (data[at] > 0xDF) + (data[at] > 0xEF)  # one character
                pieces.append(data[at : at + size].decode())
            else:
                pieces.append(self._text(value))
            at += size
        return "".join(pieces)

    def _longest(self, data: bytes, at: int) -> tuple[int, int | None]:
        """Walk the trie along the text; return the length and the value of the longest key there, if there is one."""
        begin, size, value = at, 0, None
        place = _offset(self.units[0])
        while at < len(data):
            place ^= data[at]
            if place >= len(self.units) or (unit := self.units[place]) & 0x800000FF != data[at]:
                break
            at, place = at + 1, place ^ _offset(unit)
            if unit >> 8 & 1 and place < len(self.units):
                size, value = at - begin, self.units[place] & 0x7FFFFFFF
        return size, value

    def _text(self, value: int) -> str:
        return self.texts[value : self.texts.find(b"\0", value)].decode("utf-8", "replace")


def _offset(unit: int) -> int:
    return unit >> 10 << ((unit & 0x200) >> 6)


@host
def read_charsmap(data: bytes) -> CharsMap:
    """Read the table; an empty one changes nothing.

    Errors: CheckpointError when the trie is no whole number of units or longer than the data.
    Source: SentencePiece, src/normalizer.cc; the array is that of github.com/s-yata/darts-clone.

    >>> read_charsmap(b"")("as it is")
    'as it is'
    """
    size = int.from_bytes(data[:4], "little")
    if data and (size % 4 or not 0 < size <= len(data) - 4):
        raise CheckpointError(f"a table of characters of {len(data)} bytes cannot hold a trie of {size} bytes")
    units = np.frombuffer(data, "<u4", size // 4, 4).tolist() if data else [0]
    return CharsMap(tuple(units), data[4 + size :])
