"""What the laws draw from, and how near two results must be."""

import ml_dtypes
import numpy as np
from hypothesis import strategies as st

__all__ = ["DTYPES", "assert_near", "heads", "normal", "seeds", "sizes"]

DTYPES = tuple(np.dtype(t) for t in (np.float16, ml_dtypes.bfloat16, np.float32, np.float64))

seeds = st.integers(0, 2**32 - 1)
sizes = st.integers(1, 9)
heads = st.sampled_from([(1, 1), (3, 3), (6, 2), (4, 1)])  # (N, K): one, multi-head, grouped, multi-query


def normal(seed: int, *shape: int, dtype=np.float64) -> np.ndarray:
    """Draw a standard normal array."""
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def assert_near(actual, wanted, terms: int = 1, scale: float | None = None) -> None:
    """Demand that two results differ by no more than sums of ``terms`` products of size ``scale`` may round."""
    actual, wanted = np.asarray(actual), np.asarray(wanted, np.float64)
    assert actual.shape == wanted.shape
    eps = float(ml_dtypes.finfo(actual.dtype).eps)
    scale = float(np.abs(wanted).max(initial=0.0)) if scale is None else scale
    np.testing.assert_allclose(actual.astype(np.float64), wanted, rtol=0, atol=(terms + 8) * eps * scale)
