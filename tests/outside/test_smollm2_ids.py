"""The tokenizer of the default model, against ids of an independent implementation."""

import json
import time
from functools import cache

import pytest

from refimpl.files.chat import chat_ids
from refimpl.files.gguf import read_gguf
from refimpl.files.hub import resolve
from refimpl.files.tokenizer import Tokenizer, tokenizer_from_gguf
from tests.outside.conftest import SHARED

CASES = json.loads((SHARED / "reference" / "smollm2" / "greedy.json").read_text(encoding="utf-8"))["cases"]


@cache
def metadata() -> dict:
    return read_gguf(resolve("smollm2"))[0]


@cache
def tokenizer() -> Tokenizer:
    return tokenizer_from_gguf(metadata())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["text"][:30])
def test_ids_and_text(case):
    if case["kind"] == "chat":
        assert chat_ids(tokenizer(), case["prompt"]) == case["prompt_ids"]
    else:
        assert tokenizer().prompt_ids(case["prompt"]) == case["prompt_ids"]
    assert tokenizer().encode(case["text"], special=True) == case["prompt_ids"]
    assert tokenizer().decode(case["prompt_ids"]) == case["text"]
    assert tokenizer().decode(case["greedy_ids"]) == case["greedy_text"]


def test_reading_is_fast():
    start = time.process_time()
    tokenizer_from_gguf(read_gguf(resolve("smollm2"))[0])
    assert time.process_time() - start < 2  # about 0.25 s on an idle machine


def test_absent_bytes():
    assert tokenizer().vocab_size == 49152
    assert sum(id < 0 for id in tokenizer().encoder.ids) == 21
