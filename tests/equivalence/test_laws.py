"""Laws that need no reference, demanded of the kernels themselves: softmax and rotary positions.

Those of attention stand in test_attention and test_paged, of experts in test_moe, of draws in test_sampler.
"""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gpu.basics.activation import log_softmax, softmax
from gpu.llm.position import rope
from refimpl.llm.position import rope_table
from refimpl.llm.rope_scaling import rope_frequencies
from tests.equivalence.strategies import dtypes, examples, numbers, seeds, widths


@examples
@given(seeds, widths, st.integers(-8, 8))
def test_softmax_ignores_a_shift(seed, width, shift):
    x = np.round(numbers(seed, 3, width) * 16) / 16  # so that the sum with the shift is exact
    assert np.array_equal(softmax(x), softmax(x + np.float32(shift)))
    assert np.array_equal(log_softmax(x), log_softmax(x + np.float32(shift)))


@examples
@given(seeds, widths, dtypes)
def test_softmax_is_a_law(seed, width, dtype):
    p = softmax(numbers(seed, 2, width, dtype=dtype)).astype(np.float64)
    assert (p >= 0).all()
    step = {"float32": 1e-7, "bfloat16": 4e-3, "float16": 5e-4}[dtype]
    np.testing.assert_allclose(p.sum(-1), 1, rtol=0, atol=width * step)


def turned(x, positions, interleaved):
    """Rotate one head at some positions."""
    return rope(x, *rope_table(positions, rope_frequencies(x.shape[-1])[0]), interleaved=interleaved)


@examples
@given(seeds, st.integers(0, 5000), st.sampled_from((2, 16, 34)), st.booleans())
def test_rope_preserves_norms(seed, start, width, interleaved):
    x = numbers(seed, 4, 2, width)
    y = turned(x, np.arange(start, start + 4), interleaved)
    np.testing.assert_allclose(np.linalg.norm(y, axis=-1), np.linalg.norm(x, axis=-1), rtol=1e-5)


@examples
@given(seeds, st.integers(0, 500), st.integers(0, 500), st.sampled_from((2, 16, 34)), st.booleans())
def test_rope_products_depend_on_differences_alone(seed, shift, apart, width, interleaved):
    q, k = numbers(seed, 2, 1, 1, width)
    near = (turned(q, np.array([apart]), interleaved) * turned(k, np.array([0]), interleaved)).sum()
    far = (turned(q, np.array([apart + shift]), interleaved) * turned(k, np.array([shift]), interleaved)).sum()
    np.testing.assert_allclose(near, far, atol=2e-4 * width)
