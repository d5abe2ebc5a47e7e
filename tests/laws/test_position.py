"""Laws of embedding, learned positions and the rotation itself; the scalings are in test_rope_scaling.py."""

import cmath

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refimpl.llm.embedding import embedding
from refimpl.llm.position import learned_position, rope, rope_table
from refimpl.llm.rope_scaling import rope_frequencies
from tests.laws.strategies import assert_near, normal, seeds, sizes

layouts = st.booleans()
positions = st.integers(0, 4000)


def turned(x, position, *, interleaved=False, dim=None, dtype=np.float64):
    """Return the heads x [N H] turned as at one position."""
    inv_freq, factor = rope_frequencies(dim or x.shape[-1], 100.0)
    cos, sin = rope_table(np.array([position]), inv_freq, factor, dtype)
    return rope(x[None], cos, sin, interleaved=interleaved)[0]


@given(seeds, sizes, positions, layouts)
def test_rope_keeps_norms(seed, N, position, interleaved):
    x = normal(seed, N, 8)
    y = turned(x, position, interleaved=interleaved)
    assert_near(np.linalg.norm(y, axis=-1), np.linalg.norm(x, axis=-1), terms=8)


@given(seeds, positions, positions, positions, layouts)
def test_rope_knows_only_differences(seed, a, b, shift, interleaved):
    q, k = normal(seed, 1, 8), normal(seed + 1, 1, 8)
    near = turned(q, a, interleaved=interleaved) @ turned(k, b, interleaved=interleaved).T
    far = turned(q, a + shift, interleaved=interleaved) @ turned(k, b + shift, interleaved=interleaved).T
    assert_near(far, near, scale=20.0 * 8000)  # an angle of size p carries an error of p eps


@given(seeds, positions, layouts)
def test_rope_is_a_product_of_complex_numbers(seed, position, interleaved):
    x, R = normal(seed, 2, 8), 4
    pairs = [(2 * i, 2 * i + 1) if interleaved else (i, i + R) for i in range(R)]
    y = turned(x, position, interleaved=interleaved)
    for n in range(2):
        for i, (a, b) in enumerate(pairs):
            wanted = complex(x[n, a], x[n, b]) * cmath.exp(1j * position * 100.0 ** (-2 * i / 8))
            assert complex(y[n, a], y[n, b]) == pytest.approx(wanted, abs=1e-11)


@given(seeds, positions)
def test_rope_layouts_are_a_permutation_apart(seed, position):
    x, order = normal(seed, 2, 8), [0, 2, 4, 6, 1, 3, 5, 7]
    halves, interleaved = turned(x[:, order], position), turned(x, position, interleaved=True)
    assert np.array_equal(halves, interleaved[:, order])


@given(seeds, positions, layouts)
def test_partial_rope_passes_the_rest_on(seed, position, interleaved):
    x = normal(seed, 2, 10)
    y = turned(x, position, interleaved=interleaved, dim=6)
    assert np.array_equal(y[:, 6:], x[:, 6:])
    assert np.array_equal(y[:, :6], turned(x[:, :6], position, interleaved=interleaved))


@given(seeds, layouts)
def test_rope_composes_and_undoes(seed, interleaved):
    x = normal(seed, 2, 8)
    twice = turned(turned(x, 3, interleaved=interleaved), 4, interleaved=interleaved)
    assert_near(twice, turned(x, 7, interleaved=interleaved), terms=8)
    assert_near(turned(turned(x, 5, interleaved=interleaved), -5, interleaved=interleaved), x, terms=8)
    assert np.array_equal(turned(x, 0, interleaved=interleaved), x)


def test_rope_leaves_its_input_alone():
    x = normal(0, 3, 2, 8)
    before = x.copy()
    rope(x, np.zeros((3, 4)), np.ones((3, 4)))
    assert np.array_equal(x, before)


def test_neighbouring_far_positions_differ():  # ≡ CONVENTIONS row 10: bfloat16 would make 15962 into 15936
    cos, sin = rope_table(np.array([15936, 15962]), np.ones(1))
    assert cos.dtype == np.float32
    assert_near(cos[:, 0], [np.cos(15936.0), np.cos(15962.0)])
    assert_near(sin[:, 0], [np.sin(15936.0), np.sin(15962.0)])


def test_rope_table_rounds_once():
    positions, inv_freq = np.array([0, 1, 131071]), rope_frequencies(128, 5e5)[0]
    wide, narrow = rope_table(positions, inv_freq, 1.5, np.float64), rope_table(positions, inv_freq, 1.5)
    for exact, rounded in zip(wide, narrow, strict=True):
        assert np.array_equal(exact.astype(np.float32), rounded)
    assert wide[0][0, 0] == 1.5


@given(seeds, sizes, sizes)
def test_embedding_is_a_product_with_one_hot_rows(seed, T, V):
    ids = np.random.default_rng(seed).integers(0, V, T)
    table = normal(seed + 1, V, 5)
    assert np.array_equal(embedding(ids, table), np.eye(V)[ids] @ table)


@given(seeds, sizes)
def test_learned_position_adds_its_row(seed, T):
    x, table = normal(seed, T, 5), normal(seed + 1, 12, 5)
    start = seed % 3
    assert np.array_equal(learned_position(x, np.arange(start, start + T), table), x + table[start : start + T])


def test_no_tokens():
    none = np.zeros(0, np.int64)
    assert embedding(none, np.zeros((3, 2))).shape == (0, 2)
    assert learned_position(np.zeros((0, 2)), none, np.zeros((3, 2))).shape == (0, 2)
