"""Every public function has one role, every module says what it gives away, every file fits a sitting."""

import ast

import pytest

from tests.mirror.tree import Module, code_lines, is_compiled, modules, public_functions, roles

OURS = [*modules("refimpl"), *modules("gpu")]
PACKAGES = [*OURS, *modules("golden")]
EVERYTHING = [*PACKAGES, *modules("tests"), *modules("benchmarks")]
MOST_LINES_OF_A_FUNCTION, MOST_LINES_OF_A_FILE = 40, 250


@pytest.mark.parametrize("module", [m for m in OURS if m.name != "refimpl.contract"], ids=lambda module: module.name)
def test_public_function_has_one_role(module: Module):
    wanted = [f for f in public_functions(module) if not is_compiled(f.node)]
    assert {f.where: roles(f.node) for f in wanted if len(roles(f.node)) != 1} == {}


@pytest.mark.parametrize("module", modules("refimpl"), ids=lambda module: module.name)
def test_kernels_are_not_specification(module: Module):
    assert [f.where for f in public_functions(module) if roles(f.node) == ["kernel"]] == []


@pytest.mark.parametrize("module", [m for m in PACKAGES if m.has_code], ids=lambda module: module.name)
def test_module_lists_what_it_gives_away(module: Module):
    listed = module.all_names()
    assert listed is not None, f"{module.where} has no __all__"
    defined = {
        node.name
        for node in module.tree.body
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_")
    }
    assert defined - set(listed) == set(), "public, and absent from __all__"
    assert len(listed) == len(set(listed))


@pytest.mark.parametrize("module", [m for m in PACKAGES if m.has_code], ids=lambda module: module.name)
def test_module_says_what_it_is(module: Module):
    assert (ast.get_docstring(module.tree) or "").strip(), f"{module.where} has no docstring"


@pytest.mark.parametrize("module", modules("refimpl"), ids=lambda module: module.name)
def test_public_names_are_described(module: Module):
    bare = [f.where for f in public_functions(module) if not f.doc]
    bare += [n.name for n in module.tree.body if isinstance(n, ast.ClassDef) and not ast.get_docstring(n)]
    assert bare == []


def test_functions_fit_a_screen():
    long = {}
    for module in EVERYTHING:
        source = module.path.read_text(encoding="utf-8")
        for node in ast.walk(module.tree):
            if isinstance(node, ast.FunctionDef) and (count := code_lines(node, source)) > MOST_LINES_OF_A_FUNCTION:
                long[f"{module.where}:{node.lineno} {node.name}"] = count
    assert long == {}


def test_files_fit_a_sitting():
    long = {}
    for module in PACKAGES:
        count = len(module.path.read_text(encoding="utf-8").splitlines())
        if count > MOST_LINES_OF_A_FILE:
            long[module.where] = count
    assert long == {}


def test_families_are_short():
    """What a family adds is what sets it apart: its file has under 80 lines."""
    files = [m.path for m in PACKAGES if ".families." in m.name and not m.is_package]
    lines = {path.name: len(path.read_text(encoding="utf-8").splitlines()) for path in files}
    assert len(lines) > 15 and {name: count for name, count in lines.items() if count >= 80} == {}


def test_counting_of_lines():
    source = 'def f(x):\n    """One.\n\n    Two."""\n    # why\n\n    y = (\n        x\n    )\n    return y\n'
    node = ast.parse(source).body[0]
    assert isinstance(node, ast.FunctionDef) and code_lines(node, source) == 5
