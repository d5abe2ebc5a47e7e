"""Tiny checkpoints and the answers that transformers gives, judged by the comparison that came with them."""

import json
import os
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from refimpl.models.families import read_spec

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT.parent / "shared" / "reference"
CASES = (
    "gpt2", "llama", "llama_tied", "llama_mqa_bias", "llama_v5_config", "llama_rope_dynamic", "llama_rope_linear",
    "llama_rope_llama3", "llama_rope_yarn", "llama_rope_yarn_betas", "mistral_swa", "phi3", "phi3_longrope", "qwen2",
    "qwen3",
)  # fmt: skip
IMPLEMENTATIONS = {
    "refimpl": ({"ADAPTER": "refimpl"}, ["--strict-missing"]),
    "refimpl-float64": ({"ADAPTER": "refimpl", "DTYPE": "float64"}, ["--f64"]),
    "gpu-cpu": ({"ADAPTER": "gpu-cpu"}, ["--strict-missing"]),
    "gpu-emulated": ({"ADAPTER": "gpu-emulated"}, ["--strict-missing"]),
}
EMULATED = ("gpt2", "llama", "mistral_swa", "qwen3")  # learned positions, rotary, windows, normed heads
JUDGED = [
    (implementation, name)
    for implementation in IMPLEMENTATIONS
    for name in (EMULATED if implementation == "gpu-emulated" else CASES)
]


@cache
def compare(implementation: str, folder: str) -> dict[str, dict[str, str]]:
    """Return the result of every check, by case and by what is compared."""
    settings, flags = IMPLEMENTATIONS[implementation]
    report = Path(folder) / f"{implementation}.json"
    only = "^(" + "|".join(name for judged, name in JUDGED if judged == implementation) + ")$"
    command = [sys.executable, str(REFERENCE / "compare.py"), str(ROOT / "tests" / "reference_adapter.py")]
    command += [str(REFERENCE / "lm"), "--only", only, "--json", str(report), *flags]
    done = subprocess.run(command, env=os.environ | settings, capture_output=True, text=True, cwd=ROOT)
    rows = json.loads(report.read_text())["rows"] if report.exists() else []
    results: dict[str, dict[str, str]] = {name: {} for name in CASES}
    for row in rows:
        results[row["name"]][row["what"]] = row["result"]
    counts = Counter(row["result"] for row in rows)
    print(f"{implementation}: {len(rows)} checks, {dict(counts)}")
    if counts["PASS"] < len(rows) or not rows:
        print(done.stdout, done.stderr)
    return results


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("compare"))


@pytest.mark.parametrize(("implementation", "name"), JUDGED)
def test_checkpoint_gives_the_stored_answers(implementation: str, name: str, folder: str):
    results = compare(implementation, folder)[name]
    if implementation == "refimpl-float64":
        assert results.pop("hidden", None) == "n/a"  # stored in float32 alone
    assert {"logits", "greedy"} <= results.keys()
    assert set(results.values()) == {"PASS"}, results


@pytest.mark.parametrize("name", CASES)
def test_both_spellings_of_a_config_are_one_model(name: str):
    classic, version_5 = (
        json.loads((REFERENCE / "lm" / name / file).read_text()) for file in ("config.json", "config.v5.json")
    )
    assert read_spec(classic) == read_spec(version_5)
