"""Tokenizers of GGUF files, from their metadata: byte-level BPE, SentencePiece's two models, WordPiece."""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from refimpl.contract import CheckpointError, host
from refimpl.files.bpe import byte_level, read_merge, spelled_bytes
from refimpl.files.charsmap import read_charsmap
from refimpl.files.merges import merge
from refimpl.files.pretokenizer import SEPARATED, STAGES, WHOLE_WORDS
from refimpl.files.sentencepiece import BLANK, SentencePiece
from refimpl.files.unigram import best_path, lengths_by_letter
from refimpl.files.vocabulary import Tokenizer, tokens_by_id
from refimpl.files.wordpiece import WordPiece, wordpiece_bytes

__all__ = ["tokenizer_from_gguf"]

_ORDINARY, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = range(1, 7)  # tokenizer.ggml.token_type


class _Fields:
    """The metadata of a tokenizer, checked as it is read."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        self.all = {key.removeprefix("tokenizer.ggml."): value for key, value in metadata.items()}
        self.tokens: list[str] = self.array("tokens", str)
        self.types: list[int] = self.array("token_type", int, len(self.tokens), _ORDINARY)
        if len(self.tokens) > len({*self.tokens}) and self.all.get("model") != "gpt2":
            raise CheckpointError("tokenizer.ggml.tokens holds a token twice")

    def array(self, name: str, kind: type, length: int | None = None, default: Any = None) -> list[Any]:
        value = self.all.get(name, None if default is None else [default] * (length or 0))
        if not isinstance(value, list) or not all(type(entry) is kind for entry in value):
            raise CheckpointError(f"tokenizer.ggml.{name} must be an array of {kind.__name__}, got {str(value)[:80]}")
        if length is not None and len(value) != length:
            raise CheckpointError(f"tokenizer.ggml.{name} must list one for each of {length} tokens, got {len(value)}")
        return value

    def of_type(self, *types: int) -> dict[str, int]:
        typed = zip(self.tokens, self.types, strict=True)
        return {text: id for id, (text, kind) in enumerate(typed) if kind in types and text}

    def says(self, name: str, default: bool) -> bool:
        return bool(self.all.get(name, default))

    def framing(self, *, bos: bool, eos: bool = False, sep: bool = False) -> dict[str, Any]:
        """Return the special tokens' fields; the keywords say what stands around a text unless the file does."""
        ids = {name: self.all.get(f"{name}_token_id") for name in ("bos", "eos", "seperator", "mask", "eot", "eom")}
        ends = (("eos", self.says("add_eos_token", eos)), ("seperator", self.says("add_sep_token", sep)))
        for name, id in ids.items():
            if id is not None and (type(id) is not int or not 0 <= id < len(self.tokens)):
                raise CheckpointError(f"tokenizer.ggml.{name}_token_id must be an id of a token, got {str(id)[:80]}")
        before = ids["bos"] if self.says("add_bos_token", bos) else None
        template = self.all.get("tokenizer.chat_template")
        return {
            "prefix": () if before is None else (before,),
            "suffix": tuple(ids[name] for name, added in ends if added and ids[name] is not None),
            "bos_id": ids["bos"],
            "eos_ids": tuple(ids[name] for name in ("eos", "eot", "eom") if ids[name] is not None),
            "mask_id": ids["mask"],
            "chat_template": template if isinstance(template, str) else None,
        }


@host
def tokenizer_from_gguf(metadata: Mapping[str, Any]) -> Tokenizer | None:
    """Build the tokenizer that the metadata of a GGUF file describes; None when it describes none.

    Cost: about 0.2 s for a vocabulary of 50,000.
    Constraints: tokenizer.ggml.model is gpt2 (byte-level BPE, tokenizer.ggml.pre in ``STAGES``), llama (SentencePiece's
    BPE), t5 (its unigram model) or bert (WordPiece). Normalisers of gpt2 are not recorded; Qwen's is NFC.
    Errors: CheckpointError when the metadata is damaged or of another kind.
    Source: github.com/ggml-org/ggml, docs/gguf.md; llama.cpp, src/llama-vocab.cpp.
    """
    model = metadata.get("tokenizer.ggml.model")
    if model in (None, "none", "no_vocab"):
        return None
    readers = {"gpt2": _byte_level, "llama": _merging, "t5": _unigram, "bert": _wordpiece}
    if not isinstance(model, str) or model not in readers:
        raise CheckpointError(f"tokenizer.ggml.model is {str(model)[:80]!r}; known are {', '.join(readers)}")
    return readers[model](_Fields(metadata))


