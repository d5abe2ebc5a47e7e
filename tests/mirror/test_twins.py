"""gpu mirrors refimpl: every operation has its twin at the same path, with the same signature as text, the same
constraints, a launcher, a variant that golden judges, an equivalence test by hypothesis, and laws."""

import ast
import re

import pytest

from gpu.registry import variants
from tests.mirror.test_stanzas import OPS, labels, names_of, raised_labels
from tests.mirror.tree import ROOT, Function, Module, modules, public_functions, roles

ROOMS = ("basics", "llm", "media", "efficient")
TWINS = {(f.module.name, f.node.name): f for m in modules("gpu") for f in public_functions(m) if "op" in roles(f.node)}
LAUNCHERS = {(m.name, f.node.name) for m in modules("gpu") for f in public_functions(m) if roles(f.node) == ["kernel"]}
SCALAR = {"uniform"}  # a number from three numbers: computed where it is asked for, by philox


def each_op(test):
    return pytest.mark.parametrize("op", OPS, ids=lambda op: f"{op.module.name}.{op.node.name}")(test)


def twin_of(op: Function) -> Function:
    return TWINS[op.module.name.replace("refimpl", "gpu", 1), op.node.name]


def signature(function: Function) -> str:
    """Return the parameters with their annotations and defaults, and what is returned, as text."""
    returns = ast.unparse(function.node.returns) if function.node.returns else ""
    return f"{ast.unparse(function.node.args)} -> {returns}"


@each_op
def test_has_its_twin(op: Function):
    where = op.module.name.replace("refimpl", "gpu", 1)
    assert (where, op.node.name) in TWINS, f"gpu has no {op.node.name} where refimpl has {op.where}"


@each_op
def test_twin_has_the_same_signature(op: Function):
    assert signature(twin_of(op)) == signature(op)


@each_op
def test_twin_raises_the_same_constraints(op: Function):
    assert raised_labels(twin_of(op)) == labels(op)


@each_op
def test_twin_says_how_it_runs(op: Function):
    assert len(twin_of(op).doc) > 20 and twin_of(op).doc != op.doc


@each_op
def test_twin_has_a_launcher(op: Function):
    twin = twin_of(op)
    assert op.node.name in SCALAR or (twin.module.name, f"{op.node.name}_into") in LAUNCHERS


def test_there_is_no_twin_of_nothing():
    wanted = {(op.module.name.replace("refimpl", "gpu", 1), op.node.name) for op in OPS}
    assert set(TWINS) - wanted == set()


def given_tests(module: Module) -> set[str]:
    """Return the words of the tests of a module that hypothesis drives, with those of the functions they call."""
    functions = {node.name: node for node in module.tree.body if isinstance(node, ast.FunctionDef)}
    words: set[str] = set()
    for name, node in functions.items():
        if name.startswith("test_") and any("given" in ast.unparse(d) for d in node.decorator_list):
            reached = names_of(node)
            words |= reached | {name}
            for helper in reached & set(functions):
                words |= names_of(functions[helper])
    return words


EQUIVALENCE = set().union(*(given_tests(m) for m in modules("tests") if "equivalence" in m.path.parts))
LAWS = set().union(*(names_of(m.tree) for m in modules("tests") if "laws" in m.path.parts))


@each_op
def test_kernels_are_compared_by_hypothesis(op: Function):
    assert any(re.search(rf"(^|_){op.node.name}(_|$)", word) for word in EQUIVALENCE)


@each_op
def test_has_laws(op: Function):
    assert op.node.name in LAWS


@each_op
def test_golden_judges_its_kernels(op: Function):
    assert variants(op.node.name)


@pytest.mark.parametrize("source", sorted((ROOT / "gpu").rglob("*.cu")), ids=lambda path: path.name)
def test_cuda_source_stands_beside_its_launcher(source):
    launchers = [path for path in source.parent.glob("*.py") if source.name in path.read_text(encoding="utf-8")]
    assert launchers, f"no module beside {source.name} names it"
