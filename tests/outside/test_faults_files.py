"""The fault report that concerns the order of rows in GGUF files."""

import numpy as np
import pytest

from refimpl.llm.quantize import FORMATS, Tensor
from refimpl.models.families.gguf_names import halves_order
from tests.outside.faults import load_case


@pytest.mark.parametrize(("part", "heads"), [("q", "n_head"), ("k", "n_head_kv")])
def test_gguf_q_k_rows(part: str, heads: str):
    case = load_case("gguf_q_k_rows")
    order = halves_order(case.inputs[heads], case.settings["head_dim"])
    stored = case.inputs[f"file_{part}"]
    np.testing.assert_array_equal(stored[order], case.expected[part])
    assert not np.array_equal(order, halves_order(1, len(order)))  # the head count matters


@pytest.mark.parametrize("name", ["q8_0", "q4_k"])
def test_gguf_q_k_rows_in_blocks(name: str):
    case = load_case("gguf_q_k_rows")
    order = halves_order(case.inputs["n_head"], case.settings["head_dim"])
    data = np.random.default_rng(0).integers(0, 100, (len(order), FORMATS[name].bytes), np.uint8)
    tensor = Tensor(name, (len(order), FORMATS[name].elements), data)
    np.testing.assert_array_equal(tensor.take_rows(order).read(), tensor.read()[order])
