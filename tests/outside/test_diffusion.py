"""Tiny denoisers and autoencoders, and the answers that diffusers gives, judged by the comparison beside them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT.parent / "shared" / "reference"
IMPLEMENTATIONS = {
    "refimpl": ({"ADAPTER": "refimpl"}, []),
    "refimpl-float64": ({"ADAPTER": "refimpl", "DTYPE": "float64"}, ["--f64"]),
    "gpu-cpu": ({"ADAPTER": "gpu-cpu"}, []),
    "gpu-emulated": ({"ADAPTER": "gpu-emulated"}, []),
}
CASES = {  # what each must give, and who is judged by it
    "dit": ({"sample"}, tuple(IMPLEMENTATIONS)),
    "autoencoder_kl": ({"mean", "logvar", "decoded"}, tuple(IMPLEMENTATIONS)),
}
JUDGED = [(name, implementation) for name, (_, judged) in CASES.items() for implementation in judged]


@pytest.mark.parametrize(("name", "implementation"), JUDGED)
def test_model_gives_the_stored_answers(name: str, implementation: str, tmp_path: Path):
    settings, flags = IMPLEMENTATIONS[implementation]
    report = tmp_path / "report.json"
    command = [sys.executable, str(REFERENCE / "compare.py"), str(ROOT / "tests" / "reference_adapter.py")]
    command += [str(REFERENCE / "diffusion"), "--only", f"^{name}$", "--strict-missing", "--json", str(report), *flags]
    done = subprocess.run(command, env=os.environ | settings, capture_output=True, text=True, cwd=ROOT)
    rows = json.loads(report.read_text())["rows"] if report.exists() else []
    assert {row["what"]: row["result"] for row in rows} == dict.fromkeys(CASES[name][0], "PASS"), done.stdout
