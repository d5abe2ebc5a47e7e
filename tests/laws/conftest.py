"""What tests of laws and constraints share."""

import jaxtyping
import pytest


@pytest.fixture
def unchecked_shapes():
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", before)
