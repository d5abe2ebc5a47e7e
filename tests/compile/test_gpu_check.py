"""The check that is made for a GPU runs whole without one, and says so where it cannot."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "benchmarks" / "gpu_check.py"


def run(*args: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(SCRIPT), *args]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_dry_run(tmp_path: Path) -> None:
    done = run("--dry", "--out", str(tmp_path / "rows.json"))
    assert (done.returncode, done.stderr.count("took")) == (0, 9), done.stdout + done.stderr
    rows = json.loads((tmp_path / "rows.json").read_text())
    sections = {"machine", "bandwidth", "launch", "golden", "equivalence", "gemv", "attention", "paged", "decode"}
    assert [row for row in rows if row["note"].startswith("WRONG")] == []
    assert {row["section"] for row in rows} == sections
    assert all(f"{row['section']:12} {row['what']}" in done.stdout for row in rows)


def test_without_a_gpu_it_is_one_line() -> None:
    folders = [str(SCRIPT.parent), str(ROOT)]
    program = f"import sys, runpy; sys.modules['cupy'] = None; sys.path[:0] = {folders};" \
              f"sys.argv = ['gpu_check.py']; runpy.run_path({str(SCRIPT)!r}, run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("gpu_check.py: error: device cuda is not there: CuPy is not")
