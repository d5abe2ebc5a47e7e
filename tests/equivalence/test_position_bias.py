"""Every kernel of biases by distance gives what the reference gives; trailing RoPE on the kernel."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu import device
from gpu.llm import position_bias as twin
from gpu.llm.position import rope
from refimpl.contract import ContractError
from refimpl.llm.position import rope_table
from tests.equivalence.strategies import assert_equivalent, dtypes, each_kernel, examples, numbers, seeds, specials
from tests.laws.test_position_bias import BROKEN

lengths = st.sampled_from((0, 1, 2, 3, 17, 33))
key_counts = st.sampled_from((0, 1, 2, 31, 33, 129, 257))
head_counts = st.sampled_from((1, 3, 12))
tables = st.sampled_from(((32, 128), (8, 20), (4, 3)))
head_widths = st.sampled_from(((2, 1), (33, 3), (64, 32), (65, 31), (5, 0)))  # (H, J)


@each_kernel("alibi_bias")
@examples
@given(seeds, head_counts, lengths, key_counts, dtypes, specials)
def test_alibi_bias(kernel, seed, N, T, S, dtype, special):
    arguments = {"slopes": numbers(seed, N, dtype=dtype, special=special), "T": T, "S": S}
    assert_equivalent(kernel, arguments, dtype)


@each_kernel("t5_bias")
@examples
@given(seeds, head_counts, lengths, key_counts, tables, st.booleans(), dtypes, specials)
def test_t5_bias(kernel, seed, N, T, S, shape, bidirectional, dtype, special):
    table = numbers(seed, shape[0], N, dtype=dtype, special=special)
    rules = {"max_distance": shape[1] * 2, "bidirectional": bidirectional}
    assert_equivalent(kernel, {"table": table, "T": T, "S": S} | rules, dtype, exact=True)


@each_kernel("rope")
@examples
@given(seeds, st.sampled_from((1, 2, 9)), st.sampled_from((1, 3, 9)), head_widths, dtypes, st.booleans())
def test_trailing_rope(kernel, seed, T, N, HJ, dtype, interleaved):
    angles = 100 * numbers(seed, T, HJ[1])
    arguments = {"x": numbers(seed + 1, T, N, HJ[0], dtype=dtype), "cos": np.cos(angles), "sin": np.sin(angles)}
    assert_equivalent(kernel, arguments | {"interleaved": interleaved, "trailing": True}, dtype, terms=16)


@examples
@given(seeds, st.integers(0, 500), st.integers(0, 500), st.integers(0, 500), st.booleans())
def test_trailing_rope_of_the_kernel_keeps_norms_and_knows_only_differences(seed, a, b, shift, interleaved):
    x, inv_freq = numbers(seed, 4, 1, 20), 100.0 ** (-np.arange(8) / 8)
    x[2:] = x[:2]
    y = rope(x, *rope_table(np.array([a, b, a + shift, b + shift]), inv_freq), interleaved=interleaved, trailing=True)
    assert np.array_equal(y[..., :4], x[..., :4])
    assert np.allclose(np.linalg.norm(y, axis=-1), np.linalg.norm(x, axis=-1), rtol=1e-5)
    assert np.allclose(y[0, 0] @ y[1, 0], y[2, 0] @ y[3, 0], atol=2e-5)


@examples
@given(seeds, lengths, key_counts, st.integers(0, 40), dtypes)
def test_biases_of_the_kernels_know_only_distances(seed, T, S, shift, dtype):
    slopes, table = numbers(seed, 3, dtype=dtype), numbers(seed, 8, 3, dtype=dtype)
    for near, far in (
        (twin.alibi_bias(slopes, T, S), twin.alibi_bias(slopes, T, S + shift)),
        (twin.t5_bias(table, T, S), twin.t5_bias(table, T, S + shift)),
    ):
        assert np.array_equal(far[:, :, shift:], near) and np.array_equal(near[:, 1:, 1:], near[:, :-1, :-1])


def test_no_scores_take_no_launch():
    with device.recording() as launches:
        assert twin.alibi_bias(np.ones(2, np.float32), 0, 3).shape == (2, 0, 3)
        assert twin.t5_bias(np.ones((4, 2), np.float32), 3, 0).shape == (2, 3, 0)
    assert launches == []


@pytest.mark.parametrize(
    ("function", "label", "arguments", "keywords"), BROKEN, ids=[f"{row[0].__name__}-{row[1]}" for row in BROKEN]
)
def test_twin_refuses_by_label(function, label, arguments, keywords):
    with pytest.raises(ContractError, match=f"^{label}: "):
        getattr(twin, function.__name__)(*arguments, **keywords)
