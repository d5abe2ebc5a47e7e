"""Tokenizers as files describe them: a tokenizer.json, or the metadata of a GGUF file."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from refimpl.contract import CheckpointError, host
from refimpl.files.bpe import Tokenizer, byte_pair_encoding, spelled_bytes
from refimpl.files.checkpoint import read_json
from refimpl.files.pretokenizer import STAGES, compile_stage, covering, read_stages

__all__ = ["Tokenizer", "tokenizer_from_folder", "tokenizer_from_gguf"]

_ORDINARY, _CONTROL, _USER_DEFINED, _UNUSED = 1, 3, 4, 5  # tokenizer.ggml.token_type
_MAX_VOCABULARY = 2**22
_KINDS = "byte-level BPE is supported; SentencePiece, Unigram and WordPiece tokenizers are not yet"


def _assemble(
    words: Mapping[str, Any],
    specials: Mapping[str, int],
    merges: Iterable[tuple[str, str]],
    stages: tuple[str, ...],
    whole_words: bool,
    unknown: int = -1,
    **fields: Any,
) -> Tokenizer:
    """Build the tokenizer from ordinary tokens, special tokens, merges and stages.

    ``whole_words``: a word that is a token needs no merges to become it ("ignore_merges"). ``unknown``: the id that
    stands for a byte without a token; -1 drops it.
    """
    if any(type(id) is not int or not 0 <= id < _MAX_VOCABULARY for id in (*words.values(), *specials.values())):
        raise CheckpointError(f"token ids must be integers from 0 to {_MAX_VOCABULARY - 1}")
    named = {id: spelled_bytes(text) for text, id in words.items()}
    named |= {id: text.encode("utf-8", "replace") for text, id in specials.items()}
    if any(type(id) is not int or id not in named for id in (fields["bos_id"], *fields["eos_ids"]) if id is not None):
        raise CheckpointError(f"BOS {fields['bos_id']!r} and EOS {fields['eos_ids']} must be ids of tokens")
    extra = [text for text in words if text not in specials] if whole_words else []
    *first, _ = map(compile_stage, stages)
    encoding, ids = byte_pair_encoding(words, merges, covering(stages[-1]), extra=extra, unknown=unknown)
    tokens = tuple(named.get(id, b"") for id in range(max(named, default=-1) + 1))
    return Tokenizer(tokens, specials, encoding=encoding, ids=ids, stages=tuple(first), **fields)


def _read_merge(merge: Any) -> tuple[str, str]:
    """Read a merge in either spelling: "a b" or ["a", "b"]."""
    parts = merge.split(" ") if isinstance(merge, str) else merge
    if not isinstance(parts, list) or len(parts) != 2 or {*map(type, parts)} != {str}:
        raise CheckpointError(f"a merge is two tokens, got {str(merge)[:80]}")
    return parts[0], parts[1]


def _is_nfc(normalizer: Any) -> bool:
    """Read the normalizer of a tokenizer.json: none or NFC, also as a sequence."""
    match normalizer:
        case None | {"type": "Sequence", "normalizers": []}:
            return False
        case {"type": "NFC"} | {"type": "Sequence", "normalizers": [{"type": "NFC"}]}:
            return True
        case _:
            raise CheckpointError(f"normalizer {str(normalizer)[:120]} is not supported; NFC and none are")


def _leading_special(processor: Any) -> str | None:
    """Read from a post_processor the special token that it puts before a text, if any."""
    match processor:
        case {"type": "Sequence", "processors": [*steps]}:
            return next(filter(None, map(_leading_special, steps)), None)
        case {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": str(text)}}, *_]}:
            return text
        case _:
            return None


def _read_template(folder: Path, settings: Mapping[str, Any]) -> str | None:
    """Find the chat template: a file of its own, or in tokenizer_config.json, where it may be one of several."""
    if (folder / "chat_template.jinja").is_file():
        return (folder / "chat_template.jinja").read_text(encoding="utf-8", errors="replace")
    match settings.get("chat_template"):
        case str(template):
            return template
        case [*choices]:
            named = {c.get("name"): c.get("template") for c in choices if isinstance(c, dict)}
            return named["default"] if isinstance(named.get("default"), str) else None
        case _:
            return None


@host
def tokenizer_from_folder(folder: Path) -> Tokenizer | None:
    """Read tokenizer.json and tokenizer_config.json of a checkpoint folder; None when it has no tokenizer.

    Constraints: byte-level BPE; normalizer NFC or none; pre-tokenizer as ``read_stages`` says.
    Errors: CheckpointError when the files are damaged or of another kind.
    Source: huggingface.co/docs/tokenizers.
    """
    if not (folder / "tokenizer.json").is_file():
        for name in ("tokenizer.model", "spiece.model", "vocab.txt", "vocab.json"):
            if (folder / name).is_file():
                raise CheckpointError(f"{folder} has {name} but no tokenizer.json: {_KINDS}")
        return None
    data = read_json(folder / "tokenizer.json")
    settings = read_json(path) if (path := folder / "tokenizer_config.json").is_file() else {}
    model = _read_model(data.get("model"))
    specials, controls = _read_added(data.get("added_tokens") or [])
    bos, eos = (_content(settings.get(name)) for name in ("bos_token", "eos_token"))
    leading = _leading_special(data.get("post_processor"))
    known = model["vocab"] | specials
    return _assemble(
        model["vocab"],
        specials,
        map(_read_merge, model["merges"]),
        read_stages(data.get("pre_tokenizer")),
        whole_words=bool(model.get("ignore_merges")),
        unknown=known.get(_content(model.get("unk_token")), -1),
        controls=controls,
        nfc=_is_nfc(data.get("normalizer")),
        bos_id=known.get(leading or bos),
        eos_ids=(known[eos],) if eos in known else (),
        add_bos=leading is not None,
        chat_template=_read_template(folder, settings),
    )


def _read_model(model: Any) -> dict[str, Any]:
    """Check that the model of a tokenizer.json is plain BPE, with a vocabulary and merges."""
    match model:
        case {"vocab": dict(), "merges": [*_], **options} if options.get("type", "BPE") == "BPE":
            unusual = ("byte_fallback", "continuing_subword_prefix", "end_of_word_suffix", "dropout", "fuse_unk")
            for name in unusual:
                if options.get(name):
                    raise CheckpointError(f"the tokenizer has {name}: {_KINDS}")
            return dict(model)
        case _:
            kind = model.get("type") if isinstance(model, dict) else model
            raise CheckpointError(f"tokenizer.json holds a model of type {str(kind)[:80]}: {_KINDS}")


def _read_added(added: Any) -> tuple[dict[str, int], frozenset[int]]:
    """Read the added tokens of a tokenizer.json: ids by spelling, and the ids of those that are control tokens."""
    specials, controls = dict[str, int](), set[int]()
    for entry in added if isinstance(added, list) else [added]:
        match entry:
            case {"id": int(id), "content": str(text)} if text:
                specials[text] = id
                controls |= {id} if entry.get("special") else set()
            case _:
                raise CheckpointError(f"an added token has id and content, got {str(entry)[:80]}")
    return specials, frozenset(controls)


def _content(token: Any) -> str:
    """Return the text of a token of tokenizer_config.json, which is a string, an object or absent."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else ""


