"""--perplexity: what it says of a text, against the reference's logits; what cannot be scored is one line."""

import json
import math
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

import refimpl
from gpu.run import main
from refimpl.perplexity import chunk_losses, perplexity, text_chunks

Capture = pytest.CaptureFixture[str]
TEXT = "the cat sat on the mat and the hat that the rat ate at the gate of the state\n" * 20


@pytest.fixture
def text(tmp_path: Path) -> str:
    (tmp_path / "text.txt").write_text(TEXT)
    return str(tmp_path / "text.txt")


def _score(capsys: Capture, *argv: str) -> Any:
    assert main([*argv, "--json"]) == 0
    out, err = capsys.readouterr()
    assert out.count("\n") == 1 and err == ""
    return json.loads(out)


@pytest.mark.parametrize("size", [2, 3, 64, 200])
def test_the_score_is_that_of_the_references_logits(model: str, text: str, size: int, capsys: Capture) -> None:
    found = _score(capsys, "-m", model, "--perplexity", text, "-c", str(size))
    loaded = refimpl.load(model, dtype="float64")
    ids = loaded.tokenizer.encode(TEXT.removesuffix("\n"))
    losses = []
    for start in range(0, len(ids) - size + 1, size):
        chunk = ids[start : start + size]
        logits = loaded.logits(chunk)
        for place in range(min(size // 2 + 1, size - 1), size):
            losses.append(np.logaddexp.reduce(logits[place - 1]) - logits[place - 1, chunk[place]])
    mean, spread = np.mean(losses), np.std(losses)
    assert found["loss"] == pytest.approx(mean, rel=1e-4)
    assert found["perplexity"] == pytest.approx(math.exp(mean), rel=1e-3)
    error = math.exp(mean) * spread / math.sqrt(max(len(losses) - 1, 1))
    assert found["error"] == pytest.approx(error, rel=1e-3)
    said = {"tokens": len(losses), "chunks": len(ids) // size, "chunk_size": size, "stop": "end"}
    assert {name: found[name] for name in said} == said
    assert list(found["timings"]) == ["load_s", "score_s"]


def test_text_says_the_same_in_a_line_and_a_file_takes_it(
    model: str, text: str, tmp_path: Path, capsys: Capture
) -> None:
    argv = ["-m", model, "--perplexity", text, "-c", "128"]
    found = _score(capsys, *argv)
    assert main([*argv, "-o", str(tmp_path / "score")]) == 0
    assert capsys.readouterr() == ("", "")
    line = f"perplexity {found['perplexity']:.4f} +/- {found['error']:.4f} ({found['tokens']} tokens, the second half "
    assert (tmp_path / "score").read_text() == f"{line}of 3 chunks of 128)\n"
    assert main([*argv, "--stats"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith(line) and "scoring:" in err and "score    384 tokens in" in err


def test_a_text_shorter_than_a_chunk_is_one(model: str, tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "a").write_text("the cat sat")
    found, loaded = _score(capsys, "-m", model, "--perplexity", str(tmp_path / "a")), refimpl.load(model)
    ids = loaded.tokenizer.encode("the cat sat")
    assert found["chunk_size"] == len(ids) and found["chunks"] == 1
    verify, held = loaded.verifier(len(ids)), 0

    def advance(part: list[int], wanted: int) -> Any:
        nonlocal held
        held += len(part)
        return verify(held - len(part), part, wanted)

    assert found["perplexity"] == pytest.approx(perplexity(chunk_losses(advance, ids))[0], rel=1e-4)


def test_every_chunk_begins_with_the_bos_of_a_model_that_knows_one(
    model: str, text: str, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    for file in Path(model).iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.post_processor = TemplateProcessing(single="<|im_start|> $A", special_tokens=[("<|im_start|>", 1)])
    tokenizer.save(str(folder / "tokenizer.json"))
    cut = []
    monkeypatch.setattr("gpu.cli.scoring.text_chunks", lambda *given: cut.append(text_chunks(*given)) or cut[0])
    _score(capsys, "-m", str(folder), "--perplexity", text, "-c", "64")
    loaded = refimpl.load(model)
    ids = [1, *loaded.tokenizer.encode(TEXT.removesuffix("\n"))]
    assert cut[0][0] == ids[:64] and cut[0][1] == [1, *ids[65:128]] and len(cut[0]) == len(ids) // 64


@pytest.mark.parametrize(
    ("content", "says"),
    [(b"", "is empty"), (b"\n", "is empty"), (b"t", "has 1 token: perplexity takes two or more"),
     (b"\xff\xfe\x00", "is not valid UTF-8: byte 0 cannot be read"), (None, "No such file or directory")],
)  # fmt: skip
def test_what_is_no_text_is_one_line(
    content: bytes | None, says: str, model: str, tmp_path: Path, capsys: Capture
) -> None:
    path = tmp_path / "text"
    if content is not None:
        path.write_bytes(content)
    assert main(["-m", model, "--perplexity", str(path)]) == 2
    out, err = capsys.readouterr()
    assert out == "" and str(path) in err and says in err and err.count("\n") == 1


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["the cat"], "leave out PROMPT"), (["-p", "a"], "leave out --prompt"), (["--chat"], "leave out --chat"),
        (["--prompt-tokens", "5"], "leave out --prompt-tokens"), (["--explain"], "leave out --explain"),
        (["--plot", "a.png"], "leave out --plot"), (["--verify"], "leave out --verify"),
        (["--draft-model", "ngram"], "leave out --draft-model"), (["--logprobs", "3"], "leave out --logprobs"),
        (["--system", "a"], "leave out --system"), (["-c", "1"], "chunks of 2 tokens or more, not --ctx-size 1"),
        (["-c", "999999"], "takes from 1 to 65536"), (["-m", "random:gpt2"], "random:gpt2 has no tokenizer"),
    ],
)  # fmt: skip
def test_flags_that_say_nothing_of_a_text_are_refused(
    flags: list[str], says: str, model: str, text: str, capsys: Capture
) -> None:
    assert main(["-m", model, "--perplexity", text, *flags]) == 2
    out, err = capsys.readouterr()
    assert out == "" and says in err and err.count("\n") == 1


def test_a_folder_is_no_text_and_a_path_is_one(model: str, tmp_path: Path, capsys: Capture) -> None:
    assert main(["-m", model, "--perplexity", str(tmp_path)]) == 2
    assert f"cannot read {tmp_path}: Is a directory" in capsys.readouterr().err
    assert main(["-m", model, "--perplexity", ""]) == 2
    assert "argument --perplexity: expected a path" in capsys.readouterr().err


def test_the_score_is_not_written_over_the_text(model: str, text: str, capsys: Capture) -> None:
    assert main(["-m", model, "--perplexity", text, "-o", text]) == 2
    assert "would write over" in capsys.readouterr().err and Path(text).read_text() == TEXT


def test_ctrl_c_leaves_what_was_scored(model: str, tmp_path: Path, start: Any) -> None:
    path = tmp_path / "long.txt"
    path.write_text(TEXT * 400)
    run = start("-m", model, "--perplexity", str(path), "-c", "32", "--json", "--stats")
    seen = b""
    while b"perplexity" not in seen:  # of the bar: a chunk is done
        seen += run.stderr.read1(1 << 16)
        assert run.poll() is None
    time.sleep(0.2)
    run.send_signal(signal.SIGINT)
    out, _ = run.communicate(timeout=60)
    found = json.loads(out)
    assert run.returncode == 130 and found["stop"] == "interrupt" and found["chunks"] >= 1
    assert found["perplexity"] > 1 and found["tokens"] == 15 * found["chunks"]
