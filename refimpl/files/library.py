"""Tokenizers of every other kind, as the `tokenizers` library runs them: an extra that is asked for when it is needed.

The library keeps what it is good at, words and pieces. Special tokens stay ours: it is told to take their spelling for
text, and what a post-processor adds is added by ``Tokenizer``.
"""

import json
from collections.abc import Mapping
from typing import Any

from refimpl.contract import CheckpointError, host
from refimpl.files.bpe import spelled_bytes
from refimpl.files.sentencepiece import BLANK
from refimpl.files.vocabulary import Encoder
from refimpl.files.wordpiece import wordpiece_bytes

__all__ = ["library_encoder", "library_bytes", "opens_with_blank"]

_UNSPELLED = "\ufdd1" * 8  # before a special token's name in a vocabulary that would find it in text


def _open(data: Mapping[str, Any]) -> Any:
    """Make the library's tokenizer; whatever it says of the file becomes one line."""
    try:
        import tokenizers
    except ImportError as error:
        raise CheckpointError(
            "this tokenizer.json is not byte-level BPE and needs the `tokenizers` library: "
            'pip install -e ".[tokenizers]", or pip install tokenizers'
        ) from error
    try:
        opened = tokenizers.Tokenizer.from_str(json.dumps(data))
    except BaseException as error:  # a panic of the library is no Exception
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise CheckpointError(f"the tokenizers library cannot read tokenizer.json: {reason[:200]}") from error
    opened.encode_special_tokens = True
    return opened


def _unspelled(data: Mapping[str, Any]) -> dict[str, Any]:
    """Rename special tokens in a list of pieces: a unigram model finds any of its pieces in text, "</s>" too."""
    special = {entry["content"] for entry in data["added_tokens"] if entry.get("special")}

    def name(text: Any) -> Any:
        return _UNSPELLED + text if isinstance(text, str) and text in special else text

    pieces = [[name(piece[0]), *piece[1:]] for piece in data["model"]["vocab"]]
    added = [entry | {"content": name(entry["content"])} for entry in data["added_tokens"]]
    return {**data, "model": data["model"] | {"vocab": pieces}, "added_tokens": added}


def _never_blank(tree: Any) -> Any:
    """Change a pre-tokenizer or decoder that puts a blank before the first word into one that puts it nowhere."""
    if isinstance(tree, dict):
        never = {"prepend_scheme": "never"} if tree.get("prepend_scheme") == "first" else {}
        return {key: _never_blank(value) for key, value in tree.items()} | never
    return [*map(_never_blank, tree)] if isinstance(tree, list) else tree


@host
def library_encoder(data: Mapping[str, Any]) -> Encoder:
    """Return the encoder that the library makes of a tokenizer.json; ``added_tokens`` are checked already.

    Errors: CheckpointError when the library is not there, or refuses the file.
    """
    kept = {**data, "post_processor": None, "truncation": None, "padding": None}
    if isinstance(data["model"].get("vocab"), list):
        kept = _unspelled(kept)
    opening = _open(kept)
    inner = _never_blank(kept["pre_tokenizer"]) if isinstance(kept.get("pre_tokenizer"), dict) else None
    later = opening if inner == kept.get("pre_tokenizer") else _open({**kept, "pre_tokenizer": inner})

    def encode(text: str, first: bool = True) -> list[int]:
        try:
            ids: list[int] = (opening if first else later).encode(text, add_special_tokens=False).ids
        except Exception as error:
            raise CheckpointError(f"the tokenizers library fails on this text: {str(error)[:200]}") from error
        return ids

    return encode


def _decoders(decoder: Any) -> list[dict[str, Any]]:
    steps = decoder.get("decoders") if isinstance(decoder, dict) and decoder.get("type") == "Sequence" else [decoder]
    return [step for step in steps if isinstance(step, dict)] if isinstance(steps, list) else []


@host
def library_bytes(token: str, decoder: Any, suffix: str = "") -> bytes:
    """Return what a token says inside a text, by the decoder of a tokenizer.json; ``suffix`` ends words in CLIP's.

    >>> library_bytes("<0xC3>", {"type": "ByteFallback"}), library_bytes("▁a", {"type": "Metaspace"})
    (b'\\xc3', b' a')
    >>> library_bytes("cat</w>", {"type": "ByteLevel"}, "</w>")
    b'cat '
    """
    if suffix and token.endswith(suffix):
        return library_bytes(token.removesuffix(suffix), decoder) + b" "
    steps = {str(step.get("type")): step for step in _decoders(decoder)}
    if "ByteFallback" in steps and len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        try:
            return bytes([int(token[3:5], 16)])
        except ValueError:
            pass
    if "WordPiece" in steps:
        return wordpiece_bytes(token)
    if "ByteLevel" in steps:
        return spelled_bytes(token)
    return token.replace(BLANK, " ").encode("utf-8", "replace")


@host
def opens_with_blank(decoder: Any) -> bool:
    """Tell whether the decoder of a tokenizer.json drops the blank before a text's first word.

    >>> opens_with_blank({"type": "Strip", "content": " ", "start": 1, "stop": 0}), opens_with_blank({"type": "Fuse"})
    (True, False)
    """
    for step in _decoders(decoder):
        match step:
            case {"type": "WordPiece"} | {"type": "Strip", "content": " ", "start": 1}:
                return True
            case {"type": "Metaspace", **options}:
                return options.get("prepend_scheme") != "never" and options.get("add_prefix_space") is not False
    return False
