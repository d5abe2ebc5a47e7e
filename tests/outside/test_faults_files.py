"""Which safetensors files must be read and which refused."""

import tracemalloc

import pytest

from refimpl.contract import CheckpointError
from refimpl.files.checkpoint import read_safetensors
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
