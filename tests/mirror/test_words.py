"""The text of the repository: no machine's path, no muted checker, no test that cannot fail."""

import ast
import re
import subprocess

import pytest

from tests.mirror.tree import ROOT, Module, modules

PLACES = re.compile(r"(?<![\w.])/(work|tmp|home|root|mnt|Users)/\w")
SPLIT = ("# no|qa", "type: ig|nore", r"\bTO|DO\b", r"\bFIX|ME\b", r"pytest\.sk|ip", r"mark\.sk|ip", r"mark\.xf|ail")
MUTED = re.compile("|".join(word.replace("|", "") for word in SPLIT))  # split, so that this file does not match itself
JUDGING = re.compile(r"assert|raises|check|verify|expect")
TESTS = [m for m in modules("tests") if m.path.name.startswith("test_")]


def tracked_text() -> dict[str, str]:
    """Return the text of every file that is or would be in the repository."""
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True)
    binary = (".npz", ".gguf", ".png", ".safetensors")
    paths = [ROOT / name for name in done.stdout.splitlines() if not name.endswith(binary)]
    return {p.relative_to(ROOT).as_posix(): p.read_text(encoding="utf-8") for p in paths if p.is_file()}


@pytest.mark.parametrize("pattern", [PLACES, MUTED], ids=["places", "muted"])
def test_no_such_words(pattern: re.Pattern[str]):
    found = [
        f"{name}:{number}: {line.strip()[:80]}"
        for name, text in tracked_text().items()
        for number, line in enumerate(text.splitlines(), 1)
        if pattern.search(line)
    ]
    assert found == []


@pytest.mark.parametrize("module", TESTS, ids=lambda module: module.name)
def test_every_test_can_fail(module: Module):
    functions = [node for node in ast.walk(module.tree) if isinstance(node, ast.FunctionDef)]
    judges = {node.name for node in functions if any(isinstance(inner, ast.Assert) for inner in ast.walk(node))}

    def can_fail(inner: ast.AST) -> bool:
        name = ast.unparse(inner.func) if isinstance(inner, ast.Call) else ""
        return isinstance(inner, ast.Assert) or name in judges or bool(JUDGING.search(name))

    tests = [node for node in functions if node.name.startswith("test_")]
    idle = [node.name for node in tests if not any(map(can_fail, ast.walk(node)))]
    assert idle == []


def _leads_there(node: ast.AST, word: str) -> bool:
    """Whether a folder's name is joined to a path, or spelled in one."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        return isinstance(node.right, ast.Constant) and node.right.value == word
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and f"../{word}" in node.value


def test_only_outside_reads_beside_the_repository():
    word = "sha" + "red"
    readers = [
        module.where
        for module in modules("tests")
        if not module.where.startswith("tests/outside/")
        and any(_leads_there(node, word) for node in ast.walk(module.tree))
    ]
    assert readers == []
