"""Which safetensors files must be read and which refused; in which order GGUF files keep the rows of q and k."""

import tracemalloc

import numpy as np
import pytest

from refimpl.contract import CheckpointError
from refimpl.files.checkpoint import read_safetensors
from refimpl.models.gguf_names import halves_order
from refimpl.models.tensor import Tensor
from tests.outside.faults import load_case

CASE = load_case("safetensors_headers")


@pytest.mark.parametrize("name", CASE.expected)
def test_safetensors_headers(name, tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(CASE.inputs["files"][name])
    tracemalloc.start()
    try:
        read_safetensors(path)
        verdict = "accept"
    except CheckpointError:
        verdict = "reject"
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert verdict == CASE.expected[name]
    assert peak < 2**20


def test_gguf_q_k_rows():
    """Rows of q and k are put back by the heads of each: of k by the key heads, which are fewer."""
    case = load_case("gguf_q_k_rows")
    heads = {"q": case.inputs["n_head"], "k": case.inputs["n_head_kv"]}
    for letter, count in heads.items():
        stored, rows = case.inputs[f"file_{letter}"], halves_order(count, case.settings["head_dim"])
        tensor = Tensor("float64", stored.shape, stored.astype(np.float64))
        np.testing.assert_array_equal(tensor.take_rows(rows).read(np.float64), case.expected[letter])
