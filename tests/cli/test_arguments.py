"""Flags: spellings, limits, contradictions."""

import math
import subprocess
import sys

import pytest

from gpu.cli.arguments import parse_arguments
from gpu.run import main
from refimpl.contract import UsageError
from refimpl.flags import SAMPLING, parse_bias


@pytest.mark.parametrize("flag", ["--top-p", "--top_p"])
def test_hyphen_and_underscore_are_one(flag: str) -> None:
    assert parse_arguments([flag, "0.5", "x"]).top_p == parse_arguments([f"{flag}=0.5", "x"]).top_p == 0.5


@pytest.mark.parametrize(
    ("flags", "name", "value"),
    [
        (["--temp", "0.7"], "temperature", 0.7), (["-n", "5"], "max_tokens", 5),
        (["--n-predict", "5"], "max_tokens", 5), (["--max_new_tokens", "5"], "max_tokens", 5),
        (["-c", "64"], "ctx_size", 64), (["--ctx", "64"], "ctx_size", 64),
        (["-t", "1"], "threads", 1), (["-s", "3"], "seed", 3), (["--no_stream"], "stream", False),
        (["--no-stats"], "stats", False), (["--stats"], "stats", True), (["-m", "a_b"], "model", "a_b"),
        (["--prompt=a_b --c_d"], "prompt", "a_b --c_d"), (["-p", "-1 + 2"], "prompt", "-1 + 2"),
        (["--stop", "a", "--stop", "b"], "stop", ["a", "b"]),
        (["--repetition-penalty", "2"], "repetition_penalty", 2.0),
        (["--repeat_penalty", "2"], "repetition_penalty", 2.0), (["--json"], "output", "json"),
        (["x"], "output", "text"),
        (["--logit-bias", "1=2", "--logit-bias", '{"3": -1}'], "logit_bias", {1: 2.0, 3: -1.0}),
    ],
)
def test_usual_spellings(flags: list[str], name: str, value: object) -> None:
    assert getattr(parse_arguments(flags), name) == value


def test_words_of_a_prompt_may_stand_around_flags() -> None:
    assert parse_arguments(["one", "-n", "3", "two", "--", "--three_four"]).words == ["one", "two", "--three_four"]


@pytest.mark.parametrize("text", ["7=1", "7:1", '{"7": 1}', " 7 = 1 "])
def test_bias_in_every_spelling(text: str) -> None:
    assert parse_bias(text) == {7: 1.0}


def test_bias_may_ban() -> None:
    assert parse_bias("7=-inf") == {7: -math.inf}


BAD = [
    ["-n", "-5"], ["-n", "0"], ["-n", "99999999999"], ["-n", "1.5"], ["-n", "many"], ["-n", "9" * 5000],
    ["-c", "0"], ["-c", "-1"], ["--temp", "-1"], ["--temp", "nan"], ["--temp", "inf"], ["--temp", "1e9"],
    ["--temp", "-1e9"], ["--top-p", "1.01"], ["--top-p", "-0.1"], ["--top-p", "nan"], ["--top-k", "-1"],
    ["--top-k", "1e3"], ["--min-p", "2"], ["--repeat-penalty", "0"], ["--repeat-penalty", "nan"],
    ["--presence-penalty", "1e9"], ["--frequency-penalty", "-inf"], ["-s", "-1"], ["-s", str(2**64)],
    ["--threads", "0"], ["--threads", "1000000"], ["--logprobs", "-1"], ["--logprobs", "1000"],
    ["--logit-bias", "x"], ["--logit-bias", "1=nan"], ["--logit-bias", "1=inf"], ["--logit-bias", "-1=0"],
    ["--logit-bias", "1=1e300"], ["--logit-bias", "{"], ["--logit-bias", "{" * 5000], ["--logit-bias", '{"1": null}'],
    ["--stop", ""], ["-m", ""], ["--device", "tpu"], ["--dtype", "int3"], ["--output", "yaml"], ["--foo"], ["-p", "-n"],
    ["--devic", "cpu"], ["-p", "a"], ["-f", "a"], ["--prompts", "a"], ["--chat"], ["--raw", "--system", "a"],
    ["--verify", "--explain", "--prompts", "a"], ["--explain", "--output", "jsonl"], ["--explain", "--json"],
]


@pytest.mark.parametrize("flags", BAD, ids=lambda flags: " ".join(flags)[:30])
def test_a_bad_flag_is_one_line(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*flags, "word"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("gpu.run: error: ") and err.count("\n") == 1 and len(err) < 600


@pytest.mark.parametrize("flags", [["--raw", "--chat"], ["--chat", "--output", "json"], ["--chat", "--verify"]])
def test_chat_refuses_what_contradicts_it(flags: list[str]) -> None:
    with pytest.raises(UsageError, match="--chat"):
        parse_arguments(flags)


def test_every_sampling_setting_has_a_flag() -> None:
    options = parse_arguments(["word"])
    for name, (_, default, _) in SAMPLING.items():
        assert getattr(options, name) == default


def test_spellings_of_other_programs() -> None:
    options = parse_arguments(["word", "--typical-p", "0.9", "--no_repeat_ngram_size", "3", "--min-new-tokens", "5"])
    assert (options.typical, options.no_repeat_ngram, options.min_tokens) == (0.9, 3, 5)


def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "usage: python -m gpu.run" in out and "--temperature" in out
    assert "exit code 1: an id or a layer differs" in out
    assert 'a JSON string, {"prompt": "..."} or {"messages": [...]}' in out
    assert main(["--version"]) == 0 and "numba" in capsys.readouterr().out


def test_a_slip_answers_before_anything_heavy_is_imported() -> None:
    script = "import sys, gpu.run; gpu.run.main(['-n', '-1', 'x']); sys.exit('numba' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=60)
    assert done.returncode == 0
