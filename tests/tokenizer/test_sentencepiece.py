"""SentencePiece's own files, trained and run by SentencePiece: the same pieces, the same normal form, the same text."""

import io
import json
import warnings
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refimpl.contract import CheckpointError
from refimpl.files.sentencepiece_model import read_sentencepiece
from refimpl.files.tokenizer import Tokenizer, tokenizer_from_folder, tokenizer_from_gguf
from tests.tokenizer.texts import texts
from tests.tokenizer.trained import CORPUS

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of its bindings, on newer versions of Python
    import sentencepiece

SEEDS = st.integers(0, 2**32 - 1)
PLAIN = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False}
NFKC = {"normalization_rule_name": "nmt_nfkc"}
KINDS = {
    "Llama 2": {"model_type": "bpe", "byte_fallback": True, "split_digits": True, **PLAIN},
    "Gemma": {
        "model_type": "bpe", "byte_fallback": True, "add_dummy_prefix": False, **PLAIN,
        "user_defined_symbols": ["\n", "\n\n", "<table>", "▁▁"], "pad_id": 0, "eos_id": 1, "bos_id": 2, "unk_id": 3,
    },
    "T5": {"model_type": "unigram", **NFKC, "pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1},
    "UMT5": {"model_type": "unigram", "byte_fallback": True, **NFKC},
    "capitals folded": {"model_type": "bpe", "normalization_rule_name": "nmt_nfkc_cf"},
}  # fmt: skip


@cache
def trained(kind: str) -> bytes:
    model = io.BytesIO()
    lines = [line.replace("\0", "") for line in (*CORPUS * 20, *texts(1, 100))]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=model, vocab_size=1000, character_coverage=0.98,
        hard_vocab_limit=KINDS[kind]["model_type"] == "bpe", minloglevel=2, **KINDS[kind],
    )  # fmt: skip
    return model.getvalue()


@cache
def library(kind: str) -> sentencepiece.SentencePieceProcessor:
    return sentencepiece.SentencePieceProcessor(model_proto=trained(kind))


@cache
def ours(kind: str) -> Tokenizer:
    return tokenizer_from_gguf(read_sentencepiece(trained(kind)))


@pytest.mark.parametrize("kind", KINDS)
@given(seed=SEEDS)
def test_ids_are_the_library_s(kind, seed):
    for text in texts(seed, 64, every=True):
        spelled = text.replace("\0", "")  # the library's string ends there
        found, expected = ours(kind).encode(spelled), library(kind).encode(spelled)
        assert found == expected or equally_good(kind, found, expected)


def equally_good(kind: str, found: list[int], expected: list[int]) -> bool:
    """Tell whether two ways of a unigram model score the same: "a" before "aaa" or behind, which rounding decides."""
    score, said = library(kind).get_score, library(kind).id_to_piece
    same = sorted(found) == sorted(expected) and "".join(map(said, found)) == "".join(map(said, expected))
    return (
        KINDS[kind]["model_type"] == "unigram"
        and same
        and sum(map(score, found)) == pytest.approx(sum(map(score, expected)), abs=1e-4)
    )


@pytest.mark.parametrize("kind", KINDS)
@given(seed=SEEDS)
def test_text_is_the_library_s(kind, seed):
    for text in texts(seed, 16):
        ids = library(kind).encode(text.replace("\0", ""))
        expected = library(kind).decode(ids)
        assert ours(kind).decode(ids).replace("<unk>", " \u2047 ") == expected


@pytest.mark.parametrize(
    ("text", "normal"),
    [("ﬁn", "fin"), ("e\u0301", "é"), ("\u2167\u00bd", "VIII1\u20442"), ("a\u200b\tb", "a b"), ("", "")],
)
def test_normal_forms(text, normal):
    assert ours("T5").encoder.normalize(text).replace("  ", " ") == normal


FOLDERS = {
    "Llama 2": ("tokenizer.model", {"tokenizer_class": "LlamaTokenizer"}, (1,), ()),
    "Gemma": ("tokenizer.model", {"tokenizer_class": "GemmaTokenizerFast", "chat_template": "t"}, (2,), ()),
    "T5": ("spiece.model", {}, (), (1,)),
}


@pytest.mark.parametrize("kind", FOLDERS)
def test_a_folder(kind, tmp_path: Path):
    name, settings, prefix, suffix = FOLDERS[kind]
    size = library(kind).get_piece_size()
    added = {str(size + i): {"content": f"<more {i}>", "special": i == 0} for i in range(2)}
    (tmp_path / name).write_bytes(trained(kind))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings | {"added_tokens_decoder": added}))
    tokenizer = tokenizer_from_folder(tmp_path)
    assert tokenizer.prompt_ids("the fox") == [*prefix, *library(kind).encode("the fox"), *suffix]
    assert tokenizer.encode("<more 0>", special=True) == [size] != tokenizer.encode("<more 0>")
    assert size + 1 in tokenizer.encode("<more 1>") and tokenizer.vocab_size == size + 2
    assert tokenizer.chat_template == settings.get("chat_template")


@pytest.mark.parametrize(
    "settings",
    [
        {"tokenizer_class": "XLNetTokenizer"}, {"added_tokens_decoder": {"5000000": {"content": "far"}}},
        {"added_tokens_decoder": [1]}, {"added_tokens_decoder": {"x": {}}}, {"added_tokens_decoder": {"1": "a"}},
    ],
)  # fmt: skip
def test_what_a_folder_may_not_say(settings, tmp_path: Path):
    (tmp_path / "spiece.model").write_bytes(trained("T5"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.raises(CheckpointError):
        tokenizer_from_folder(tmp_path)


DAMAGED = [b"x", b"\xff" * 20, b"\x0a\xff\xff\xff\x0f", b"\x0b", b"\x12\x02\x18\x03", b"! ranks"]


@pytest.mark.parametrize("data", DAMAGED)
def test_damaged_models(data, tmp_path: Path):
    (tmp_path / "tokenizer.model").write_bytes(data)
    with pytest.raises(CheckpointError):
        tokenizer_from_folder(tmp_path)
