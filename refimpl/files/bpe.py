"""Byte-level byte-pair encoding: text to ids and back, with tiktoken for the merging.

Special tokens are ours to split, never tiktoken's: only ``special=True`` recognises their spelling, and only a chat
template earns that. What a user types stays text.

Vocabularies spell bytes with printable letters (GPT-2's alphabet). tiktoken knows ranks only: it joins the neighbours
whose product has the lowest rank. We rank the 256 bytes 0..255 and the product of merge i 256 + i, and turn ranks into
ids afterwards, so that ids need no order and a byte without a token has a rank all the same.
"""

import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import regex
import tiktoken

from refimpl.contract import CheckpointError, UsageError, host
from refimpl.files.pretokenizer import cut

__all__ = ["spelled_bytes", "byte_pair_encoding", "Tokenizer"]


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


@dataclass(frozen=True, eq=False)
class Tokenizer:
    """A byte-level BPE tokenizer with its special tokens and chat template."""

    tokens: tuple[bytes, ...]  # by id; b"" where an id has no token
    specials: Mapping[str, int]
    controls: frozenset[int]  # specials that no text should spell; the others (<think>) may stand in an answer
    encoding: tiktoken.Encoding
    ids: list[int]  # by rank of ``encoding``; -1: none
    stages: tuple["regex.Pattern[str]", ...]  # before the pattern of ``encoding``
    nfc: bool = False
    bos_id: int | None = None
    eos_ids: tuple[int, ...] = ()
    add_bos: bool = False
    chat_template: str | None = None

    @property
    def vocab_size(self) -> int:
        return len(self.tokens)

    @cached_property
    def _special_pattern(self) -> "regex.Pattern[str]":
        longest_first = sorted(self.specials, key=len, reverse=True)
        return regex.compile("|".join(regex.escape(text) for text in longest_first) or "(?!)")

    def split(self, text: str) -> list[str | int]:
        """Split at spelled special tokens: pieces of text, and ids in place of the tokens."""
        pieces: list[str | int] = []
        begin = 0
        for match in self._special_pattern.finditer(text):
            pieces += [text[begin : match.start()], self.specials[match.group()]]
            begin = match.end()
        return [piece for piece in [*pieces, text[begin:]] if piece != ""]

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """Turn text into ids; ``special`` recognises spelled special tokens, for text that a template made.

        Bytes that have no token are dropped, lone surrogates become U+FFFD.
        """
        if special:
            return [
                id for piece in self.split(text) for id in ([piece] if isinstance(piece, int) else self.encode(piece))
            ]
        if not text.isascii():
            text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
            text = unicodedata.normalize("NFC", text) if self.nfc else text
        ranks = [rank for piece in cut(text, self.stages) for rank in _ranks(self.encoding, piece)]
        return [id for rank in ranks if (id := self.ids[rank]) >= 0]

    def prompt_ids(self, text: str) -> list[int]:
        """Turn a raw prompt into ids, behind one BOS where the model was trained with one."""
        bos = [self.bos_id] if self.add_bos and self.bos_id is not None else []
        return bos + self.encode(text)

    def token_bytes(self, id: int) -> bytes:
        """Return the bytes of a token; an id above the vocabulary (a padded row of the embedding) has none."""
        if id < 0:
            raise UsageError(f"token ids are not negative, got {id}")
        return self.tokens[id] if id < len(self.tokens) else b""

    def decode(self, ids: Iterable[int]) -> str:
        """Turn ids into text; bytes that are not UTF-8 become U+FFFD."""
        return b"".join(map(self.token_bytes, ids)).decode("utf-8", "replace")
