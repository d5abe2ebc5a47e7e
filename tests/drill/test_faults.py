"""The drill can be run: each fault is an edit that fits the sources as they are, and its checks are there."""

import ast

import pytest

from tests.drill.__main__ import FAULTS
from tests.drill.faults import Fault
from tests.mirror.tree import ROOT


def test_there_are_forty_kinds():
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) >= 40
    assert len({fault.what for fault in FAULTS}) == len(FAULTS)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_fault_fits(fault: Fault):
    text = (ROOT / fault.file).read_text(encoding="utf-8")
    assert fault.new is None or (text.count(fault.old) == 1 and fault.new != fault.old)
    for check in fault.checks:
        path, _, test = check.partition("::")
        tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
        tests = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        assert not test or test.partition("[")[0] in tests
