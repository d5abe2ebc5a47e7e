"""What the equivalence tests draw from, and how a kernel is judged: by the reference in float64 on the same numbers."""

import importlib
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, settings
from hypothesis import strategies as st

from golden.tolerance import judge
from golden.values import dtype_named
from gpu.number import DTYPES
from gpu.registry import TWIN_ROOMS, Variant, variants
from refimpl import CONTENTS
from tests.laws.strategies import seeds

__all__ = [
    "assert_equivalent", "dtypes", "each_kernel", "examples", "numbers", "reference", "seeds", "specials", "widths",
]  # fmt: skip

examples = settings(max_examples=max(50, settings.default.max_examples))
dtypes = st.sampled_from(DTYPES)
widths = st.sampled_from((1, 2, 31, 32, 33, 127, 257))  # around one warp, and several passes of a block
specials = st.sampled_from((None, None, None, np.nan, np.inf, -np.inf))


def each_kernel(*ops: str) -> Any:
    """Run a test with every kernel of some operations."""
    kernels = [variant for op in ops for variant in variants(op)]
    return pytest.mark.parametrize("kernel", kernels, ids=lambda variant: f"{variant.op}-{variant.name}")


def numbers(seed: int, *shape: int, dtype: str = "float32", special: float | None = None) -> np.ndarray:
    """Draw standard normal numbers as a dtype holds them, one of them replaced."""
    drawn = np.random.default_rng(seed).standard_normal(shape)
    if special is not None and drawn.size:
        drawn.flat[seed % drawn.size] = special
    return drawn.astype(dtype_named(dtype))


def reference(op: str) -> Any:
    """Return the operation of the reference."""
    modules = (importlib.import_module(f"refimpl.{name}") for name, _ in CONTENTS if name.split(".")[0] in TWIN_ROOMS)
    return next(getattr(module, op) for module in modules if op in module.__all__)


def assert_equivalent(
    kernel: Variant, arguments: dict[str, Any], dtype: str, *, terms: float = 1, exact: bool = False, axis: int = -1
) -> None:
    """Judge a kernel by the reference in float64 on the same numbers; ``terms`` as in golden.tolerance.

    A result is judged at the scale of the row that it belongs to, which lies along ``axis``.
    """
    assume(kernel.takes(**arguments))
    wide = {name: _wide(value) for name, value in arguments.items()}
    with np.errstate(all="ignore"):
        truth = reference(kernel.op)(**wide)
    result, truth = (np.moveaxis(x, axis, -1) if np.ndim(x) else x for x in (kernel.call(**arguments), truth))
    verdict = judge(result, np.asarray(truth), dtype, exact=exact, terms=max(1, round(terms)))
    assert verdict.passed, verdict.reason


def _wide(value: Any) -> Any:
    is_float = isinstance(value, np.ndarray | np.generic) and value.dtype.kind not in "biu"
    return value.astype(np.float64) if is_float else value
