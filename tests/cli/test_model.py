"""A model on the CPU from Python: its face is that of the reference's, and what it refuses is said in one line."""

import pytest

import gpu
import refimpl
from refimpl.contract import UsageError

TEXT = "the cat"


def test_text_means_the_same_everywhere(model: str) -> None:
    fast, plain = gpu.load(model, "cpu"), refimpl.load(model)
    for how in ({}, {"raw": True}, {"system": "Be."}):
        ids = plain.prompt_ids(TEXT, **how)
        assert fast.prompt_ids(TEXT, **how) == ids
        expected = [token.id for token in plain.generate(ids, max_tokens=4, ignore_eos=True)]
        for tokens in (
            plain.generate(TEXT, **how, max_tokens=4, ignore_eos=True),
            fast.generate(TEXT, **how, max_tokens=4, ignore_eos=True),
            (token for _, token in fast.generate_batch([TEXT], **how, max_tokens=4, ignore_eos=True)),
        ):
            assert [token.id for token in tokens] == expected
    assert plain.prompt_ids(TEXT) != plain.prompt_ids(TEXT, raw=True) == plain.tokenizer.encode(TEXT)


def test_what_is_refused(model: str) -> None:
    with pytest.raises(UsageError, match="dtype is one of float32, float16, bfloat16, not 'float64'"):
        gpu.load(model, dtype="float64")
    with pytest.raises(AttributeError, match="no attribute 'lod'"):
        _ = gpu.lod
    loaded = gpu.load(model)
    with pytest.raises(UsageError, match="no setting 'repeat_penalty'; those of sampling are temperature"):
        loaded.generate(TEXT, repeat_penalty=1.1)
    with pytest.raises(UsageError, match="a chain and temperature"):
        loaded.generate_batch([TEXT], chain=(("greedy", None),), temperature=1.0)
