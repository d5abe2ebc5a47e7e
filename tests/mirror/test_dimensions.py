"""One letter names one dimension: every axis of a signature or of a name's suffix stands in the contract's key."""

import ast
import re

import pytest

from refimpl import contract
from tests.mirror.tree import Module, modules

KEY = set(re.findall(r"(?:^|  )([A-Z]\d?) ", str(contract.__doc__).split("Dimension key")[1], re.M))
WORD = re.compile(r"[a-z][a-z_]+|\d+|\.\.\.")


def axes(module: Module) -> set[str]:
    """Return the axes of a module: those of its array types, and the letters of suffixes (``q_TNH``)."""
    found: set[str] = set()
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Subscript) and ast.unparse(node.value) in ("Float", "Int", "Bool", "UInt8", "UInt32"):
            found |= {axis.lstrip("*#") for axis in ast.literal_eval(node.slice.elts[1]).split()}
        elif isinstance(node, ast.Name) and (suffix := re.fullmatch(r"[a-z]\w*_((?:[A-Z]\d?)+)", node.id)):
            found |= set(re.findall(r"[A-Z]\d?", suffix[1]))
    return found


AXES = {module.name: axes(module) for module in modules("refimpl")}


def test_the_key_is_read():
    assert {"T", "S", "H2", "J", "L", "R"} <= KEY and "P" not in KEY


@pytest.mark.parametrize("name", AXES)
def test_axes_stand_in_the_key(name: str):
    assert {axis for axis in AXES[name] if not WORD.fullmatch(axis)} - KEY == set()


def test_letters_of_the_key_are_used():
    prose = " ".join(ast.unparse(module.tree) for module in modules("refimpl") if module.name != "refimpl.contract")
    assert [letter for letter in KEY.difference(*AXES.values()) if not re.search(rf"\b{letter}\b", prose)] == []
