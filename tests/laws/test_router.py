"""Routers against their definitions, and the laws that all of them keep."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refimpl.contract import ContractError, UsageError
from refimpl.efficient.expert_load import balance_loss, expert_load, load_imbalance
from refimpl.llm.router import (
    hash_route,
    sigmoid_group_top_k,
    softmax_top_k,
    sqrt_softplus_top_k,
    top_k_sigmoid,
    top_k_softmax,
)
from tests.laws.strategies import DTYPES, assert_near, normal, seeds

ROUTERS = {
    "softmax_top_k": softmax_top_k,
    "undivided softmax": lambda logits, k: softmax_top_k(logits, k, renormalise=False),
    "top_k_softmax": top_k_softmax,
    "sigmoid_group_top_k": lambda logits, k: sigmoid_group_top_k(logits, k, scale=2.5),
    "sqrt_softplus_top_k": lambda logits, k: sqrt_softplus_top_k(logits, k, scale=2.5),
    "top_k_sigmoid": top_k_sigmoid,
}
SUMS = {"softmax_top_k": 1.0, "top_k_softmax": 1.0, "sigmoid_group_top_k": 2.5, "sqrt_softplus_top_k": 2.5}
counts, sizes = st.integers(0, 6), st.integers(1, 12)


def each_router(test):
    return pytest.mark.parametrize("name", ROUTERS)(test)


def tied(seed: int, T: int, E: int) -> np.ndarray:
    """Draw logits of which many are equal."""
    return np.random.default_rng(seed).integers(-6, 6, (T, E)) / 4


@each_router
@given(seeds, counts, sizes, sizes)
def test_chosen_are_the_largest_and_of_equals_the_first(name, seed, T, E, k):
    logits, k = tied(seed, T, E), min(k, E)
    ids, weights = ROUTERS[name](logits, k)
    assert ids.tolist() == [sorted(range(E), key=lambda e: (-row[e], e))[:k] for row in logits]
    assert ids.shape == weights.shape == (T, k) and ids.dtype == np.int32
    assert ((weights > 0) & np.isfinite(weights)).all() and (np.diff(weights) <= 0).all()


@pytest.mark.parametrize("name", SUMS)
@given(seeds, counts, sizes, sizes, st.sampled_from((1.0, 30.0, 1e4)))
def test_weights_that_are_divided_have_one_sum(name, seed, T, E, k, reach):
    logits = reach * normal(seed, T, E)
    if name.startswith("s") and "softmax" not in name:
        logits = np.maximum(logits, -8)  # far below, the sum of all scores is nothing beside 1e-20
    _, weights = ROUTERS[name](logits, min(k, E))
    assert_near(weights.sum(1), np.full(T, SUMS[name]), terms=k)


@each_router
@given(seeds, counts, sizes, sizes)
def test_permuted_experts_permute_the_ids(name, seed, T, E, k):
    logits, order = normal(seed, T, E), np.random.default_rng(seed).permutation(E)
    ids, weights = ROUTERS[name](logits, min(k, E))
    moved_ids, moved = ROUTERS[name](logits[:, order], min(k, E))
    assert np.array_equal(order[moved_ids], ids)
    assert_near(moved, weights, terms=E)


@each_router
@given(seeds, counts, sizes, sizes)
def test_a_token_is_routed_by_itself(name, seed, T, E, k):
    logits = normal(seed, T, E, dtype=np.float32)
    together = ROUTERS[name](logits, min(k, E))
    for t in range(T):
        alone = ROUTERS[name](logits[t : t + 1], min(k, E))
        assert all(np.array_equal(one[0], all_of_them[t]) for one, all_of_them in zip(alone, together, strict=True))


@given(seeds, counts, sizes, sizes, st.integers(-500, 500))
def test_softmax_routers_forget_a_shift_and_agree(seed, T, E, k, shift):
    logits, k = tied(seed, T, E), min(k, E)
    ids, weights = softmax_top_k(logits, k)
    for other_ids, other in (softmax_top_k(logits + shift, k), top_k_softmax(logits, k)):
        assert np.array_equal(ids, other_ids)
        assert_near(other, weights, terms=E)
    _, probs = softmax_top_k(logits, k, renormalise=False)
    assert_near(probs / probs.sum(1, keepdims=True), weights, terms=E)


@given(seeds, counts, st.sampled_from(((1, 1), (2, 1), (4, 2), (3, 3), (6, 2))), st.integers(1, 4), st.integers(1, 4))
def test_groups_keep_the_choice_inside_the_best(seed, T, groupings, width, k):
    groups, top = groupings
    logits, bias, k = normal(seed, T, groups * width), normal(seed + 1, groups * width), min(k, top * width)
    ids, weights = sigmoid_group_top_k(logits, k, bias, groups=groups, top_groups=top)
    scores = 1 / (1 + np.exp(-logits))
    for t in range(T):
        sums = [sum(sorted(part)[-2:]) for part in (scores[t] + bias).reshape(groups, width).tolist()]
        best = sorted(range(groups), key=lambda g: -sums[g])[:top]
        inside = [e for e in range(groups * width) if e // width in best]
        assert ids[t].tolist() == sorted(inside, key=lambda e: -(scores[t] + bias)[e])[:k]
        assert_near(weights[t], scores[t][ids[t]] / scores[t][ids[t]].sum(), terms=8)


@given(seeds, counts, sizes, sizes)
def test_all_groups_open_are_one_group(seed, T, width, k):
    logits, bias = normal(seed, T, 3 * width), normal(seed + 1, 3 * width)
    k = min(k, 3 * width)
    whole, parted = (sigmoid_group_top_k(logits, k, bias, groups=n, top_groups=n) for n in (1, 3))
    assert all(map(np.array_equal, whole, parted))


@pytest.mark.parametrize("router", [sigmoid_group_top_k, sqrt_softplus_top_k])
@given(seeds, counts, st.integers(1, 12), st.floats(-3, 3))
def test_a_bias_for_all_changes_nothing(router, seed, T, E, shift):
    logits = normal(seed, T, E)
    (ids, weights), (other_ids, other) = router(logits, 1 + E // 2), router(logits, 1 + E // 2, np.full(E, shift))
    assert np.array_equal(ids, other_ids) and np.array_equal(weights, other)


@given(seeds, counts, sizes, sizes)
def test_hash_route_weighs_as_sqrt_softplus_top_k(seed, T, E, k):
    logits, k = normal(seed, T, E), min(k, E)
    ids, weights = sqrt_softplus_top_k(logits, k, scale=1.5)
    looked_up = hash_route(logits, np.arange(T), np.concatenate([ids, ids[:1]]), scale=1.5)
    assert all(map(np.array_equal, looked_up, (ids, weights)))


@each_router
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_scores_are_not_rounded_to_16_bits(name, dtype):
    logits = normal(3, 5, 7, dtype=dtype)
    wide = np.float64 if dtype == np.float64 else np.float32
    (ids, weights), (wide_ids, wide_weights) = (ROUTERS[name](x, 3) for x in (logits, logits.astype(wide)))
    assert weights.dtype == wide and np.array_equal(ids, wide_ids) and np.array_equal(weights, wide_weights)


@each_router
def test_what_is_not_a_number_shows(name):
    ids, weights = ROUTERS[name](np.array([[1.0, 2.0, np.nan, 3.0], [1.0, 2.0, 0.0, 3.0]]), 2)
    assert ids.tolist() == [[2, 3], [3, 1]]
    assert np.isnan(weights[0, 0]) and np.isfinite(weights[1]).all()


@given(seeds, st.integers(1, 9), st.integers(1, 9))
def test_load_sums_to_the_choices(seed, T, E):
    ids, _ = softmax_top_k(normal(seed, T, E), min(2, E))
    load = expert_load(ids, E)
    assert load.sum() == ids.size and len(load) == E
    assert 1 <= load_imbalance(load) <= E
    assert load_imbalance(np.full(E, T)) == 1


@given(st.integers(1, 6), st.integers(1, 6))
def test_balance_loss_of_even_use_is_the_experts_of_a_token(E, A):
    A = min(A, E)
    ids = np.array([[(t + a) % E for a in range(A)] for t in range(E)])
    assert math.isclose(balance_loss(np.zeros((E, E)), ids), A)
    towards_the_first = np.full((E, E), -50.0)
    towards_the_first[:, 0] = 50
    assert math.isclose(balance_loss(towards_the_first, np.zeros((E, 1), np.int64)), E)


L, TABLE = np.ones((2, 4)), np.array([[0, 1], [3, 2]])
BROKEN = [
    (softmax_top_k, "C1", (L, 0), {}),
    (softmax_top_k, "C1", (L, 5), {}),
    (softmax_top_k, "C1", (L[0], 1), {}),
    (top_k_softmax, "C1", (L, 5), {}),
    (top_k_sigmoid, "C1", (L, 0), {}),
    (sigmoid_group_top_k, "C1", (L, 5), {}),
    (sigmoid_group_top_k, "C2", (L, 1, np.ones(3)), {}),
    (sigmoid_group_top_k, "C3", (L, 1), {"groups": 3}),
    (sigmoid_group_top_k, "C3", (L, 1), {"groups": 0}),
    (sigmoid_group_top_k, "C3", (L, 1), {"groups": 2, "top_groups": 3}),
    (sigmoid_group_top_k, "C3", (L, 3), {"groups": 2, "top_groups": 1}),
    (sqrt_softplus_top_k, "C1", (L, 0), {}),
    (sqrt_softplus_top_k, "C2", (L, 1, np.ones((1, 4))), {}),
    (hash_route, "C1", (L, np.array([0]), TABLE), {}),
    (hash_route, "C1", (L, np.array([0, 1]), TABLE[0]), {}),
    (hash_route, "C2", (L, np.array([0, 2]), TABLE), {}),
    (hash_route, "C2", (L, np.array([-1, 0]), TABLE), {}),
    (hash_route, "C3", (L, np.array([0, 1]), TABLE + 1), {}),
    (hash_route, "C3", (L, np.array([0, 1]), TABLE - 1), {}),
]


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize(
    ("function", "label", "arguments", "keywords"), BROKEN, ids=[f"{row[0].__name__}-{row[1]}" for row in BROKEN]
)
def test_refused_by_label(function, label, arguments, keywords):
    with pytest.raises(ContractError, match=f"^{label}: "):
        function(*arguments, **keywords)


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize("ids", [[[-1]], [[3]], [[0.5]]])
def test_load_of_no_expert_is_refused(ids):
    with pytest.raises(UsageError, match=r"^experts are integers in 0\.\.2, got "):
        expert_load(np.array(ids), 3)


def test_load_of_nobody_has_no_balance():
    with pytest.raises(UsageError, match=r"^no expert has a token$"):
        load_imbalance(np.zeros(3, np.int64))
    with pytest.raises(UsageError, match=r"^logits \(0, 4\) and "):
        balance_loss(np.zeros((0, 4)), np.zeros((0, 2), np.int64))
