"""CONTENTS is the reading order and the import law of refimpl; gpu and golden look at refimpl through a narrow door."""

from graphlib import TopologicalSorter

import pytest

import refimpl
from tests.mirror.tree import ROOT, Module, imports, module_lines, modules, public_functions, roles

RANK = {f"refimpl.{name}": rank for rank, (name, _) in enumerate(refimpl.CONTENTS)}
RANK["refimpl"] = RANK["refimpl.model"]  # the root gives away ``load``, so who imports it stands below
SPECIFICATION = {module.name: module for module in modules("refimpl")}
FAMILIES = {name for name in SPECIFICATION if name.startswith("refimpl.models.families.")}
RANK |= dict.fromkeys(FAMILIES, RANK["refimpl.models.families"])  # found by their place, under one line of CONTENTS
MOST_LINES_OF_THE_HOUR = 2000  # of code, without docstrings
JUDGES = {
    "gpu/run.py", "gpu/verify.py", "gpu/verify_encoder.py", "gpu/verify_picture.py", "gpu/media/namespace.py",
    "gpu/namespace.py",
}  # fmt: skip
"""They name the specification, hand it out for a CPU, or compare with it."""


def target(base: str, name: str | None) -> str:
    """Return the module that an import reaches: a submodule named in a from-import, or the module itself."""
    return f"{base}.{name}" if name and f"{base}.{name}" in SPECIFICATION else base


def test_contents_names_every_module_once():
    listed = [f"refimpl.{name}" for name, _ in refimpl.CONTENTS]
    present = {name for name, module in SPECIFICATION.items() if name != "refimpl" and module.has_code} - FAMILIES
    assert len(listed) == len(set(listed))
    assert present - set(listed) == set(), "modules that CONTENTS does not name"
    assert set(listed) - set(SPECIFICATION) == set(), "CONTENTS names what does not exist"


def test_contents_says_what_each_module_is():
    assert all(what and len(what) < 100 and "\n" not in what for _, what in refimpl.CONTENTS)


def test_the_hour_is_an_hour():
    ranks = [RANK[f"refimpl.{name}"] for name in refimpl.HOUR]
    assert ranks == sorted(ranks)
    assert sum(module_lines(SPECIFICATION[f"refimpl.{name}"]) for name in refimpl.HOUR) <= MOST_LINES_OF_THE_HOUR


def test_the_sections_of_the_chapter_are_short():
    sections = [name for name, _ in refimpl.CONTENTS if name.split(".")[0] in ("basics", "llm", "bottleneck")]
    assert sum(module_lines(SPECIFICATION[f"refimpl.{name}"]) for name in sections) < MOST_LINES_OF_THE_HOUR


def test_the_hour_leans_on_nothing_else():
    hour = {f"refimpl.{name}" for name in refimpl.HOUR}
    reached = {target(*each) for name in hour for each in imports(SPECIFICATION[name])}
    data = {"refimpl.media.costs"}  # rows of a table that the hour has the formulas of
    assert {name for name in reached if name.startswith("refimpl")} - hour - data == set()


@pytest.mark.parametrize("module", modules("refimpl")[1:], ids=lambda module: module.name)
def test_imports_only_what_stands_above(module: Module):
    below = [
        reached
        for reached in (target(base, name) for base, name in imports(module) if base.split(".")[0] == "refimpl")
        if RANK.get(reached, len(RANK)) >= RANK.get(module.name, -1) and not {module.name, reached} <= FAMILIES
    ]
    assert below == [], f"{module.where} imports what stands below it in CONTENTS"


def test_families_borrow_from_each_other_without_circles():
    reached = {name: {target(*each) for each in imports(SPECIFICATION[name])} & FAMILIES for name in FAMILIES}
    assert set(TopologicalSorter(reached).static_order()) == FAMILIES


@pytest.mark.parametrize("module", modules("refimpl"), ids=lambda module: module.name)
def test_refimpl_knows_nothing_of_the_other_rooms(module: Module):
    assert {base.split(".")[0] for base, _ in imports(module)} & {"gpu", "golden", "tests", "numba", "cupy"} == set()


def allowed_for_twins(base: str, name: str | None) -> bool:
    """Tell whether gpu may take a name: the contract, data classes and constants, host and composed functions."""
    if base in ("refimpl", "refimpl.contract"):
        return base != "refimpl" or name in ("__version__", "CONTENTS", "contract")
    if name is None or target(base, name) != base:
        return False
    functions = {function.node.name: roles(function.node) for function in public_functions(SPECIFICATION[base])}
    return functions.get(name, ["host"]) in (["host"], ["composed"])


@pytest.mark.parametrize("module", modules("gpu"), ids=lambda module: module.name)
def test_gpu_never_leans_on_what_judges_it(module: Module):
    if module.where in JUDGES:
        assert (ROOT / module.where).is_file()
        return
    wrong = [
        (base, name)
        for base, name in imports(module)
        if base.split(".")[0] == "refimpl" and not allowed_for_twins(base, name)
    ]
    assert wrong == []


@pytest.mark.parametrize("module", modules("golden"), ids=lambda module: module.name)
def test_golden_knows_the_judged_only_in_its_adapters(module: Module):
    reached = {base.split(".")[0] for base, _ in imports(module)} & {"refimpl", "gpu"}
    assert reached == set() or module.name.startswith("golden.adapters.")


def test_every_folder_of_a_package_is_a_package():
    folders = {path.parent for room in ("refimpl", "gpu", "golden") for path in (ROOT / room).rglob("*.py")}
    assert [folder.as_posix() for folder in folders if not (folder / "__init__.py").is_file()] == []
