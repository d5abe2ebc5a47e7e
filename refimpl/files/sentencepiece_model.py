"""SentencePiece's own files (tokenizer.model, spiece.model): protocol buffers, read as the fields of a GGUF file.

    field: varint(number << 3 | wire) value; by wire a value is 0: a varint, 1: 8 bytes, 2: a size and bytes, 5: 4 bytes
"""

import struct
from collections.abc import Iterator
from typing import Any

from refimpl.contract import CheckpointError, host

__all__ = ["read_sentencepiece"]

_KINDS = {1: "t5", 2: "llama"}  # TrainerSpec.model_type: unigram, BPE
_FIXED = {1: 8, 5: 4}


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Read seven bits a byte, the last of them below 128; return the number and where it ends."""
    for size in range(1, 11):
        if at + size > len(data):
            break
        if data[at + size - 1] < 0x80:
            return sum((byte & 0x7F) << 7 * place for place, byte in enumerate(data[at : at + size])), at + size
    raise CheckpointError(f"the SentencePiece file is damaged: no number ends after byte {at} of {len(data)}")


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Give number and value of each field: an int, or the bytes."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        if key & 7 == 0:
            value, at = _varint(data, at)
            yield key >> 3, value
            continue
        size, at = (_FIXED[key & 7], at) if key & 7 in _FIXED else _varint(data, at)
        if key & 7 not in (1, 2, 5) or size > len(data) - at:
            raise CheckpointError(f"the SentencePiece file is damaged: a field of {size} bytes at {at} of {len(data)}")
        yield key >> 3, data[at : at + size]
        at += size


def _piece(data: bytes) -> tuple[str, float, int]:
    text, score, kind = b"", 0.0, 1
    for number, value in _fields(data):
        match number, value:
            case 1, bytes():
                text = value
            case 2, bytes() if len(value) == 4:
                (score,) = struct.unpack("<f", value)
            case 3, int():
                kind = value
    return text.decode("utf-8", "replace"), score, kind


@host
def read_sentencepiece(data: bytes) -> dict[str, Any]:
    """Read a SentencePiece model into what a GGUF file says of the same: tokens, scores, types, special ids, table.

    Errors: CheckpointError when the file is damaged, or its model is neither BPE nor unigram.
    Source: SentencePiece, src/sentencepiece_model.proto.

    >>> read_sentencepiece(bytes([10, 3, 10, 1, 97]))["tokenizer.ggml.tokens"]
    ['a']
    """
    pieces, trainer, normalizer = list[tuple[str, float, int]](), dict[int, Any](), dict[int, Any]()
    for number, value in _fields(data):
        if number == 1 and isinstance(value, bytes):
            pieces.append(_piece(value))
        elif number in (2, 3) and isinstance(value, bytes):
            (trainer if number == 2 else normalizer).update(_fields(value))
    kind = trainer.get(3, 1)
    if kind not in _KINDS or trainer.get(24) or not normalizer.get(5, 1):
        kinds = "unigram (type 1) or BPE (type 2), with blanks in front"
        raise CheckpointError(f"a SentencePiece model is {kinds}, this one has type {str(kind)[:20]}")
    tokens, scores, types = zip(*pieces, strict=True) if pieces else ((), (), ())
    table = normalizer.get(2, b"")
    fields = {
        "model": _KINDS[kind], "tokens": [*tokens], "scores": [*scores], "token_type": [*types],
        "unknown_token_id": trainer.get(40, 0), "bos_token_id": trainer.get(41, 1), "eos_token_id": trainer.get(42, 2),
        "add_space_prefix": bool(normalizer.get(3, 1)), "remove_extra_whitespaces": bool(normalizer.get(4, 1)),
        "precompiled_charsmap": [*table] if isinstance(table, bytes) else [],
    }  # fmt: skip
    return {f"tokenizer.ggml.{name}": value for name, value in fields.items() if value not in (-1, 2**64 - 1)}
