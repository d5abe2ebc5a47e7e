"""Byte-level byte-pair encoding: text to ids, with tiktoken for the merging.

Vocabularies spell bytes with printable letters (GPT-2's alphabet). tiktoken knows ranks only: it joins the neighbours
whose product has the lowest rank. We rank the 256 bytes 0..255 and the product of merge i 256 + i, and turn ranks into
ids afterwards, so that ids need no order and a byte without a token has a rank all the same.
"""

import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import regex
import tiktoken

from refimpl.contract import CheckpointError, host
from refimpl.files.pretokenizer import compile_stage, covering, cut

__all__ = ["spelled_bytes", "byte_pair_encoding", "read_merge", "ByteLevel", "byte_level"]


def _alphabet() -> list[str]:
    """GPT-2's letter for each byte: itself where it is printable, else the next one above 255."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    unprintable = [byte for byte in range(256) if byte not in printable]
    return [chr(byte if byte in printable else 256 + unprintable.index(byte)) for byte in range(256)]


_LETTERS = tuple(_alphabet())
_BYTES: Mapping[int, int] = {byte: 0xFFFF for byte in range(256)} | {ord(c): byte for byte, c in enumerate(_LETTERS)}


@host
def spelled_bytes(token: str) -> bytes:
    """Return the bytes that a token spells in GPT-2's alphabet; a token outside it is its own UTF-8.

    Source: github.com/openai/gpt-2, src/encoder.py, bytes_to_unicode.

    >>> spelled_bytes("Ġhello"), spelled_bytes("two words")
    (b' hello', b'two words')
    """
    try:
        return token.translate(_BYTES).encode("latin-1")
    except UnicodeEncodeError:
        return token.encode("utf-8", "replace")


@host
def byte_pair_encoding(
    vocabulary: Mapping[str, int], merges: Iterable[tuple[str, str]], pattern: str, *,
    extra: Sequence[str] = (), unknown: int = -1,
) -> tuple[tiktoken.Encoding, list[int]]:
    """Build the encoder and the table from its ranks to ids; ``unknown`` stands for a byte that has no token.

    ``extra`` are tokens that no merge makes and that stand for a whole word all the same.

    Constraints: both parts of a merge and their product are in the vocabulary; merges with one product stand together
    (tiktoken has one rank a product; Llama 3 lists several merges for many).
    Errors: CheckpointError when they do not hold or tiktoken refuses the pattern.

    >>> encoding, ids = byte_pair_encoding({"a": 7, "b": 8, "ab": 9}, [("a", "b")], ".+")
    >>> [ids[rank] for rank in encoding.encode_ordinary("abba?")]
    [9, 8, 7, -1]
    """
    ids = [vocabulary.get(letter, unknown) for letter in _LETTERS]
    ranks = {bytes([byte]): byte for byte in range(256)}
    for left, right in merges:
        product = left + right
        if left not in vocabulary or right not in vocabulary or product not in vocabulary:
            raise CheckpointError(f"merge {left!r} {right!r} needs three tokens and the vocabulary lacks one")
        rank = ranks.setdefault(spelled_bytes(product), len(ids))
        if rank == len(ids):
            ids.append(vocabulary[product])
        elif rank != len(ids) - 1:
            raise CheckpointError(f"merge {left!r} {right!r} repeats a product of rank {rank} at {len(ids)}")
    for token in extra:
        if ranks.setdefault(spelled_bytes(token), len(ids)) == len(ids):
            ids.append(vocabulary[token])
    try:
        return tiktoken.Encoding("refimpl", pat_str=pattern, mergeable_ranks=ranks, special_tokens={}), ids
    except ValueError as error:
        raise CheckpointError(f"the pre-tokenizer pattern cannot be read: {error}") from error


def _ranks(encoding: tiktoken.Encoding, text: str) -> list[int]:
    try:
        return encoding.encode_ordinary(text)
    except BaseException as error:  # a panic of tiktoken is no Exception, and its class cannot be imported
        if type(error).__name__ != "PanicException":
            raise
        raise CheckpointError(f"the pre-tokenizer pattern fails on this text: {error}".splitlines()[0]) from error


@host
def read_merge(merge: Any) -> tuple[str, str]:
    """Read a merge in either spelling: "a b" or ["a", "b"].

    Errors: CheckpointError when it is neither.
    """
    parts = merge.split(" ") if isinstance(merge, str) else merge
    if not isinstance(parts, list) or len(parts) != 2 or {*map(type, parts)} != {str}:
        raise CheckpointError(f"a merge is two tokens, got {str(merge)[:80]}")
    return parts[0], parts[1]


@dataclass(frozen=True, eq=False)
class ByteLevel:
    """Text to ids: stages of words, then merges of bytes. Bytes that have no token are dropped."""

    encoding: tiktoken.Encoding
    ids: list[int]  # by rank of ``encoding``; -1: none
    stages: tuple["regex.Pattern[str]", ...]  # before the pattern of ``encoding``
    nfc: bool = False

    def __call__(self, text: str, first: bool = True) -> list[int]:
        text = unicodedata.normalize("NFC", text) if self.nfc else text
        ranks = [rank for piece in cut(text, self.stages) for rank in _ranks(self.encoding, piece)]
        return [id for rank in ranks if (id := self.ids[rank]) >= 0]


@host
def byte_level(
    vocabulary: Mapping[str, int], merges: Iterable[tuple[str, str]], stages: tuple[str, ...], *,
    extra: Sequence[str] = (), unknown: int = -1, nfc: bool = False,
) -> ByteLevel:  # fmt: skip
    """Build the whole encoder: ``stages`` of words, the last of them tiktoken's, and merges.

    Errors: as ``byte_pair_encoding`` and ``compile_stage``.
    """
    *first, _ = map(compile_stage, stages)
    encoding, ids = byte_pair_encoding(vocabulary, merges, covering(stages[-1]), extra=extra, unknown=unknown)
    return ByteLevel(encoding, ids, tuple(first), nfc)
