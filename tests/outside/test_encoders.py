"""Encoders and encoder-decoders: the answers that transformers gives, judged by the comparison that came with them."""

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
FOUND = sorted(path.relative_to(REFERENCE) for kind in ("encoder", "seq2seq") for path in (REFERENCE / kind).glob("*/"))
IMPLEMENTATIONS = {
    "refimpl": ({"ADAPTER": "refimpl"}, []),
    "refimpl-float64": ({"ADAPTER": "refimpl", "DTYPE": "float64"}, ["--f64"]),
    "gpu-cpu": ({"ADAPTER": "gpu-cpu"}, []),
    "gpu-emulated": ({"ADAPTER": "gpu-emulated"}, []),
}


@cache
def compare(implementation: str, kind: str, folder: Path) -> dict[str, dict[str, str]]:
    """Return the result of every check, by case and by what is compared."""
    settings, flags = IMPLEMENTATIONS[implementation]
    report = folder / f"{implementation}-{kind}.json"
    command = [sys.executable, str(REFERENCE / "compare.py"), str(ROOT / "tests" / "reference_adapter.py")]
    command += [str(REFERENCE / kind), "--strict-missing", "--json", str(report), *flags]
    done = subprocess.run(command, env=os.environ | settings, capture_output=True, text=True, cwd=ROOT)
    rows = json.loads(report.read_text())["rows"] if report.exists() else []
    results: dict[str, dict[str, str]] = {}
    for row in rows:
        results.setdefault(row["name"], {})[row["what"]] = row["result"]
    counts = Counter(row["result"] for row in rows)
    print(f"{implementation}: {len(rows)} checks of {kind}, {dict(counts)}")
    if counts["PASS"] < len(rows) or not rows:
        print(done.stdout, done.stderr)
    return results


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("compare")


@pytest.mark.parametrize("case", FOUND, ids=str)
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_checkpoint_gives_the_stored_answers(implementation: str, case: Path, folder: Path):
    results = compare(implementation, case.parent.name, folder)[case.name]
    expected = json.loads((REFERENCE / case / "meta.json").read_text())["outputs"]
    assert results == dict.fromkeys(expected, "PASS")


@pytest.mark.parametrize("case", FOUND, ids=str)
def test_both_spellings_of_a_config_are_one_model(case: Path):
    classic, version_5 = (
        json.loads((REFERENCE / case / file).read_text()) for file in ("config.json", "config.v5.json")
    )
    assert read_spec(classic) == read_spec(version_5)
