"""Tokenizers of checkpoint folders: tokenizer.json, with tokenizer_config.json beside it."""

from collections.abc import Mapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from refimpl.contract import CheckpointError, host
from refimpl.files.bpe import byte_level, read_merge, spelled_bytes
from refimpl.files.checkpoint import read_json
from refimpl.files.library import library_bytes, library_encoder, opens_with_blank
from refimpl.files.pretokenizer import read_stages
from refimpl.files.tokenizer_plain import token_content, tokenizer_without_json
from refimpl.files.vocabulary import Tokenizer, check_ids_of, tokens_by_id
from refimpl.files.wordpiece import WordPiece

__all__ = ["tokenizer_from_folder"]

_UNUSUAL = ("byte_fallback", "continuing_subword_prefix", "end_of_word_suffix", "dropout", "fuse_unk")


class _Added(NamedTuple):
    """The added tokens of a tokenizer.json."""

    ids: dict[str, int]
    controls: frozenset[int]
    left: frozenset[int]  # those that take the white space before them along, ...
    right: frozenset[int]  # ... or behind them


def _read_added(added: Any) -> _Added:
    ids, marks = dict[str, int](), {name: set[int]() for name in ("special", "lstrip", "rstrip")}
    entries: list[Any] = added if isinstance(added, list) else [added]
    for entry in entries:
        match entry:
            case {"id": int(id), "content": str(text)} if text and isinstance(added, list):
                if entry.get("single_word"):
                    raise CheckpointError(f"added token {text[:40]!r} is one of whole words, which is not supported")
                ids[text] = id
                for name, marked in marks.items():
                    marked |= {id} if entry.get(name) else set()
            case _:
                raise CheckpointError(f"an added token has id and content, got {str(entry)[:80]}")
    return _Added(ids, *map(frozenset, marks.values()))


def _read_words(model: Any) -> dict[str, int]:
    """Read the vocabulary of a tokenizer.json, which is a table, or a list of pieces with scores."""
    match model:
        case {"vocab": dict(vocabulary)}:
            check_ids_of(vocabulary)
            return vocabulary
        case {"vocab": [*pieces]} if all(isinstance(p, list) and p and isinstance(p[0], str) for p in pieces):
            return {piece[0]: id for id, piece in enumerate(pieces)}
        case _:
            raise CheckpointError(f"tokenizer.json holds no model with a vocabulary, but {str(model)[:80]}")


def _is_byte_level(data: Mapping[str, Any]) -> bool:
    """Tell whether the tokenizer is plain byte-level BPE, which tiktoken runs."""
    model, steps = data["model"], data.get("pre_tokenizer")
    usual = model.get("type", "BPE") == "BPE" and not any(model.get(name) for name in _UNUSUAL)
    steps = steps.get("pretokenizers") if isinstance(steps, dict) and steps.get("type") == "Sequence" else [steps]
    last = steps[-1] if isinstance(steps, list) and steps else None
    level = isinstance(last, dict) and last.get("type") == "ByteLevel" and last.get("add_prefix_space") is False
    return usual and level and _is_nfc(data.get("normalizer")) is not None


def _is_nfc(normalizer: Any) -> bool | None:
    """Read the normalizer of a tokenizer.json: none or NFC, also as a sequence; None when it is another."""
    match normalizer:
        case None | {"type": "Sequence", "normalizers": []}:
            return False
        case {"type": "NFC"} | {"type": "Sequence", "normalizers": [{"type": "NFC"}]}:
            return True
        case _:
            return None


def _frame(processor: Any) -> tuple[list[str], list[str]]:
    """Read from a post_processor the special tokens that it puts before and behind a text."""
    match processor:
        case None | {"type": "ByteLevel"}:
            return [], []
        case {"type": "Sequence", "processors": [*steps]}:
            frames = [*map(_frame, steps)]
            return next((frame for frame in frames if frame != ([], [])), ([], []))
        case {"type": "BertProcessing" | "RobertaProcessing", "cls": [str(first), *_], "sep": [str(last), *_]}:
            return [first], [last]
        case {"type": "TemplateProcessing", "single": [*parts]}:
            names = [_special_name(part) for part in parts]
            middle = names.index("") if "" in names else len(names)
            return names[:middle], [*filter(None, names[middle:])]
        case _:
            raise CheckpointError(f"the post_processor {str(processor)[:120]} is not one we know")


def _special_name(part: Any) -> str:
    """Return the name of a special token in a template; the place of the text has none."""
    match part:
        case {"SpecialToken": {"id": str(name)}}:
            return name
        case {"Sequence": _}:
            return ""
        case _:
            raise CheckpointError(f"a post_processor adds special tokens around a text, got {str(part)[:80]}")


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


