"""random:NAME: counted without weights by --explain, run where there is room, refused in one line."""

import json
import re

import pytest

from gpu.cli.arguments import parse_arguments
from gpu.cli.sketch import check_room, explain_sketch, sketch
from gpu.machine import Machine
from gpu.run import main
from refimpl.bottleneck.roofline import DEVICES
from refimpl.bottleneck.serving import parameters, serve
from refimpl.models.tensor import Tensor

Capture = pytest.CaptureFixture[str]
NAMES = ["gpt2", "gemma-3-270m", "gpt-oss-20b", "llama-3.2-1b", "mistral-7b", "qwen1.5-moe-a2.7b", "smollm3-3b"]
LIMITS = Machine(2e10, 1e11)
BEGINS = ["model", "layers", "weights", "machine", "prefill", "decode", "H100", "prefill", "decode", "memory", "cache",
          "time", "H100, 1 x 767 tokens", "H100, 32 x 767 tokens"]  # fmt: skip


def lines_of(*argv: str) -> list[str]:
    return explain_sketch(sketch(parse_arguments(argv)), 512, 256, LIMITS)


@pytest.mark.parametrize("name", NAMES)
def test_every_published_model_is_explained_and_no_weight_is_made(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tensor, "data", property(lambda _: pytest.fail("a weight was made")))
    lines = lines_of("-m", f"random:{name}")
    spec = sketch(parse_arguments(["-m", f"random:{name}"])).spec
    begins = [line.partition(":")[0] for line in lines if not line.startswith(" ")]
    total, active = parameters(spec)
    assert begins == BEGINS[:3] + ["experts"] * (active < total) + BEGINS[3:]
    assert lines[2].startswith(f"weights: {total / 1e6:.1f} M")
    assert f" random:{name} has no weights; " in lines[-3]


@pytest.mark.parametrize(
    ("name", "total", "active", "place"),  # as published, in 10^6; gpt-oss counts no table of inputs as active
    [
        ("llama-3.1-8b", 8030, 8030, 0), ("mixtral-8x7b", 46700, 12900, 1), ("qwen3-30b-a3b", 30500, 3350, 1),
        ("gpt-oss-20b", 20910, 3610, 2),
    ],
)  # fmt: skip
def test_the_command_says_what_was_published(
    name: str, total: float, active: float, place: int, capsys: Capture
) -> None:
    assert main(["-m", f"random:{name}", "--explain"]) == 0
    out = capsys.readouterr().out
    (line,) = (line for line in out.splitlines() if line.startswith("weights: "))
    numbers = [float(number) for number in re.findall(r"([\d.]+) M\b", line)]
    assert [numbers[0], numbers[place]] == pytest.approx([total, active], rel=0.01)
    assert "prefill: 512 tokens" in out and "decode: 1 token after 767" in out


def test_memory_in_formats_and_on_an_h100() -> None:
    lines = lines_of("-m", "random:gpt-oss-20b")
    (memory,) = (line for line in lines if line.startswith("memory: "))
    total = parameters(sketch(parse_arguments(["-m", "random:gpt-oss-20b"])).spec)[0]
    assert f"{2 * total / 1e9:.2f} GB in bfloat16, {total / 1e9:.2f} GB in float8" in memory
    # the model card: 12.8 GiB as a file, whose experts are mxfp4 and the rest bfloat16
    mixed = float(re.search(r"([\d.]+) GB with experts in mxfp4", memory)[1])
    assert mixed / 1.0737 == pytest.approx(12.8, rel=0.01)


def test_an_h100_serves_as_the_bounds_say() -> None:
    spec = sketch(parse_arguments(["-m", "random:mixtral-8x7b"])).spec
    least = serve(spec, DEVICES["H100"], context=767, weights="bfloat16", dtype="bfloat16")
    *_, alone, many = lines_of("-m", "random:mixtral-8x7b")
    assert alone.endswith(f"{1e3 * least.tpot:.2f} ms a token, {least.tps:.0f} tok/s in all; 93.5 GB, the memory of 2")
    assert "32 x 767 tokens" in many


def test_weights_are_counted_in_the_dtype_that_is_asked_for() -> None:
    wide, narrow = lines_of("-m", "random:gpt2", "--dtype", "float32"), lines_of("-m", "random:gpt2")
    assert "in 497.8 MB (float32)" in wide[2] and "(bfloat16, float32)" in narrow[2]


def test_a_prompt_of_so_many_tokens(capsys: Capture) -> None:
    assert main(["-m", "random:gpt2", "--prompt-tokens", "100", "-n", "50", "--explain"]) == 0
    out = capsys.readouterr().out
    assert "prefill: 100 tokens" in out and "decode: 1 token after 149" in out


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["-m", "random:gpt-5", "--explain"], "there is no random:gpt-5; there are gemma-2-2b, gemma-3-1b, "),
        (["-m", "random:", "--explain"], "there is no random:; there are "),
        (["-m", "random:gpt2", "--explain", "the cat"], "random:gpt2 has no tokenizer, which PROMPT needs"),
        (["-m", "random:gpt2", "--explain", "-c", "2048"], "--ctx-size 2048 exceeds the 1024 tokens of this model"),
        (["-m", "random:gpt2", "--explain", "-c", "512"], "the prompt has 512 tokens: a context of 512 leaves no room"),
        (["-m", "random:gpt2", "--explain", "--prompt-tokens", "1024"], "a context of 1024 leaves no room"),
        (["-m", "random:gpt2", "--prompt-tokens", "0"], "argument --prompt-tokens: expected a whole number from 1"),
        (["--prompt-tokens", "9", "--system", "a"], "--prompt-tokens goes through no chat template"),
        (["--prompt-tokens", "9", "--now", "2026-01-01"], "--prompt-tokens goes through no chat template"),
        (["-m", "random:gpt2", "--prompt-tokens", "9", "a"], "PROMPT and --prompt-tokens both name a prompt"),
        (["-m", "random:gpt2", "--chat"], "random:gpt2 has no tokenizer, which --chat needs: give --prompt-tokens"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_one_line(argv: list[str], says: str, capsys: Capture) -> None:
    assert main(argv) == 2
    out, err = capsys.readouterr()
    assert out == "" and says in err and err.count("\n") == 1


def test_a_model_larger_than_the_memory_is_not_made(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sysconf", lambda name: {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 10**6}[name])
    check_room("random:llama-3.2-1b")
    assert main(["-m", "random:llama-3.2-3b", "--prompt-tokens", "2"]) == 2
    out, err = capsys.readouterr()
    says = "random:llama-3.2-3b has 6.4 GB of weights, and this machine has 4.1 GB of memory: --explain counts without"
    assert out == "" and says in err and err.count("\n") == 1
    assert main(["-m", "random:gpt2", "--draft-model", "random:llama-3.2-3b", "--prompt-tokens", "2"]) == 2
    assert says in capsys.readouterr().err


def test_a_small_one_runs(capsys: Capture) -> None:
    argv = ["-m", "random:smollm2-135m", "--prompt-tokens", "3", "-n", "2", "--json", "--logprobs", "1"]
    assert main(argv) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["prompt_ids"] == [0, 7, 14] and len(answer["ids"]) == 2 and answer["text"] == ""
    assert main(argv) == 0
    assert json.loads(capsys.readouterr().out)["ids"] == answer["ids"]
