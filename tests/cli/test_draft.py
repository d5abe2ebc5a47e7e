"""--draft-model: the same text from fewer passes, and one line where a draft cannot be used."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import gpu
import refimpl
from gpu.run import main
from refimpl.contract import UsageError
from tests.cli.conftest import write_model
from tests.models.tiny import LLAMA, write_checkpoint

Capture = pytest.CaptureFixture[str]
ARGV = ["the cat sat on the mat the cat sat on the mat", "--raw", "-n", "24", "--ignore-eos"]


def _answer(capsys: Capture, *argv: str) -> tuple[Any, str]:
    assert main([*ARGV, *argv, "--output", "json", "--stats"]) == 0
    out, err = capsys.readouterr()
    return json.loads(out), err


@pytest.mark.parametrize("sampling", [[], ["--temperature", "0.9", "--seed", "4"]], ids=["greedy", "sampled"])
def test_text_is_the_same_with_a_draft(model: str, base: str, capsys: Capture, sampling: list[str]) -> None:
    plain, said = _answer(capsys, "-m", model, *sampling)
    assert "draft" not in said
    for draft in ("ngram", model, base):
        answer, said = _answer(capsys, "-m", model, *sampling, "--draft-model", draft, "--num-draft-tokens", "3")
        assert answer["ids"] == plain["ids"] and answer["text"] == plain["text"]
        if draft == model and not sampling:  # the model drafts what it will say itself
            assert "draft    " in said


def test_the_model_itself_drafts_right(model: str, capsys: Capture) -> None:
    said = _answer(capsys, "-m", model, "--draft-model", model, "--num-draft-tokens", "7")[1]
    assert "draft    21 of these tokens were proposed, and judged with others in one pass" in said


def test_verify_takes_a_draft(model: str, capsys: Capture) -> None:
    assert main([*ARGV, "-m", model, "--draft-model", "ngram", "--verify"]) == 0
    assert "all 24 ids are the reference's" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--draft-model", "no-such-model"], "no-such-model"),
        (["--draft-model", ""], "expected a path"),
        (["--num-draft-tokens", "0"], "whole number from 1 to 256, got 0"),
        (["--draft-model", "ngram", "--num-draft-tokens", "1000"], "whole number from 1 to 256"),
    ],
)
def test_a_bad_draft_is_one_line(model: str, capsys: Capture, flags: list[str], words: str) -> None:
    assert main([*ARGV, "-m", model, "--offline", *flags]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and words in lines[0]


def test_a_draft_of_another_vocabulary_is_one_line(model: str, capsys: Capture, tmp_path: Path) -> None:
    other = write_checkpoint(tmp_path, LLAMA)
    assert main([*ARGV, "-m", model, "--draft-model", str(other)]) == 2
    assert "the draft model has a vocabulary of" in capsys.readouterr().err
    size = refimpl.load(model).spec.vocab_size
    assert size != LLAMA["vocab_size"]


def test_from_python(model: str) -> None:
    plain = [token.id for token in gpu.load(model).generate("the cat", max_tokens=9, ignore_eos=True)]
    drafting = gpu.load(model, draft="ngram", num_draft_tokens=2)
    assert [token.id for token in drafting.generate("the cat", max_tokens=9, ignore_eos=True)] == plain
    with pytest.raises(UsageError, match="num_draft_tokens is at least 1, got 0"):
        gpu.load(model, draft="ngram", num_draft_tokens=0)
    with pytest.raises(UsageError, match=r"num_draft_tokens is a whole number, got 1\.5"):
        gpu.load(model, draft="ngram", num_draft_tokens=1.5)


def test_a_template_is_no_part_of_a_draft(model: str, tmp_path: Path, capsys: Capture) -> None:
    bare = write_model(tmp_path / "bare", template=None)
    assert _answer(capsys, "-m", model, "--draft-model", str(bare))[0]["ids"]


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_an_answer_is_not_written_over_the_draft(model: str, tmp_path: Path, capsys: Capture, name: str) -> None:
    draft = write_model(tmp_path / "draft")
    before = (draft / name).read_bytes()
    assert main([*ARGV, "-m", model, "--draft-model", str(draft), "-o", str(draft / name)]) == 2
    assert f"-o {draft / name} would write over the draft model" in capsys.readouterr().err
    assert (draft / name).read_bytes() == before


def test_a_draft_that_makes_no_numbers_changes_no_text(model: str, tmp_path: Path, capsys: Capture) -> None:
    draft = write_model(tmp_path / "draft")
    tensors = load_file(str(draft / "model.safetensors"))
    tensors["model.norm.weight"][:] = np.nan
    save_file(tensors, str(draft / "model.safetensors"), metadata={"format": "pt"})
    wanted, given = (_answer(capsys, "-m", model, *more)[0]["ids"] for more in ((), ("--draft-model", str(draft))))
    assert given == wanted
