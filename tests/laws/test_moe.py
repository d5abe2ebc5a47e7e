"""Mixtures of experts: three ways to one result, which no neighbour of a token changes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refimpl.basics.gated import swiglu_clamped
from refimpl.basics.linear import linear
from refimpl.contract import ContractError
from refimpl.efficient.expert_load import expert_load
from refimpl.llm.experts import expert_permutation, grouped_linear, indexed_linear
from refimpl.llm.mlp import gated_mlp
from refimpl.llm.moe import add_shared_expert, grouped_moe, indexed_moe, moe
from refimpl.llm.router import softmax_top_k
from tests.laws.strategies import DTYPES, assert_near, normal, seeds

MIXTURES = (moe, grouped_moe, indexed_moe)
counts, sizes = st.integers(0, 5), st.integers(1, 5)
activations = st.sampled_from(("gelu_tanh", "silu", "swiglu_clamped"))
limits = st.sampled_from((0.5, 7.0))
SCALE = 1e3  # above any number here: rounding is judged at the size of sums


def stacks(seed, E, D, F, has_bias=False, dtype=np.float64):
    """Draw the matrices of experts, and their biases."""
    shapes = [(E, F, D), (E, F, D), (E, D, F), *([(E, F), (E, F), (E, D)] if has_bias else [])]
    return [normal(seed + i, *shape, dtype=dtype) for i, shape in enumerate(shapes)]


def routed(seed, T, E, A):
    """Draw distinct experts for each token, and weights."""
    return softmax_top_k(normal(seed, T, E), min(A, E))


def each_mixture(test):
    return pytest.mark.parametrize("mixture", MIXTURES)(test)


@given(seeds, counts, sizes, sizes)
def test_permutation_sorts_and_can_be_undone(seed, T, A, E):
    ids = np.random.default_rng(seed).integers(0, E, (T, A))
    order, offsets = expert_permutation(ids, E)
    assert sorted(order.tolist()) == list(range(T * A))
    rows = [(ids.reshape(-1)[c], c) for c in order.tolist()]
    assert rows == sorted(rows), "by expert, and the tokens of an expert as they came"
    assert np.diff(offsets).tolist() == expert_load(ids, E).tolist()
    x, back = normal(seed, T * A, 3), np.empty((T * A, 3))
    back[order] = x[order]
    assert np.array_equal(back, x)


@given(seeds, st.lists(st.integers(0, 4), min_size=1, max_size=4), sizes, sizes, st.booleans())
def test_grouped_and_indexed_maps_are_the_maps_of_their_experts(seed, counts, D, outputs, has_bias):
    E, rows = len(counts), sum(counts)
    x, w, b = normal(seed, rows, D), normal(seed + 1, E, outputs, D), normal(seed + 2, E, outputs)
    owner = np.repeat(np.arange(E), counts)
    truth = [linear(x[r : r + 1], w[e], b[e] if has_bias else None)[0] for r, e in enumerate(owner)]
    truth = np.array(truth).reshape(rows, outputs)
    grouped = grouped_linear(x, w, np.cumsum([0, *counts]), b if has_bias else None)
    assert_near(grouped, truth, terms=D, scale=SCALE)
    assert_near(indexed_linear(x, w, owner[:, None], b if has_bias else None)[:, 0], truth, terms=D, scale=SCALE)


@given(seeds, counts, sizes, sizes, sizes, sizes, activations, limits, st.booleans(), st.booleans())
def test_dense_grouped_and_indexed_agree(seed, T, E, A, D, F, activation, limit, has_bias, weight_inputs):
    arguments = (normal(seed, T, D), *routed(seed, T, E, A), *stacks(seed + 1, E, D, F, has_bias))
    settings = {"activation": activation, "limit": limit, "weight_inputs": weight_inputs}
    dense, grouped, indexed = (mixture(*arguments, **settings) for mixture in MIXTURES)
    assert_near(grouped, dense, terms=D * F * A, scale=SCALE)
    assert_near(indexed, dense, terms=D * F * A, scale=SCALE)


@each_mixture
@given(seeds, counts, sizes, sizes, sizes)
def test_all_experts_by_softmax_are_the_dense_mixture(mixture, seed, T, E, D, F):
    x, logits, w = normal(seed, T, D), normal(seed + 1, T, E), stacks(seed + 2, E, D, F)
    probs = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    truth = sum(probs[:, e : e + 1] * gated_mlp(x, *(stack[e] for stack in w)) for e in range(E))
    assert_near(mixture(x, *softmax_top_k(logits, E), *w), truth, terms=D * F * E, scale=SCALE)


@each_mixture
@given(seeds, counts, sizes, sizes)
def test_one_expert_is_its_network(mixture, seed, T, D, F):
    x, w = normal(seed, T, D), stacks(seed + 1, 1, D, F)
    truth = gated_mlp(x, *(stack[0] for stack in w))
    assert_near(mixture(x, np.zeros((T, 1), np.int64), np.ones((T, 1)), *w), truth, terms=D * F, scale=SCALE)


@each_mixture
@given(seeds, counts, limits)
def test_the_limit_is_that_of_the_clamped_gate(mixture, seed, T, limit):
    x, w = normal(seed, T, 3), [9 * stack for stack in stacks(seed + 1, 1, 3, 4)]
    truth = swiglu_clamped(x @ w[0][0].T, x @ w[1][0].T, limit=limit) @ w[2][0].T
    settings = {"activation": "swiglu_clamped", "limit": limit}
    assert_near(gated_mlp(x, *(stack[0] for stack in w), **settings), truth, terms=12, scale=SCALE)
    mixed = mixture(x, np.zeros((T, 1), np.int64), np.ones((T, 1)), *w, **settings)
    assert_near(mixed, truth, terms=12, scale=SCALE)


@each_mixture
@given(seeds, st.integers(1, 3), sizes, sizes, sizes, st.booleans())
def test_no_neighbour_changes_a_token(mixture, seed, T, E, A, D, weight_inputs):
    """To the bit: whole numbers sum exactly in any order, and with F = 1 so does the last map."""
    draw = np.random.default_rng(seed)
    x = draw.integers(-4, 5, (T, D)).astype(np.float32)
    w = [draw.integers(-4, 5, shape).astype(np.float32) for shape in ((E, 1, D), (E, 1, D), (E, D, 1))]
    ids, weights = routed(seed, T, E, A)
    weights = np.round(weights * 8).astype(np.float32) / 8
    together = mixture(x, ids, weights, *w, weight_inputs=weight_inputs)
    poisoned = np.full_like(x, np.nan)
    for t in range(T):
        one = slice(t, t + 1)
        assert np.array_equal(mixture(x[one], ids[one], weights[one], *w, weight_inputs=weight_inputs)[0], together[t])
        poisoned[t] = x[t]
        assert np.array_equal(mixture(poisoned, ids, weights, *w, weight_inputs=weight_inputs)[t], together[t])
        poisoned[t] = np.nan


@each_mixture
@given(seeds, counts, st.integers(2, 6), sizes)
def test_experts_may_be_renamed(mixture, seed, T, E, A):
    x, (ids, weights), w = normal(seed, T, 3), routed(seed, T, E, A), stacks(seed + 1, E, 3, 4)
    names = np.random.default_rng(seed).permutation(E)
    moved = [stack[np.argsort(names)] for stack in w]
    assert_near(mixture(x, names[ids], weights, *moved), mixture(x, ids, weights, *w), terms=12 * A, scale=SCALE)


@each_mixture
@given(seeds, counts)
def test_an_expert_that_nobody_chose_is_not_read(mixture, seed, T):
    x, w = normal(seed, T, 3), stacks(seed + 1, 3, 3, 4, has_bias=True)
    for stack in w:
        stack[1] = np.nan
    ids = np.random.default_rng(seed).choice([0, 2], (T, 2))
    assert np.isfinite(mixture(x, ids, np.full((T, 2), 0.5), *w)).all()


@each_mixture
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_dtype_in_is_dtype_out_with_one_cast(mixture, dtype):
    x, w = normal(1, 5, 6, dtype=dtype), stacks(2, 4, 6, 3, has_bias=True, dtype=dtype)
    ids, weights = routed(3, 5, 4, 2)
    weights = weights.astype(np.float32)
    y = mixture(x, ids, weights, *w)
    assert y.dtype == dtype
    if dtype.itemsize == 2:
        wide = [each.astype(np.float32) for each in (x, *w)]
        assert np.array_equal(y, mixture(wide[0], ids, weights, *wide[1:]).astype(dtype))


@given(seeds, counts, sizes, sizes, activations)
def test_add_shared_expert_adds_a_share_of_a_network(seed, T, D, F, activation):
    y, x, w = normal(seed, T, D), normal(seed + 1, T, D), [stack[0] for stack in stacks(seed + 2, 1, D, F)]
    whole = gated_mlp(x, *w, activation=activation)
    assert_near(add_shared_expert(y, x, *w, activation=activation), y + whole, terms=D * F, scale=SCALE)
    half = add_shared_expert(y, x, *w, np.zeros((1, D)), activation=activation)
    assert_near(half, y + whole / 2, terms=D * F, scale=SCALE)


def a(*shape):
    return np.ones(shape)


IDS, W = np.array([[0, 1], [2, 0]]), (a(3, 4, 2), a(3, 4, 2), a(3, 2, 4))
MIXED, SHARED = (a(2, 2), IDS, a(2, 2)), (a(2, 2), a(2, 2), a(4, 2), a(4, 2), a(2, 4))
ENDS = ([0, 1, 2], [0, 2, 1, 2], [1, 1, 1, 2], [0, 1, 1, 3], [0, 1, 1, 1], [0.0, 1.0, 1.0, 2.0])
ODD_STACKS = (  # matrices and biases that do not fit the others
    (*W[:2], a(1, 2, 4)), (*W[:2], a(3, 3, 4)), (*W[:2], a(3, 2, 5)), (W[0][0], W[1][0], W[2][0]), (*W, a(1, 4)),
    (*W, None, a(3, 1)), (*W, None, None, a(3, 4)), (*W, a(4)),
)  # fmt: skip
BROKEN = [
    (expert_permutation, "C1", (IDS, 2), {}),
    (expert_permutation, "C1", (IDS - 1, 3), {}),
    (expert_permutation, "C1", (IDS[0], 3), {}),
    (expert_permutation, "C1", (IDS * 1.0, 3), {}),
    (grouped_linear, "C1", (a(2, 3), a(3, 4, 2), np.array([0, 1, 1, 2])), {}),
    (grouped_linear, "C1", (a(2, 2), a(0, 4, 2), np.array([0])), {}),
    *((grouped_linear, "C2", (a(2, 2), W[0], np.array(ends)), {}) for ends in ENDS),
    (grouped_linear, "C3", (a(2, 2), W[0], np.array([0, 1, 1, 2]), a(3, 3)), {}),
    (indexed_linear, "C1", (a(2, 3), W[0], IDS), {}),
    (indexed_linear, "C2", (a(2, 2), W[0], IDS + 1), {}),
    (indexed_linear, "C2", (a(2, 2), W[0], IDS[:1]), {}),
    (indexed_linear, "C3", (a(2, 2), W[0], IDS, a(4)), {}),
    (moe, "C1", (*MIXED, *W), {"activation": "relu"}),
    *((each, "C2", (*MIXED, *stacks), {}) for each in (moe, grouped_moe, indexed_moe) for stacks in ODD_STACKS),
    (moe, "C2", (*MIXED, a(3, 5, 2), *W[1:]), {}),
    (moe, "C3", (a(2, 2), IDS + 1, a(2, 2), *W), {}),
    (moe, "C4", (*MIXED, *W), {"limit": 0.0}),
    (grouped_moe, "C1", (*MIXED, *W), {"activation": "relu"}),
    (grouped_moe, "C2", (*MIXED, a(3, 5, 2), *W[1:]), {}),
    (grouped_moe, "C3", (a(2, 2), IDS, a(2, 1), *W), {}),
    (grouped_moe, "C4", (*MIXED, *W), {"limit": -7.0}),
    (indexed_moe, "C1", (*MIXED, *W), {"activation": "relu"}),
    (indexed_moe, "C2", (*MIXED, a(3, 5, 2), *W[1:]), {}),
    (indexed_moe, "C3", (a(3, 2), IDS, a(2, 2), *W), {}),
    (indexed_moe, "C4", (*MIXED, *W), {"limit": np.nan}),
    (add_shared_expert, "C1", SHARED, {"activation": "relu"}),
    (add_shared_expert, "C2", (*SHARED[:2], a(5, 2), *SHARED[3:]), {}),
    *((add_shared_expert, "C2", (*SHARED[:4], down), {}) for down in (a(1, 4), a(2, 5), a(3, 4), W[2])),
    (add_shared_expert, "C3", (a(2, 3), *SHARED[1:]), {}),
    (add_shared_expert, "C3", (*SHARED, a(2, 2)), {}),
]


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize(
    ("function", "label", "arguments", "keywords"), BROKEN, ids=[f"{row[0].__name__}-{row[1]}" for row in BROKEN]
)
def test_refused_by_label(function, label, arguments, keywords):
    with pytest.raises(ContractError, match=f"^{label}: "):
        function(*arguments, **keywords)
