"""Tokenizers of folders without a tokenizer.json: BERT's vocab.txt, SentencePiece's tokenizer.model or spiece.model."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from refimpl.contract import CheckpointError, host
from refimpl.files.sentencepiece_model import read_sentencepiece
from refimpl.files.tokenizer_gguf import tokenizer_from_gguf
from refimpl.files.vocabulary import Tokenizer, check_ids_of, tokens_by_id
from refimpl.files.wordpiece import WordPiece, wordpiece_bytes

__all__ = ["tokenizer_without_json", "token_content"]

_ROLES = ("unk", "cls", "sep", "mask")
_CONTROL, _USER_DEFINED = 3, 4
_MADE = "transformers' save_pretrained makes a tokenizer.json of it"


@host
def token_content(token: Any) -> str:
    """Return the text of a token of tokenizer_config.json, which is a string, an object or absent."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else ""


@host
def tokenizer_without_json(folder: Path, settings: Mapping[str, Any], chat_template: str | None) -> Tokenizer | None:
    """Read vocab.txt, tokenizer.model or spiece.model; None when there is none of them.

    Errors: CheckpointError when a file is damaged, or belongs to a kind of tokenizer that puts it to another use.
    """
    for name in ("tokenizer.model", "spiece.model"):
        if (folder / name).is_file():
            return _sentencepiece(folder / name, settings, chat_template)
    if (folder / "vocab.txt").is_file():
        return _words(folder / "vocab.txt", settings)
    if (folder / "vocab.json").is_file():
        raise CheckpointError(f"{folder} has vocab.json but no tokenizer.json; {_MADE}")
    return None


def _words(path: Path, settings: Mapping[str, Any]) -> Tokenizer:
    """Read vocab.txt, a token a line."""
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    words = {line.rstrip("\r"): id for id, line in enumerate(lines) if line.strip()}
    check_ids_of(words)
    names = [token_content(settings.get(f"{role}_token")) or f"[{role.upper()}]" for role in _ROLES]
    lost = [text for text in names if text not in words]
    if lost:
        raise CheckpointError(f"{path} has no token {lost[0]!r}")
    unknown, cls, sep, mask = (words[text] for text in names)
    lower = settings.get("do_lower_case", True) is not False
    accents, ideographs = settings.get("strip_accents"), settings.get("tokenize_chinese_chars", True) is not False
    specials = {text: words[text] for text in ("[PAD]", *names) if text in words}
    encoder = WordPiece(words, unknown, lower, lower if accents is None else bool(accents), ideographs)
    return Tokenizer(
        tokens_by_id(words, wordpiece_bytes), specials, frozenset(specials.values()), encoder, prefix=(cls,),
        suffix=(sep,), opening_blank=True, bos_id=cls, mask_id=mask,
    )  # fmt: skip


def _sentencepiece(path: Path, settings: Mapping[str, Any], chat_template: str | None) -> Tokenizer | None:
    """Read a SentencePiece model, with the tokens that its family adds."""
    fields = read_sentencepiece(path.read_bytes())
    family = str(settings.get("tokenizer_class") or ("Llama" if path.name == "tokenizer.model" else "T5"))
    if not family.startswith(("Llama", "Gemma", "T5")):
        raise CheckpointError(f"{path} belongs to a {family[:80]}, those of Llama, Gemma and T5 are read; {_MADE}")
    tokens, types = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
    for id, text, kind in _added(settings.get("added_tokens_decoder") or {}):
        if id > len(tokens):
            raise CheckpointError(f"{path} has {len(tokens)} tokens, and added_tokens_decoder goes on with {id}")
        tokens[id : id + 1], types[id : id + 1] = [text], [kind]
        fields["tokenizer.ggml.scores"][id : id + 1] = [0.0]
    ends = family.startswith("T5")
    fields |= {
        "tokenizer.ggml.add_bos_token": settings.get("add_bos_token", not ends),
        "tokenizer.ggml.add_eos_token": settings.get("add_eos_token", ends), "tokenizer.chat_template": chat_template,
    }  # fmt: skip
    return tokenizer_from_gguf(fields)


def _added(decoder: Any) -> list[tuple[int, str, int]]:
    """List id, text and type of the tokens in added_tokens_decoder, by id."""
    try:
        return sorted(
            (int(id), str(token["content"]), _CONTROL if token.get("special") else _USER_DEFINED)
            for id, token in decoder.items()
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"added_tokens_decoder has a content for each id, got {str(decoder)[:80]}") from error
