"""What tokenizer files may say, and what is refused."""

import json
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from refimpl.contract import CheckpointError, UsageError
from refimpl.files.bpe import byte_pair_encoding
from refimpl.files.pretokenizer import STAGES
from refimpl.files.tokenizer import tokenizer_from_folder, tokenizer_from_gguf
from tests.tokenizer.trained import TEXTS, gguf_metadata, ours, train, write


def described(kind: str = "gpt-2") -> dict:
    return json.loads(train(kind).to_str())


@given(text=TEXTS)
def test_merges_are_read_in_either_spelling(text):
    data = described()
    data["model"]["merges"] = [" ".join(pair) for pair in data["model"]["merges"]]
    assert tokenizer_from_folder(write(data)).encode(text) == ours("gpt-2").encode(text)


def test_ids_need_no_order():
    data = described()
    last = max(data["model"]["vocab"].values())
    data["model"]["vocab"] = {text: last - id for text, id in data["model"]["vocab"].items()}
    data["added_tokens"] = []
    tokenizer = tokenizer_from_folder(write(data))
    text = "The quick brown fox says: 2024!"
    assert tokenizer.encode(text) == [last - id for id in ours("gpt-2").encode(text)]


@pytest.mark.parametrize(
    "change",
    [
        {"model": None},
        {"model": {"type": "Unigram", "vocab": [["a", "b"]]}},
        {"model": {"type": "Unigram", "vocab": [["a", -1.0]], "unk_id": 7}},
        {"model": {"type": "Unigram", "vocab": [[]]}},
        {"model": {"type": "WordPiece", "vocab": {"a": 0}}},
        {"model": {"type": "Unheard", "vocab": {"a": 0}}},
        {"model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["a b"], "byte_fallback": True}},
        {"model": {"type": "BPE", "vocab": {"a": 0}}},
        {"model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["a b"]}},
        {"model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": ["a b"]}},
        {"model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["a"]}},
        {"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [["a", 1]]}},
        {"model": {"type": "BPE", "vocab": {"a": 10**12}, "merges": []}},
        {"model": {"type": "BPE", "vocab": {"a": -1}, "merges": []}},
        {"model": {"type": "BPE", "vocab": {"a": "0"}, "merges": []}},
        {"normalizer": {"type": "Unheard"}},
        {"normalizer": {"type": "Prepend"}},
        {"pre_tokenizer": {"type": "Unheard"}},
        {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Unheard"}]}},
        {"post_processor": {"type": "Unheard"}},
        {"post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "absent"}}]}},
        {"post_processor": {"type": "TemplateProcessing", "single": ["$A"]}},
        {"added_tokens": [{"id": 0}]},
        {"added_tokens": [{"id": 10**12, "content": "x"}]},
    ],
    ids=lambda change: json.dumps(change)[:60],
)
def test_what_is_refused(change):
    with pytest.raises(CheckpointError) as caught:
        tokenizer_from_folder(write(described() | change))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("pattern", ["(", "[a", r"\p{Nope}", "(?<x>a)(?P=y)"])
def test_patterns_that_cannot_be_read(pattern):
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    last = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}
    for steps in ([split, last], [split, split, last]):
        data = described() | {"pre_tokenizer": {"type": "Sequence", "pretokenizers": steps}}
        with pytest.raises(CheckpointError, match="pattern"):
            tokenizer_from_folder(write(data))


def test_no_tokenizer_is_none(tmp_path: Path):
    assert tokenizer_from_folder(tmp_path) is None
    assert tokenizer_from_gguf({"general.architecture": "llama"}) is None


def test_settings():
    settings = {
        "bos_token": {"content": "<|im_start|>"},
        "eos_token": "<|im_end|>",
        "chat_template": [{"name": "tools", "template": "t"}, {"name": "default", "template": "d"}],
    }
    folder = write(described(), settings)
    tokenizer = tokenizer_from_folder(folder)
    assert (tokenizer.bos_id, tokenizer.eos_ids, tokenizer.add_bos, tokenizer.chat_template) == (1, (2,), False, "d")
    (folder / "chat_template.jinja").write_text("from a file")
    assert tokenizer_from_folder(folder).chat_template == "from a file"


@pytest.mark.parametrize("model", ["rwkv", "plamo2", 7])
def test_gguf_of_another_kind(model):
    with pytest.raises(CheckpointError, match="known are gpt2, llama, t5, bert"):
        tokenizer_from_gguf(gguf_metadata("gpt-2") | {"tokenizer.ggml.model": model})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("pre", "unheard-of"), ("pre", 3), ("tokens", None), ("tokens", [1, 2]), ("merges", "a b"), ("merges", ["a"]),
        ("token_type", [1]), ("token_type", 1), ("bos_token_id", 10**9), ("eos_token_id", -1), ("eos_token_id", "x"),
    ],
)  # fmt: skip
def test_damaged_gguf_metadata(name, value):
    with pytest.raises(CheckpointError):
        tokenizer_from_gguf(gguf_metadata("gpt-2") | {f"tokenizer.ggml.{name}": value})


def test_gguf_ends_and_bos():
    metadata = gguf_metadata("llama-bpe") | {"tokenizer.ggml.eot_token_id": 1, "tokenizer.chat_template": "t"}
    tokenizer = tokenizer_from_gguf(metadata)
    assert (tokenizer.bos_id, tokenizer.eos_ids, tokenizer.add_bos, tokenizer.chat_template) == (0, (2, 1), True, "t")
    assert tokenizer_from_gguf(metadata | {"tokenizer.ggml.add_bos_token": False}).add_bos is False


def test_every_pattern_of_gguf_is_read():
    for pre in STAGES:
        metadata = gguf_metadata("gpt-2") | {"tokenizer.ggml.pre": pre}
        tokenizer = tokenizer_from_gguf(metadata)
        text = "It's 12345 degrees\u3042\u6771 #tag /path\r\n\n  end"
        assert tokenizer.decode(tokenizer.encode(text)) == text


LETTERS = {"a": 0, "b": 1, "c": 2, "ab": 3, "bc": 4, "abc": 5, "ac": 6}


def test_merges_of_one_product_stand_together():
    together = [("a", "b"), ("b", "c"), ("ab", "c"), ("a", "bc"), ("a", "c")]
    encoding, ids = byte_pair_encoding(LETTERS, together, ".+")
    assert [ids[rank] for rank in encoding.encode_ordinary("abcac")] == [5, 6]
    apart = [("a", "b"), ("b", "c"), ("ab", "c"), ("a", "c"), ("a", "bc")]
    with pytest.raises(CheckpointError, match="repeats a product"):
        byte_pair_encoding(LETTERS, apart, ".+")


NAMES = st.sampled_from(["pre", "tokens", "merges", "token_type", "bos_token_id", "add_bos_token"])
VALUES = st.one_of(st.none(), st.integers(), st.text(), st.lists(st.text() | st.integers()))


@given(metadata=st.dictionaries(NAMES, VALUES))
def test_any_metadata_is_read_or_refused(metadata):
    fields = gguf_metadata("gpt-2") | {f"tokenizer.ggml.{name}": value for name, value in metadata.items()}
    try:
        tokenizer = tokenizer_from_gguf(fields)
    except CheckpointError as error:
        assert str(error)
    else:
        assert tokenizer.encode("") == []


def split_by(*patterns: str) -> Path:
    steps = [{"type": "Split", "pattern": {"Regex": p}, "behavior": "Isolated", "invert": False} for p in patterns]
    last = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}
    return write(described() | {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [*steps, last]}})


