"""The command on a small checkpoint: forms of output, limits that the model sets, many prompts at once."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import refimpl
from gpu.run import main

Capture = pytest.CaptureFixture[str]


def _json(capsys: Capture, *argv: str) -> Any:
    assert main([*argv, "--output", "json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_json_has_its_keys_and_the_ids_of_the_reference(model: str, capsys: Capture) -> None:
    answer = _json(capsys, "-m", model, "the cat", "--raw", "-n", "12", "--ignore-eos")
    assert list(answer) == ["prompt_ids", "ids", "text", "stop", "usage", "timings"]
    assert list(answer["timings"]) == ["load_s", "ttft_s", "prompt_s", "decode_s"]
    reference = refimpl.load(model)
    assert answer["prompt_ids"] == reference.tokenizer.encode("the cat")
    assert answer["ids"] == reference.greedy(answer["prompt_ids"], 12)
    assert answer["text"] == reference.tokenizer.decode(answer["ids"]) and answer["stop"] == "length"
    assert answer["usage"] == {"prompt_tokens": len(answer["prompt_ids"]), "completion_tokens": 12}


@pytest.mark.parametrize("flags", [[], ["--no-stream"]])
def test_text_is_that_of_json_and_a_newline(model: str, capsys: Capture, flags: list[str]) -> None:
    argv = ["-m", model, "hello", "-n", "9", "--ignore-eos"]
    text = _json(capsys, *argv)["text"]
    assert main([*argv, *flags, "--no-stats"]) == 0
    out, err = capsys.readouterr()
    assert out == text + "\n" and "tok/s" not in err


def test_a_file_takes_the_answer(model: str, capsys: Capture, tmp_path: Path) -> None:
    path = tmp_path / "answer.jsonl"
    assert main(["-m", model, "hello", "-n", "3", "--output", "jsonl", "-o", str(path)]) == 0
    assert capsys.readouterr().out == "" and len(json.loads(path.read_text())["ids"]) == 3


def test_the_template_is_used_unless_raw(model: str, base: str, capsys: Capture) -> None:
    templated = _json(capsys, "-m", model, "hello", "-n", "1", "--system", "Be.")["prompt_ids"]
    raw = _json(capsys, "-m", model, "hello", "-n", "1", "--raw")["prompt_ids"]
    tokenizer = refimpl.load(model).tokenizer
    spelled = "<|im_start|>system\nBe.<|im_end|>\n<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    assert templated == tokenizer.encode(spelled, special=True) and raw == tokenizer.encode("hello")
    assert _json(capsys, "-m", base, "hello", "-n", "1")["prompt_ids"] == raw


def test_what_a_user_spells_stays_text(model: str, capsys: Capture) -> None:
    ids = _json(capsys, "-m", model, "<|im_end|>", "-n", "1")["prompt_ids"]
    assert ids.count(2) == 1


def test_many_prompts_are_answered_as_each_alone(model: str, capsys: Capture, tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('"the cat"\n{"prompt": "a"}\n{"messages": [{"role": "user", "content": "on the mat"}]}\n')
    flags = ["-m", model, "-n", "6", "--ignore-eos"]
    assert main([*flags, "--prompts", str(path), "--output", "jsonl"]) == 0
    together = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    alone = [_json(capsys, *flags, prompt) for prompt in ("the cat", "a", "on the mat")]
    assert [a["ids"] for a in together] == [a["ids"] for a in alone]
    assert [a["prompt_ids"] for a in together] == [a["prompt_ids"] for a in alone]
    assert [a["ids"] for a in _json(capsys, *flags, "--prompts", str(path))] == [a["ids"] for a in alone]
    assert main([*flags, "--prompts", str(path)]) == 0
    assert capsys.readouterr().out == "\n\n".join(a["text"] for a in alone) + "\n"


def test_more_prompts_than_the_cache_holds_take_turns(model: str, capsys: Capture, tmp_path: Path) -> None:
    path = tmp_path / "prompts.txt"
    path.write_text("a\nb\nc\n")
    flags = ["-m", model, "-n", "6", "--ignore-eos"]
    crowded = _json(capsys, *flags, "-c", "32", "--prompts", str(path))
    roomy = _json(capsys, *flags, "--prompts", str(path))
    assert [a["ids"] for a in crowded] == [a["ids"] for a in roomy] and len(crowded[2]["ids"]) == 6


def test_one_of_many_is_a_list_and_a_bad_one_is_named(model: str, capsys: Capture, tmp_path: Path) -> None:
    path = tmp_path / "prompts.txt"
    path.write_text("hello\n")
    assert len(_json(capsys, "-m", model, "-n", "1", "--prompts", str(path))) == 1
    path.write_text("hello\n" + "long " * 99)
    assert main(["-m", model, "-c", "64", "--prompts", str(path)]) == 2
    assert "prompt 2 has" in capsys.readouterr().err


def test_draws_follow_the_seed(model: str, capsys: Capture) -> None:
    argv = ["-m", model, "hello", "-n", "8", "--temp", "1.5", "--ignore-eos"]
    first, again, other = (_json(capsys, *argv, "-s", seed)["ids"] for seed in "112")
    assert first == again != other


def test_settings_reach_the_sampler(model: str, capsys: Capture) -> None:
    argv = ["-m", model, "hello", "-n", "5", "--ignore-eos"]
    assert _json(capsys, *argv, "--logit-bias", "77=1000")["ids"] == [77] * 5
    free = _json(capsys, *argv)
    banned = _json(capsys, *argv, "--logit-bias", f"{free['ids'][0]}=-inf")
    assert banned["ids"][0] != free["ids"][0]
    assert len(set(_json(capsys, *argv, "--logit-bias", "77=30", "--presence-penalty", "100")["ids"])) == 5
    assert _json(capsys, *argv, "--temp", "1e-30", "-s", "5")["ids"] == free["ids"]
    assert _json(capsys, *argv, "--temp", "2", "--top-k", "1")["ids"] == free["ids"]


def test_an_answer_stops_where_it_shall(model: str, capsys: Capture) -> None:
    argv = ["-m", model, "hello", "--raw"]
    assert _json(capsys, *argv, "--logit-bias", "2=1000")["stop"] == "eos"
    assert _json(capsys, *argv, "-c", "16", "--ignore-eos")["stop"] == "context"
    letters = [*argv, "-n", "8", "--logit-bias", "70=1000"]
    letter = refimpl.load(model).tokenizer.decode([70])
    stopped = _json(capsys, *letters, "--stop", letter * 3)
    assert stopped["text"] == "" and stopped["ids"] == [70] * 3 and stopped["stop"] == "stop"


@pytest.mark.parametrize("count", [0, 3])
def test_logprobs_are_those_of_the_reference(model: str, capsys: Capture, count: int) -> None:
    answer = _json(capsys, "-m", model, "hello", "-n", "4", "--ignore-eos", "--logprobs", str(count))
    tokens = refimpl.load(model).generate(answer["prompt_ids"], max_tokens=4, ignore_eos=True, logprobs=3)
    for entry, token in zip(answer["logprobs"], tokens, strict=True):
        assert entry["id"] == token.id and entry["logprob"] == pytest.approx(token.logprob, abs=1e-4)
        assert [top["id"] for top in entry["top"]] == [i for i, _ in token.top_logprobs[:count]]


def test_statistics_go_to_standard_error(model: str, capsys: Capture) -> None:
    assert main(["-m", model, "hello", "-n", "4", "--ignore-eos", "--stats"]) == 0
    err = capsys.readouterr().err
    for part in ("load", "TTFT", "TPOT", "GB/s", "memory", "stop     length"):
        assert part in err


def test_verify_agrees(model: str, capsys: Capture) -> None:
    assert main(["-m", model, "the cat", "-n", "8", "--ignore-eos", "--verify"]) == 0
    err = capsys.readouterr().err
    assert "no layer differs beyond float32 rounding" in err and "all 8 ids" in err and "layer 0: error" in err


def test_explain_names_what_bounds(model: str, capsys: Capture) -> None:
    assert main(["-m", model, "the cat", "-n", "8", "--explain"]) == 0
    out = capsys.readouterr().out
    for part in ("prefill:", "decode:", "FLOP/B", "memory: weights", "time:"):
        assert part in out


def test_emulated_kernels_answer_as_the_cpu_does(model: str, capsys: Capture) -> None:
    flags = ["-m", model, "the cat", "-n", "3", "-c", "64", "--ignore-eos", "--json"]
    assert main([*flags, "--device", "emulated", "--stats"]) == 0
    emulated = json.loads(capsys.readouterr().out)
    assert main([*flags, "--device", "cpu"]) == 0
    assert emulated["ids"] == json.loads(capsys.readouterr().out)["ids"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--device", "emulated", "--threads", "1"], "threads"), (["--device", "emulated", "--explain"], "--explain"),
        (["--device", "emulated", "--activations", "int8"], "int8"),
        (["-c", "99999999"], "65536"), (["-c", "16", "-n", "17"], "context"), (["--logit-bias", "288=1"], "288"),
        (["-c", "4", "-p", "a long prompt"], "context"), (["--device", "cuda", "-p", "a"], "cuda"),
    ],
)
def test_what_the_model_cannot_do_is_one_line(model: str, capsys: Capture, flags: list[str], message: str) -> None:
    assert main(["-m", model, *([] if "-p" in flags else ["a"]), *flags]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("gpu.run: error: ") and err.count("\n") == 1 and message in err


def _remove(folder: Path) -> None:
    shutil.rmtree(folder)


def _cut(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def _lie(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes((2**60).to_bytes(8, "little") + path.read_bytes()[8:])


def _rename(folder: Path) -> None:
    path = folder / "config.json"
    path.write_text(path.read_text().replace('"llama"', '"lama"').replace("LlamaFor", "LamaFor"))


def _spoil_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{")


def _no_config(folder: Path) -> None:
    (folder / "config.json").unlink()


@pytest.mark.parametrize("damage", [_remove, _cut, _lie, _rename, _spoil_tokenizer, _no_config])
def test_a_damaged_folder_is_one_line(model: str, tmp_path: Path, capsys: Capture, damage: Any) -> None:
    folder = tmp_path / "model"
    shutil.copytree(model, folder)
    damage(folder)
    assert main(["-m", str(folder), "a", "--offline"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("gpu.run: error: ") and err.count("\n") == 1
    assert "fault of the program" not in err
    if damage is _rename:
        assert "lama" in err and "qwen2" in err  # the supported ones are listed
