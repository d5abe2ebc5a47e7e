"""Importing the packages asks for no GPU library and no network."""

import json
import subprocess
import sys

import pytest

GPU = {"cupy", "numba.cuda", "torch"}
NETWORK = {"huggingface_hub", "requests", "httpx", "urllib.request", "http.client"}


@pytest.mark.parametrize("package", ["refimpl", "gpu", "golden"])
def test_import_is_light(package: str):
    program = f"import sys, json, {package}; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert (GPU | NETWORK) & set(json.loads(done.stdout)) == set()
