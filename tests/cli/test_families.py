"""python -m refimpl.models: every family, told by its own file, and by models that were published."""

import subprocess
import sys

import pytest

from refimpl.models.__main__ import describe_spec, family_table, main
from refimpl.models.families import families, read_spec
from refimpl.models.published import published
from refimpl.models.reading import KEYS

Capture = pytest.CaptureFixture[str]


def test_every_family_type_and_key_is_there(capsys: Capture) -> None:
    assert main([]) == 0
    out = capsys.readouterr().out
    assert out.splitlines() == family_table() and all(len(line) <= 120 for line in out.splitlines())
    heads = [line.partition(":")[0] for line in out.splitlines() if line and not line.startswith(" ")]
    assert heads == ["read of every decoder", *families()]
    text = " ".join(out.split())
    for family in families().values():
        for kind, keys in family.MODEL_TYPES.items():
            own = keys - KEYS if keys >= KEYS else keys - {"model_type"}
            assert f"{kind}: {', '.join(sorted(own)) or 'nothing of their own'}" in text
        assert not getattr(family, "GGUF", None) or f"GGUF: {', '.join(family.GGUF)}" in text


def test_a_name_shows_all_that_is_known_of_its_family(capsys: Capture) -> None:
    assert main(["llama"]) == 0
    lines = capsys.readouterr().out.splitlines()
    known = [name for name, config in published().items() if config["model_type"] in ("llama", "mistral")]
    assert {line.strip() for line in lines} >= set(known)
    assert main(["mistral"]) == 0
    assert capsys.readouterr().out.splitlines() == lines
    assert main(["t5", "bert"]) == 0
    out = capsys.readouterr().out
    assert "bert-base" in out and "t5-small" in out and "llama" not in out


def test_layers_caches_and_limits_in_words() -> None:
    gemma = "\n".join(describe_spec(read_spec(published()["gemma-2-2b"])))
    assert "13 x attention of 8 on 4 heads of 256, window 4096, rotary by 10000, scores capped at 50;" in gemma
    assert "gated gelu_tanh 9216; norms sandwich" in gemma and "cache: 106,496 B a token in float16, " in gemma
    assert "around: embeddings times 48, gains stored less 1, logits capped at 30" in gemma
    scout = "\n".join(describe_spec(read_spec(published()["llama-4-scout"])))
    assert "12 x attention of 40 on 8 heads of 128, no rotation" in scout and "chunk 8192" in scout
    assert "1 of 16 experts by top_k_sigmoid, gated silu 8192 and one of 8192 for all" in scout
    *_, limits = describe_spec(read_spec(published()["gpt2"]))
    assert limits == "limits: 1024 learned positions, vocabulary 50257, 124.4 M parameters"
    t5 = describe_spec(read_spec(published("encoders")["t5-small"]))
    assert [line.partition(":")[0] for line in t5] == ["encoder", "decoder", "limits"]
    assert "attention to the encoder" in t5[1] and "32 buckets of distances" in t5[0]


@pytest.mark.parametrize(("argv", "says"), [(["x"], "there is no family or model type 'x'"), (["--all"], "--all")])
def test_what_is_not_there_is_one_line(argv: list[str], says: str, capsys: Capture) -> None:
    assert main(argv) == 2
    out, err = capsys.readouterr()
    assert out == "" and says in err and err.count("\n") == 1


def test_it_runs_as_a_module() -> None:
    done = subprocess.run([sys.executable, "-m", "refimpl.models", "qwen3"], capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr == "" and "qwen3-0.6b" in done.stdout
