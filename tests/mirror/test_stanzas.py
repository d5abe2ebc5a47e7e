"""Every operation is documented in one order, has a golden case, and each of its constraints is raised and tested."""

import ast
import re

import pytest

from golden.case import read_cases
from tests.mirror.tree import Function, Module, modules, public_functions, roles

STANZAS = ("Math", "Cost", "Numerics", "Constraints", "Source")
OPS = [f for m in modules("refimpl") for f in public_functions(m) if roles(f.node) == ["op"]]
TESTS = [m for m in modules("tests") if m.path.name.startswith("test_") and "mirror" not in m.path.parts]


def each_op(test):
    return pytest.mark.parametrize("op", OPS, ids=lambda op: f"{op.module.name}.{op.node.name}")(test)


CASES = {case.op for case in read_cases()}


def labels(op: Function) -> set[str]:
    """Return the constraint labels that a docstring states."""
    return set(re.findall(r"\((C\d+)\)", op.doc))


def raised_labels(op: Function) -> set[str]:
    """Return the labels that an operation requires, itself or through the functions of its module that it calls."""
    functions = {node.name: node for node in op.module.tree.body if isinstance(node, ast.FunctionDef)}
    found: set[str] = set()
    seen: set[str] = set()
    waiting = [op.node.name]
    while waiting:
        name = waiting.pop()
        if name in seen or name not in functions:
            continue
        seen.add(name)
        for node in ast.walk(functions[name]):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "require":
                found.add(str(ast.literal_eval(node.args[1])))
            elif isinstance(node, ast.Name) and node.id.startswith("_"):
                waiting.append(node.id)
    return found


def names_of(node: ast.AST) -> set[str]:
    """Return every identifier and every word of a string literal below a node."""
    words: set[str] = set()
    for inner in ast.walk(node):
        if isinstance(inner, ast.Name):
            words.add(inner.id)
        elif isinstance(inner, ast.Attribute):
            words.add(inner.attr)
        elif isinstance(inner, ast.Constant) and isinstance(inner.value, str):
            words |= set(re.findall(r"\w+", inner.value))
    return words


def tested_pairs(module: Module) -> set[tuple[str, str]]:
    """Return (operation, label) where one test, or one row of a test's table, names both."""
    ops = {op.node.name for op in OPS}
    pairs: set[tuple[str, str]] = set()
    scopes: list[tuple[ast.AST, set[str]]] = []
    for node in module.tree.body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            named = {op for op in ops if re.search(rf"(^|_){op}(_|$)", node.name)}
            scopes.append((node, named | set(re.findall(r"C\d+", node.name.replace("_c", "_C")))))
        for inner in ast.walk(node):
            if isinstance(inner, ast.Tuple | ast.Call | ast.Dict | ast.With):
                scopes.append((inner, set()))
    for scope, named in scopes:
        words = names_of(scope) | named
        if not (here := {word for word in words if re.fullmatch(r"C\d+", word)}):
            continue
        if not isinstance(scope, ast.FunctionDef | ast.With) and len(here) > 1:
            continue  # a table, not a row of it
        pairs |= {(op, label) for op in words & ops for label in here}
    return pairs


TESTED = set().union(*map(tested_pairs, TESTS)) if TESTS else set()


def test_there_are_operations():
    assert len(OPS) > 30


@each_op
def test_stanzas_in_order(op: Function):
    wanted = [name for name in STANZAS if name != "Constraints" or labels(op)]
    present = [name for name in re.findall(r"^([A-Z][a-z]+):", op.doc, re.M) if name in STANZAS]
    assert [name for name in present if name != "Constraints" or labels(op)] == wanted, op.where


@each_op
def test_first_line_is_a_sentence(op: Function):
    first = op.doc.split("\n\n")[0]
    assert re.match(r"[A-Z][a-z]+\b", first) and first.endswith("."), op.where


@each_op
def test_has_an_example(op: Function):
    assert re.search(r"^\s*>>> ", op.doc, re.M), op.where


@each_op
def test_has_a_golden_case(op: Function):
    assert op.node.name in CASES, op.where


@each_op
def test_labels_are_those_required(op: Function):
    assert labels(op) == raised_labels(op), op.where


@each_op
def test_each_constraint_has_a_test(op: Function):
    untested = {label for label in labels(op) if (op.node.name, label) not in TESTED}
    assert untested == set(), f"{op.where}: no test names both the operation and the label"
