"""Tiny checkpoints and the answers that transformers gives, judged by the comparison that came with them."""

import json
import os
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from refimpl.contract import CheckpointError
from refimpl.models.families import read_spec

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT.parent / "shared" / "reference"
LATER = (  # latent, linear, sparse and state-space attention
    "bamba", "deepseek_v2", "deepseek_v3", "deepseek_v32", "deepseek_v3_mtp", "deepseek_v3_noqlora", "deepseek_v4",
    "falcon_h1", "granitemoehybrid", "jamba", "kimi_linear", "mamba", "mamba2", "minimax", "nemotron_h", "qwen3_next",
    "zamba2",
)  # fmt: skip
FOUND = sorted(path.name for path in (REFERENCE / "lm").glob("*") if path.is_dir())
CASES = tuple(name for name in FOUND if name not in LATER)
IMPLEMENTATIONS = {
    "refimpl": ({"ADAPTER": "refimpl"}, ["--strict-missing"]),
    "refimpl-float64": ({"ADAPTER": "refimpl", "DTYPE": "float64"}, ["--f64"]),
    "gpu-cpu": ({"ADAPTER": "gpu-cpu"}, ["--strict-missing"]),
    "gpu-emulated": ({"ADAPTER": "gpu-emulated"}, ["--strict-missing"]),
}
EMULATED = (  # one of each family
    "gemma2", "gemma3_text", "glm4_moe", "gpt2", "gpt_oss", "llama", "mistral_swa", "mixtral", "olmo2", "olmo3",
    "phi3_longrope", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "smollm3_nope",
)  # fmt: skip
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


def test_every_folder_is_judged_or_named():
    print(f"lm: {len(FOUND)} folders, {len(CASES)} judged, {len(LATER)} for later: {', '.join(LATER)}")
    assert set(LATER) < set(FOUND)
    for name in LATER:
        with pytest.raises(CheckpointError, match="is not supported; supported: "):
            read_spec(json.loads((REFERENCE / "lm" / name / "config.json").read_text()))


@pytest.mark.parametrize("name", CASES)
def test_both_spellings_of_a_config_are_one_model(name: str):
    classic, version_5 = (
        json.loads((REFERENCE / "lm" / name / file).read_text()) for file in ("config.json", "config.v5.json")
    )
    assert read_spec(classic) == read_spec(version_5)
