"""How the tests run: shapes checked at every call of refimpl, hypothesis bounded and reproducible."""

import sys

from hypothesis import HealthCheck, settings
from jaxtyping import install_import_hook

if any(name.split(".")[0] == "refimpl" for name in sys.modules):
    raise RuntimeError("refimpl was imported before the hook that checks its shapes")

install_import_hook("refimpl", "beartype.beartype")

settings.register_profile(
    "house",
    max_examples=30,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("thorough", settings.get_profile("house"), max_examples=500, derandomize=False)
settings.load_profile("house")
