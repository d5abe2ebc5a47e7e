"""Linear maps, lookups and attention by packed matrices, beside the specification in float64."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu import packed
from gpu.namespace import namespace
from refimpl import operations
from refimpl.contract import ContractError
from refimpl.models.tensor import Tensor
from tests.laws.strategies import normal, seeds

LENGTHS, KINDS = st.integers(1, 70), st.sampled_from(["", "bool", "added"])


def tensor(x: np.ndarray) -> Tensor:
    return Tensor(x.dtype.name, x.shape, x)


@given(seeds, st.integers(1, 40), st.integers(1, 90), st.integers(1, 100), st.sampled_from([np.float32, np.float16]))
def test_linear(seed, tokens, width, rows, dtype):
    x, w, b = normal(seed, tokens, width), normal(seed + 1, rows, width).astype(dtype), normal(seed + 2, rows)
    y = packed.linear(x.astype(np.float32), packed.packed_matrix(tensor(w)), b.astype(np.float32))
    np.testing.assert_allclose(y, operations.linear(x, w.astype(np.float64), b), rtol=0, atol=1e-5 * width**0.5 * 4)


def test_every_thread_s_part_is_the_same_sum():
    x, w = normal(0, 64, 300, dtype=np.float32), packed.packed_matrix(tensor(normal(1, 500, 300, dtype=np.float32)))
    whole = packed.linear(x, w)
    np.testing.assert_array_equal(whole, packed.linear(x, w, threaded=False))
    np.testing.assert_array_equal(whole[5:6], packed.linear(x[5:6], w))  # a row alone, bit by bit


def test_matrices_are_rounded_as_asked():
    w = normal(0, 40, 8, dtype=np.float32)
    kept, rounded = packed.packed_matrix(tensor(w)), packed.packed_matrix(tensor(w), ml_dtypes.bfloat16)
    ids = np.array([39, 0, 7])
    np.testing.assert_array_equal(packed.embedding(ids, kept), w[ids])
    np.testing.assert_array_equal(packed.embedding(ids, rounded), w[ids].astype(ml_dtypes.bfloat16).astype(np.float32))
    assert rounded.shape == (40, 8) and rounded.packed.data.nbytes < kept.packed.data.nbytes


@given(seeds, LENGTHS, LENGTHS, st.sampled_from([(4, 4), (4, 2)]), st.booleans(), KINDS)
def test_attention(seed, T, S, heads, causal, kind):
    (N, K), seen = heads, np.random.default_rng(seed).random(S) > 0.3
    q, k, v = normal(seed, T, N, 6), normal(seed + 1, S, K, 6), normal(seed + 2, S, K, 6)
    bias = np.where(seen, normal(seed + 3, N, T, S), -np.inf)
    mask = {"": None, "bool": np.broadcast_to(seen, (T, S)), "added": bias}[kind]
    expected = operations.attention(q, k, v, causal=causal, mask=mask, scale=0.5)
    narrow = mask if mask is None or mask.dtype == bool else mask.astype(np.float32)
    x = packed.attention(*(x.astype(np.float32) for x in (q, k, v)), causal=causal, mask=narrow, scale=0.5)
    np.testing.assert_allclose(x, expected, rtol=0, atol=2e-5)


def test_long_texts_take_the_kernels():
    q = normal(0, 80, 2, 8, dtype=np.float32)
    ops = namespace("cpu")
    np.testing.assert_array_equal(ops.attention(q, q, q), packed.attention(q, q, q))
    np.testing.assert_array_equal(ops.attention(q[:9], q, q), operations.attention(q[:9], q, q))


def test_what_does_not_fit():
    x, q = np.zeros((2, 3), np.float32), np.zeros((2, 3, 4))
    w = packed.packed_matrix(tensor(np.zeros((4, 5), np.float32)))
    for label, call in {
        "C1": lambda: packed.linear(x, w), "C1:": lambda: packed.embedding(np.array([4]), w),
        "C1: 2": lambda: packed.attention(q, q[:, :2], q[:, :2]), "C2": lambda: packed.attention(q, q, q[1:]),
        "C3": lambda: packed.attention(q, q, q, mask=np.ones((1, 1), bool)),
    }.items():  # fmt: skip
        with pytest.raises(ContractError, match=f"^{label}"):
            call()
