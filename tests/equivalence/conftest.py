"""Every kernel of these tests runs through the interpreter, also where there is a GPU."""

import pytest

from gpu import device


@pytest.fixture(scope="module", autouse=True)
def emulated():
    with device.use("emulated"):
        yield