@host
def tokenizer_from_gguf(metadata: Mapping[str, Any]) -> Tokenizer | None:
    """Build the tokenizer that the metadata of a GGUF file describes; None when it describes none.

    Cost: about 0.2 s for a vocabulary of 50,000.
    Constraints: tokenizer.ggml.model is gpt2 and tokenizer.ggml.pre in ``STAGES``. Normalisers are not recorded; Qwen's
    is NFC.
    Errors: CheckpointError when the metadata is damaged or of another kind.
    Source: github.com/ggml-org/ggml, docs/gguf.md; llama.cpp, src/llama-vocab.cpp.
    """
    fields = {key.removeprefix("tokenizer.ggml."): value for key, value in metadata.items()}
    model, pre = fields.get("model"), fields.get("pre")
    if model in (None, "none", "no_vocab"):
        return None
    if model != "gpt2":
        raise CheckpointError(f"tokenizer.ggml.model is {model!r}: {_KINDS}")
    if not isinstance(pre, str) or pre not in STAGES:
        raise CheckpointError(f"tokenizer.ggml.pre is {pre!r}; known are {', '.join(STAGES)}")
    tokens, merges = _strings(fields, "tokens"), _strings(fields, "merges")
    types = fields.get("token_type", [_ORDINARY] * len(tokens))
    if not isinstance(types, list) or len(types) != len(tokens):
        raise CheckpointError(f"tokenizer.ggml.token_type must list a type for each of {len(tokens)} tokens")
    typed = list(zip(tokens, types, strict=True))
    specials = {text: id for id, (text, kind) in enumerate(typed) if kind in (_CONTROL, _USER_DEFINED) and text}
    ends = (fields.get(f"{name}_token_id") for name in ("eos", "eot", "eom"))
    template = fields.get("tokenizer.chat_template")
    return _assemble(
        {text: id for id, (text, kind) in enumerate(typed) if kind != _UNUSED},
        specials,
        map(_read_merge, merges),
        STAGES[pre],
        whole_words=pre == "llama-bpe",
        controls=frozenset(id for id in specials.values() if types[id] == _CONTROL),
        nfc=pre.startswith("qwen"),
        bos_id=fields.get("bos_token_id"),
        eos_ids=tuple(id for id in ends if id is not None),
        add_bos=bool(fields.get("add_bos_token", pre == "llama-bpe")),
        chat_template=template if isinstance(template, str) else None,
    )


def _strings(fields: Mapping[str, Any], name: str) -> list[str]:
    value = fields.get(name)
    if not isinstance(value, list) or not all(isinstance(entry, str) for entry in value):
        raise CheckpointError(f"tokenizer.ggml.{name} must be an array of strings, got {str(value)[:80]}")
    return value
