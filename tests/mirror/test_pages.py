"""What the pages say is what the code does."""

import re
import subprocess
import sys
from pathlib import PurePosixPath

import pytest

import refimpl
from golden import SPECIFICATION
from refimpl.blocks import FORMATS
from tests.mirror.tree import ROOT

PAGES = ["README.md", "CONTRIBUTING.md", "MODELS.md", "CHANGELOG.md", "golden/README.md"]
PAGES += [f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md"))]


def page(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_models_page_lists_the_formats():
    assert [name for name in FORMATS if name.upper() not in page("MODELS.md")] == []


def test_changelog_has_this_version():
    assert f"## {refimpl.__version__} " in page("CHANGELOG.md")


def test_changelog_has_the_definitions_of_this_specification():
    assert f"### Definitions, specification {SPECIFICATION}\n" in page("CHANGELOG.md")


def test_page_of_operations_is_current():
    done = subprocess.run([sys.executable, "-m", "docs.ops"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == page("docs/ops.md"), "run make docs"


@pytest.mark.parametrize("command", ["python -m gpu.run", "python -m pytest"])
def test_readme_has_one_line_for_it(command: str):
    assert len(re.findall(rf"^pip install -e .* && {command}", page("README.md"), re.M)) == 1


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_somewhere(name: str):
    folder = (ROOT / name).parent
    targets = [t for t in re.findall(r"\]\(([^)#]+)\)", page(name)) if not re.match("https?://", t)]
    assert [target for target in targets if not (folder / PurePosixPath(target)).is_file()] == []
