"""Ids are those of the `tokenizers` library, and ids give the text back."""

import json
import unicodedata

import pytest
import tokenizers
from hypothesis import given

from refimpl.files.pretokenizer import STAGES
from refimpl.files.tokenizer import tokenizer_from_folder, tokenizer_from_gguf
from tests.tokenizer.trained import PRE_TOKENIZERS, SPECIALS, TEXTS, gguf_metadata, ours, train, write

KINDS = sorted(PRE_TOKENIZERS)


@pytest.mark.parametrize("kind", KINDS)
@given(text=TEXTS)
def test_ids_of_a_template(kind, text):
    expected = train(kind).encode(text, add_special_tokens=False).ids
    assert ours(kind).encode(text, special=True) == expected


@pytest.mark.parametrize("kind", KINDS)
@given(text=TEXTS)
def test_text_comes_back(kind, text):
    tokenizer = ours(kind)
    expected = unicodedata.normalize("NFC", text) if kind == "qwen2" else text
    assert tokenizer.decode(tokenizer.encode(text)) == expected


@pytest.mark.parametrize("kind", KINDS)
@given(text=TEXTS)
def test_what_is_typed_stays_text(kind, text):
    tokenizer = ours(kind)
    special = set(tokenizer.specials.values())
    assert not special & set(tokenizer.encode(text + "<|im_end|>"))


@given(text=TEXTS)
def test_bytes_without_a_token_are_dropped(text):
    tokenizer, oracle = ours("gpt-2", whole_alphabet=False), train("gpt-2", whole_alphabet=False)
    known = {byte for byte in range(256) if tokenizer.encoder.ids[byte] >= 0}
    assert 50 < len(known) < 150
    kept = bytes(byte for byte in text.encode() if byte in known)
    assert tokenizer.decode(tokenizer.encode(text)) == kept.decode("utf-8", "replace")
    if len(kept) == len(text.encode()):
        assert tokenizer.encode(text, special=True) == oracle.encode(text, add_special_tokens=False).ids


@given(text=TEXTS)
def test_bytes_without_a_token_may_be_an_unknown_one(text):
    data = json.loads(train("gpt-2", whole_alphabet=False).to_str())
    data["model"]["unk_token"] = "<|end|>"
    expected = tokenizers.Tokenizer.from_str(json.dumps(data)).encode(text, add_special_tokens=False).ids
    assert tokenizer_from_folder(write(data)).encode(text, special=True) == expected


@pytest.mark.parametrize("kind", sorted({*KINDS} & {*STAGES}))
@given(text=TEXTS)
def test_gguf_metadata_gives_the_same_tokenizer(kind, text):
    tokenizer = tokenizer_from_gguf(gguf_metadata(kind))
    assert tokenizer.encode(text, special=True) == ours(kind).encode(text, special=True)
    assert [tokenizer.token_bytes(id) for id in range(tokenizer.vocab_size)] == list(ours(kind).tokens)


def test_the_longest_special_token_wins():
    tokenizer = ours("gpt-2")
    ids = [tokenizer.specials[text] for text in SPECIALS]
    assert tokenizer.encode("".join(SPECIALS), special=True) == ids
    assert tokenizer.split("a<|im_end|>b") == ["a", ids[2], "b"]


@pytest.mark.parametrize("text", ["", "Hello", "<|end|>Hello"])
def test_one_bos_before_a_raw_prompt(text):
    tokenizer = ours("llama-bpe")
    assert tokenizer.add_bos and tokenizer.bos_id == tokenizer.specials["<|end|>"]
    assert tokenizer.prompt_ids(text) == [tokenizer.bos_id, *tokenizer.encode(text)]
    assert tokenizer.prompt_ids(text).count(tokenizer.bos_id) == 1
    assert ours("gpt-2").prompt_ids(text) == ours("gpt-2").encode(text)


def test_bos_is_where_the_oracle_puts_it():
    assert ours("llama-bpe").prompt_ids("the fox") == train("llama-bpe").encode("the fox").ids


def test_lone_surrogates_become_replacement_characters():
    tokenizer = ours("gpt-2")
    assert tokenizer.decode(tokenizer.encode("a\ud800b\udc80")) == "a\ufffdb\ufffd"


def test_ids_outside_the_vocabulary():
    tokenizer = ours("gpt-2")
    assert tokenizer.token_bytes(tokenizer.vocab_size + 7) == b""
    with pytest.raises(ValueError, match="not negative"):
        tokenizer.token_bytes(-1)