def _byte_level(fields: _Fields) -> Tokenizer:
    pre = fields.all.get("pre")
    if not isinstance(pre, str) or pre not in STAGES:
        raise CheckpointError(f"tokenizer.ggml.pre is {str(pre)[:80]!r}; known are {', '.join(STAGES)}")
    merges = fields.array("merges", str)
    specials = fields.of_type(_CONTROL, _USER_DEFINED)
    words = fields.of_type(_ORDINARY, _UNKNOWN, _CONTROL, _USER_DEFINED, _BYTE)
    encoder = byte_level(
        words, map(read_merge, merges), STAGES[pre], nfc="qwen" in pre,
        extra=[text for text in words if text not in specials] if pre in WHOLE_WORDS else [],
    )  # fmt: skip
    framing = fields.framing(bos=pre in WHOLE_WORDS, sep=pre in SEPARATED)
    masks = {framing["mask_id"]} - {None} if pre in SEPARATED else ()
    return Tokenizer(
        tokens_by_id(words, spelled_bytes, specials), specials, frozenset(fields.of_type(_CONTROL).values()), encoder,
        strips_left=frozenset(masks), **framing,
    )  # fmt: skip


def _merging(fields: _Fields) -> Tokenizer:
    return _pieces(fields, lambda scores: partial(merge, scores=scores), framing=fields.framing(bos=True))


def _unigram(fields: _Fields) -> Tokenizer:
    def model(scores: Mapping[str, float]) -> Callable[[str], list[str]]:
        return partial(best_path, scores=scores, lengths=lengths_by_letter(scores))

    return _pieces(fields, model, framing=fields.framing(bos=False, eos=True), single_blanks=True)


def _pieces(
    fields: _Fields, model: Callable[[Mapping[str, float]], Callable[[str], list[str]]], *,
    framing: dict[str, Any], single_blanks: bool = False,
) -> Tokenizer:  # fmt: skip
    """Build a tokenizer of SentencePiece's kind around its model."""
    scores = fields.array("scores", float, len(fields.tokens))
    if not all(map(math.isfinite, scores)):
        raise CheckpointError("tokenizer.ggml.scores holds a score that is not finite")
    ordinary, specials = fields.of_type(_ORDINARY), fields.of_type(_UNKNOWN, _CONTROL)
    spelled = {f"<0x{byte:02X}>": byte for byte in range(256)}
    bytes_ = {text: id for text, id in fields.of_type(_BYTE).items() if text in spelled}
    unknown = fields.all.get("unknown_token_id")
    encoder = SentencePiece(
        model({text: scores[id] for text, id in ordinary.items()}),
        ordinary,
        symbols=fields.of_type(_USER_DEFINED),
        bytes=[bytes_[text] for text in spelled] if len(bytes_) == 256 else None,
        unknown=unknown if unknown in specials.values() else None,
        normalize=_charsmap(fields),
        prefix_blank=fields.says("add_space_prefix", True),
        single_blanks=fields.says("remove_extra_whitespaces", single_blanks),
    )

    def said(text: str) -> bytes:
        return bytes([spelled[text]]) if text in bytes_ else text.replace(BLANK, " ").encode("utf-8", "replace")

    tokens = tokens_by_id({text: id for id, text in enumerate(fields.tokens)}, said, specials)
    controls = frozenset(specials.values())
    right = _stripping(specials) if fields.all.get("general.architecture") == "phi3" else frozenset[int]()
    return Tokenizer(
        tokens, specials, controls, encoder, strips_right=right, opening_blank=encoder.prefix_blank, **framing
    )


def _stripping(specials: Mapping[str, int]) -> frozenset[int]:
    """List Phi-3's special tokens that take the white space behind them along, which its files do not say."""
    return frozenset(id for text, id in specials.items() if text not in ("<|endoftext|>", "<s>", "<unk>"))


def _charsmap(fields: _Fields) -> Callable[[str], str]:
    table = fields.all.get("precompiled_charsmap", [])
    if not isinstance(table, list) or not all(type(byte) is int and -128 <= byte < 256 for byte in table):
        raise CheckpointError(f"tokenizer.ggml.precompiled_charsmap must be an array of bytes, got {str(table)[:80]}")
    return read_charsmap(bytes(byte & 255 for byte in table)) if table else str


def _wordpiece(fields: _Fields) -> Tokenizer:
    """Read BERT's words: in GGUF files the beginning of a word is marked, in vocab.txt it is the rest."""
    marked = any(text.startswith(BLANK) for text in fields.tokens)
    specials = fields.of_type(_UNKNOWN, _CONTROL)
    written = {
        text if text in specials or not marked else text[1:] if text.startswith(BLANK) and text[1:] else f"##{text}": id
        for id, text in enumerate(fields.tokens)
    }
    unknown = fields.all.get("unknown_token_id", written.get("[UNK]"))
    if type(unknown) is not int or not 0 <= unknown < len(fields.tokens):
        raise CheckpointError(f"WordPiece needs the id of its unknown token, got {str(unknown)[:80]}")
    lower = fields.says("normalizer.lowercase", all(text == text.lower() for text in written if text not in specials))
    encoder = WordPiece(written, unknown, lower, fields.says("normalizer.strip_accents", lower))
    return Tokenizer(
        tokens_by_id(written, wordpiece_bytes), specials, frozenset(specials.values()), encoder, opening_blank=True,
        **fields.framing(bos=True, sep=True),
    )  # fmt: skip
