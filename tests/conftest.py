"""How the tests run: shapes checked at every call of refimpl, hypothesis bounded and reproducible."""

import sys

import jaxtyping
import pytest
from hypothesis import HealthCheck, Phase, settings
from jaxtyping import install_import_hook

if any(name.split(".")[0] == "refimpl" for name in sys.modules):
    raise RuntimeError("refimpl was imported before the hook that checks its shapes")

# An int may stand for a float, as PEP 484 has it.
install_import_hook("refimpl", "beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))")

settings.register_profile(
    "house",
    max_examples=30,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("drill", settings.get_profile("house"), phases=(Phase.explicit, Phase.generate))
settings.register_profile("thorough", settings.get_profile("house"), max_examples=500, derandomize=False)
settings.load_profile("house")


@pytest.fixture
def unchecked_shapes():
    """Leave shapes to the operations, as in use."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", before)
