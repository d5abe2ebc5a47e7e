"""A model on the CPU from Python: its face is that of the reference's, and what it refuses is said in one line."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import gpu
import refimpl
from refimpl.contract import ContractError, UsageError
from tests.models.tiny import LLAMA, write_checkpoint

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


@pytest.mark.parametrize("load", [refimpl.load, gpu.load], ids=["refimpl", "gpu"])
def test_logits_that_are_nan_choose_nothing(load, tmp_path: Path) -> None:
    weights = load_file(write_checkpoint(tmp_path, LLAMA) / "model.safetensors")
    save_file(weights | {"model.norm.weight": np.full(12, np.nan, np.float32)}, tmp_path / "model.safetensors")
    damaged = load(tmp_path)
    for answer in (damaged.greedy, lambda ids, n: list(damaged.generate(ids, max_tokens=n))):
        with pytest.raises(ContractError, match="C1: a logit is NaN"):
            answer([1, 2], 3)


ODD = """
import json, sys
import gpu, refimpl
from refimpl.contract import UsageError

path, said = sys.argv[1], {}


def ask(name, call):
    try:
        call()
        said[name] = "accepted"
    except UsageError as error:
        said[name] = str(error)
    except Exception as error:
        said[name] = repr(error)


fast, plain = gpu.load(path), refimpl.load(path)
for odd in (1.5, "2", [3], 2.0):
    for setting in ("threads", "context"):
        ask(f"{setting} is a whole number, got {odd!r}", lambda: gpu.load(path, **{setting: odd}))
    for model in (fast, plain):
        for setting in ("max_tokens", "seed", "top_k", "logprobs"):
            settings = {"temperature": 1.0, setting: odd}
            ask(f"{setting} is a whole number, got {odd!r}", lambda: model.generate("a", **settings))
for setting in ("seed", "top_k", "logprobs"):
    ask(f"{setting} is a whole number, got None", lambda: fast.generate("a", **{setting: None}))
for odd in (5, None, 1.5, True):
    for model in (fast, plain):
        ask(f"a prompt is text, ids or messages, got {odd!r}", lambda: model.generate(odd))
    ask(f"prompts are a list, got {odd!r}", lambda: fast.generate_batch(odd))
for model in (fast, plain):
    ask("a prompt is text, ids or messages, got b'a'", lambda: model.generate(b"a"))
ask("prompts are a list, got 'text'", lambda: fast.generate_batch("text"))
for model in (fast, plain):
    ask("stop is a list of strings, got 'text'", lambda: model.generate("a", stop="text"))
print(json.dumps(said))
"""


def test_odd_values_are_refused_where_they_enter(model: str) -> None:
    """In a process of its own: here the types of every call are checked before."""
    done = subprocess.run([sys.executable, "-c", ODD, model], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert len(said) == 38 and {asked: got for asked, got in said.items() if asked != got} == {}
