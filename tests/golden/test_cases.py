"""The cases themselves: each has a source, accepts a right implementation and rejects a wrong one."""

import numpy as np
import pytest

from golden.adapters import implementation
from golden.case import Case, read_cases, vector_files
from golden.conventions import ROWS, markdown
from golden.derive import DERIVATIONS
from golden.make import make_file
from golden.planted import PLANTED, as_operation
from golden.verify import Implementation, run_case, verify
from tests.mirror.tree import ROOT

CASES = read_cases()
REFERENCE = {candidate.op: candidate.call for candidate in implementation("refimpl").candidates}
OPERATIONS = {op for op, call in REFERENCE.items() if getattr(call, "role", "op") == "op"}


def each_case(test):
    return pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)(test)


def in_float64(function):
    def wide(value):
        is_float = isinstance(value, np.ndarray) and value.dtype.kind not in "iub"
        return value.astype(np.float64) if is_float else value

    return lambda **arguments: function(**{name: wide(value) for name, value in arguments.items()})


@each_case
def test_refimpl_passes(case: Case):
    outcome = run_case(case, REFERENCE[case.op])
    assert outcome.status == "pass", outcome.reason


@each_case
def test_second_derivation_passes(case: Case):
    derived = as_operation(in_float64(DERIVATIONS[case.derive or case.op]), case)
    outcome = run_case(case, derived)
    assert outcome.status == "pass", outcome.reason


@each_case
def test_planted_fault_is_rejected(case: Case):
    assert case.rejects, "a case that rejects nothing judges nothing"
    outcomes = {name: run_case(case, as_operation(PLANTED[name], case)) for name in case.rejects}
    assert {name: outcome.status for name, outcome in outcomes.items()} == dict.fromkeys(case.rejects, "fail")


def test_every_planted_fault_is_named_by_a_case():
    assert set(PLANTED) == {name for case in CASES for name in case.rejects}


@each_case
def test_source_is_named_and_is_not_the_judged(case: Case):
    assert case.source and "refimpl" not in case.source and case.corner
    assert case.id.startswith(f"{case.op}.")


def test_ids_are_unique():
    assert len({case.id for case in CASES}) == len(CASES)


def test_conventions_are_pinned_by_cases():
    offered = {(row.number, choice.name) for row in ROWS for choice in row.choices if choice.here != "no"}
    pinned = {(case.row, case.choice) for case in CASES if case.row}
    assert pinned - offered == set(), "a case pins a choice that no row has"
    assert offered - pinned == set(), "a choice that is offered has no case"


def test_page_of_conventions_is_current():
    assert (ROOT / "docs" / "conventions.md").read_text(encoding="utf-8") == markdown(CASES), "run make docs"


@pytest.mark.parametrize("path", vector_files(), ids=lambda path: path.name)
def test_vectors_come_out_the_same_again(path):
    assert make_file(path, write=False) == []


def test_missing_operations_are_said():
    assert {outcome.status for outcome in verify(CASES[:3], Implementation("nobody", ()))} == {"missing"}


FLOATS = {"float32", "bfloat16", "float16"}


def float_inputs(case: Case) -> set[str]:
    arrays = [value for call in case.calls for value in call.values() if isinstance(value, np.ndarray)]
    return {array.dtype.name for array in arrays} & FLOATS


@pytest.mark.parametrize("op", sorted({case.op for case in CASES if float_inputs(case) and case.op in OPERATIONS}))
def test_operation_is_pinned_in_every_dtype(op: str):
    assert set().union(*[float_inputs(case) for case in CASES if case.op == op]) == FLOATS