NOTHING = ["", "a*", "x|", "(?=b)", "(?=q)|z", "(?<=b)", r"\b", "^", "$", r"(?:\s+)?", r"\p{L}{0,3}"]


@pytest.mark.parametrize("pattern", NOTHING)
def test_a_pattern_that_matches_nothing_is_refused(pattern):
    for patterns in ([pattern], [pattern, r"\s+"], [r"\s+", pattern]):
        with pytest.raises(CheckpointError, match="matches the empty text"):
            tokenizer_from_folder(split_by(*patterns))


def test_a_panic_is_an_error_in_a_line(capfd: pytest.CaptureFixture[str]):
    tokenizer = tokenizer_from_folder(split_by("(?=\u0142)|z"))  # an empty match that no text at load showed
    with pytest.raises(CheckpointError, match=r"^the pre-tokenizer pattern fails on this text") as refusal:
        tokenizer.encode("\u0142")
    assert "\n" not in str(refusal.value) and "panicked" in capfd.readouterr().err
    assert tokenizer.decode(tokenizer.encode("zz")) == "zz"


def test_a_pattern_without_end_is_stopped(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("refimpl.files.pretokenizer._SECONDS", 0.2)
    tokenizer = tokenizer_from_folder(split_by("(a|a)*c", r"\s+"))
    assert tokenizer.decode(tokenizer.encode("aac b")) == "aac b"
    with pytest.raises(UsageError, match="does not come to an end"):
        tokenizer.encode("a" * 60 + "b")


def test_blanks_that_are_tokens_are_found_in_any_text():
    """GPT-NeoX holds runs of blanks as added tokens, which say what they spell; other added tokens stay text there."""
    data = described()
    count = len(data["model"]["vocab"])
    for place, text in enumerate(["  ", "    ", "<think>", "\n\n"]):
        data["added_tokens"].append({
            "id": count + place, "content": text, "single_word": False, "lstrip": False, "rstrip": text == "\n\n",
            "normalized": True, "special": False,
        })  # fmt: skip
    tokenizer = tokenizer_from_folder(write(data))
    oracle = tokenizers.Tokenizer.from_str(json.dumps(data))
    oracle.encode_special_tokens = True
    for text in ("a  b", "x\n      y", "     ", "\n\n z", "no blanks"):
        assert tokenizer.encode(text) == oracle.encode(text).ids, text
    assert count + 2 not in tokenizer.encode("<think>") and count + 2 in tokenizer.encode("<think>", special=True)
    assert tokenizer.encode("a\n\n b", special=True)[1] == count + 3