def _named(known: Mapping[str, int], names: list[str]) -> tuple[int, ...]:
    lost = [name for name in names if name not in known]
    if lost:
        raise CheckpointError(f"the post_processor adds {lost[0][:80]!r}, which is no token")
    return tuple(known[name] for name in names)


def _settings(folder: Path) -> dict[str, Any]:
    """Read what the folder says of its special tokens, the later file before the earlier."""
    settings: dict[str, Any] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        settings |= read_json(folder / name) if (folder / name).is_file() else {}
    return settings


@host
def tokenizer_from_folder(folder: Path) -> Tokenizer | None:
    """Read tokenizer.json of a checkpoint folder, or what older folders have; None when it has no tokenizer.

    Byte-level BPE with a normalizer of NFC or none is tiktoken's, with the pre-tokenizer that ``read_stages`` reads;
    any other kind is the `tokenizers` library's, and BERT's is ours where that is not there.

    Errors: CheckpointError when the files are damaged, of a kind that cannot be read, or the library is not there.
    Source: huggingface.co/docs/tokenizers.
    """
    settings = _settings(folder)
    if not (folder / "tokenizer.json").is_file():
        return tokenizer_without_json(folder, settings, _read_template(folder, settings))
    data = read_json(folder / "tokenizer.json")
    words, added = _read_words(data.get("model")), _read_added(data.get("added_tokens") or [])
    known = words | added.ids
    check_ids_of(known)
    first, last = _frame(data.get("post_processor"))
    bos, eos, mask = (known.get(token_content(settings.get(f"{name}_token"))) for name in ("bos", "eos", "mask"))
    prefix = _named(known, first)
    fields: dict[str, Any] = {
        "controls": added.controls, "strips_left": added.left, "strips_right": added.right, "prefix": prefix,
        "suffix": _named(known, last), "bos_id": prefix[0] if prefix else bos, "eos_ids": () if eos is None else (eos,),
        "mask_id": mask, "chat_template": _read_template(folder, settings),
    }  # fmt: skip
    if _is_byte_level(data):
        return _byte_level(data, words, added, fields)
    ending = data["model"].get("end_of_word_suffix")
    said = partial(library_bytes, decoder=data.get("decoder"), suffix=ending if isinstance(ending, str) else "")
    specials = {text: id for text, id in added.ids.items() if id in added.controls}
    data = {**data, "added_tokens": data.get("added_tokens") or []}
    blank = opens_with_blank(data.get("decoder"))
    own = _wordpiece(data, words) if specials == added.ids and find_spec("tokenizers") is None else None
    encoder = library_encoder(data) if own is None else own
    return Tokenizer(tokens_by_id(known, said), specials, encoder=encoder, opening_blank=blank, **fields)


def _wordpiece(data: Mapping[str, Any], words: dict[str, int]) -> WordPiece | None:
    """Return the encoder of a tokenizer that is BERT's in all its parts."""
    match data:
        case {
            "model": {"type": "WordPiece", "unk_token": str(unknown), "continuing_subword_prefix": "##", **model},
            "normalizer": {"type": "BertNormalizer", "clean_text": True, **form},
            "pre_tokenizer": {"type": "BertPreTokenizer"},
        } if unknown in words and model.get("max_input_chars_per_word", 100) == 100:
            lower, accents = bool(form.get("lowercase", True)), form.get("strip_accents")
            ideographs = bool(form.get("handle_chinese_chars", True))
            return WordPiece(words, words[unknown], lower, lower if accents is None else bool(accents), ideographs)
        case _:
            return None


def _byte_level(data: Mapping[str, Any], words: dict[str, int], added: _Added, fields: dict[str, Any]) -> Tokenizer:
    model = data["model"]
    if not isinstance(model.get("merges"), list):
        raise CheckpointError(f"byte-level BPE has a list of merges, got {str(model.get('merges'))[:80]}")
    encoder = byte_level(
        words, map(read_merge, model["merges"]), read_stages(data.get("pre_tokenizer")),
        extra=[text for text in words if text not in added.ids] if model.get("ignore_merges") else [],
        unknown=(words | added.ids).get(token_content(model.get("unk_token")), -1),
        nfc=_is_nfc(data.get("normalizer")) is True,
    )  # fmt: skip
    tokens = tokens_by_id(words, spelled_bytes, added.ids)
    return Tokenizer(tokens, added.ids, encoder=encoder, **fields)
