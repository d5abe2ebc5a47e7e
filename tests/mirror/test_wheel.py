"""A wheel holds the three packages with their data, and nothing else; only the CUDA extras ask for CUDA."""

import configparser
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.mirror.tree import ROOT

DATA = {".py", ".typed", ".cu", ".cuh", ".npz", ".json", ".safetensors"}
PACKAGES = ("refimpl", "gpu", "golden")
CHECKPOINTS = "golden/families"  # they judge whole models in this repository's tests, not operations of others
OTHERS = ("tests", "benchmarks", "docs")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what a wheel is built from, so that building leaves nothing in the checkout."""
    folder = tmp_path_factory.mktemp("wheel") / "source"
    folder.mkdir()
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    for name in (*PACKAGES, *OTHERS):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def test_wheel_holds_the_three_packages(source: Path):
    build = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", str(source.parent)]
    subprocess.run([*build, str(source)], check=True, capture_output=True, text=True)
    (wheel,) = source.parent.glob("*.whl")
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    paths = [path for package in PACKAGES for path in (source / package).rglob("*") if path.suffix in DATA]
    paths = [path for path in paths if not path.is_relative_to(source / CHECKPOINTS)]
    assert held == {path.relative_to(source).as_posix() for path in paths}
    assert {f"{package}/py.typed" for package in PACKAGES} <= held


def test_only_the_cuda_extras_ask_for_cupy():
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg", encoding="utf-8")
    extras = setup["options.extras_require"]
    assert set(extras) == {"cuda12", "cuda13", "hub", "tokenizers", "plot", "test", "docs"}
    asking = {word: {name for name, wanted in extras.items() if word in wanted} for word in ("cupy", "numba-cuda")}
    assert asking == {"cupy": {"cuda12", "cuda13"}, "numba-cuda": {"cuda12", "cuda13", "test"}}
    assert "cuda" not in setup["options"]["install_requires"]
