"""A wheel holds the three packages with their data, and nothing else."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from tests.mirror.tree import ROOT

DATA = {".py", ".typed", ".cu", ".cuh", ".npz", ".json"}
PACKAGES = ("refimpl", "gpu", "golden")


def test_wheel_holds_the_three_packages(tmp_path: Path):
    source = tmp_path / "source"
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        source.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, source)
    for name in (*PACKAGES, "tests", "benchmarks", "docs"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    build = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", str(tmp_path)]
    subprocess.run([*build, str(source)], check=True, capture_output=True, text=True)

    (wheel,) = tmp_path.glob("*.whl")
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    expected = {
        path.relative_to(source).as_posix()
        for package in PACKAGES
        for path in (source / package).rglob("*")
        if path.suffix in DATA
    }
    assert {name.split("/")[0] for name in held} == set(PACKAGES)
    assert held == expected
    assert {f"{package}/py.typed" for package in PACKAGES} <= held
