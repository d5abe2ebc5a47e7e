"""The node cases of the onnx wheel, run through refimpl: what passes is counted, and what does not is listed."""

import functools
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.backend.test.case.node import collect_testcases
from onnx.backend.test.runner import Runner

from tests.onnx.nodes import NODES

COUNTS = {
    "Attention": 93, "RotaryEmbedding": 8, "RMSNormalization": 19, "LayerNormalization": 19, "GroupNormalization": 2,
    "Gelu": 4, "Swish": 1, "Softmax": 7, "LogSoftmax": 7, "TopK": 7, "TensorScatter": 3, "Conv": 6, "ConvTranspose": 11,
    "CausalConvWithState": 13, "QuantizeLinear": 13, "DequantizeLinear": 14,
}  # fmt: skip
EXCEPTIONS = {
    "test_attention_bidirectional_window": "out of scope: a window is causal here, and has no right side",
    "test_convtranspose_3d": "out of scope: images have two axes, not three",
}
"""Every case that does not pass, with its reason."""


@functools.cache
def cases() -> dict[str, list[Any]]:
    """Return the cases of one node that is not expanded into others, by operator."""
    found: dict[str, list[Any]] = {operator: [] for operator in COUNTS}
    with np.errstate(all="ignore"):  # the cases are computed when they are collected
        collected = collect_testcases(None)
    for case in collected:
        nodes = case.model.graph.node
        if len(nodes) == 1 and nodes[0].op_type in found and not case.name.endswith("_expanded"):
            found[nodes[0].op_type].append(case)
    return found


def as_array(x: Any) -> np.ndarray:
    return numpy_helper.to_array(x) if isinstance(x, onnx.TensorProto) else np.asarray(x)


def attributes_of(node: Any) -> dict[str, Any]:
    held = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}
    return {name: value.decode() if isinstance(value, bytes) else value for name, value in held.items()}


def check(case: Any) -> None:
    """Run a case through refimpl and compare by the wheel's own rule; integers and codes of few bits exactly."""
    node = case.model.graph.node[0]
    for inputs, outputs in case.data_sets:
        given = iter(map(as_array, inputs))
        arguments = [next(given) if name else None for name in node.input]
        results = NODES[node.op_type](*arguments, **attributes_of(node))
        several = results if isinstance(results, tuple) else (results,)
        expected, made = list(map(as_array, outputs)), list(several[: len(node.output)])
        made = [result for result, name in zip(made, node.output, strict=True) if name]
        for one, other in zip(expected, made, strict=True):
            assert one.dtype == other.dtype
        if all(x.dtype in (np.float16, np.float32, ml_dtypes.bfloat16) for x in expected):
            Runner.assert_similar_outputs(expected, made, case.rtol, case.atol)
        else:
            for one, other in zip(expected, made, strict=True):
                np.testing.assert_array_equal(other.astype(np.float64), one.astype(np.float64))


@pytest.mark.parametrize("operator", COUNTS)
def test_node_cases(operator: str, record_property):
    failed = {}
    for case in cases()[operator]:
        try:
            check(case)
        except Exception as error:  # whatever it is, the case does not pass
            failed[case.name] = f"{type(error).__name__}: {error}"
    total = len(cases()[operator])
    listed = {case.name for case in cases()[operator]} & EXCEPTIONS.keys()
    reasons = [[name, EXCEPTIONS[name]] for name in sorted(listed)]
    record_property("onnx", [operator, total - len(failed), total, reasons])
    assert total == COUNTS[operator]
    assert {name: reason for name, reason in failed.items() if name not in listed} == {}
    assert sorted(listed - failed.keys()) == []


def test_exceptions_are_cases():
    assert EXCEPTIONS.keys() <= {case.name for group in cases().values() for case in group}


def test_nine_in_ten_of_attention():
    names = {case.name for case in cases()["Attention"]}
    assert len(names & EXCEPTIONS.keys()) <= len(names) / 10
