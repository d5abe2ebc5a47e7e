"""Laws of attention in parts: no tile, no order and no cut changes what it is."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refimpl.efficient.flash import flash_attention, flash_step, merge_states
from refimpl.llm.attention import attention
from tests.laws.strategies import assert_near, heads, normal, seeds, sizes

tiles = st.integers(1, 12)
windows = st.none() | st.integers(1, 6)
softcaps = st.none() | st.floats(0.5, 50.0)


def draw(seed, T, S, N=2, K=2, H=4, H2=3):
    return normal(seed, T, N, H), normal(seed + 1, S, K, H), normal(seed + 2, S, K, H2)


def start(T, N=2, H2=3):
    return np.zeros((T, N, H2)), np.full((T, N), -np.inf), np.zeros((T, N))


def draw_mask(seed, kind, N, T, S):
    visible = normal(seed, N, T, S) > -0.3
    return {"none": None, "bool": visible[0], "added": np.where(visible, normal(seed + 1, N, T, S), -np.inf)}[kind]


def assert_same(found, wanted, terms):
    """Demand the same output and log-sum-exp, the latter -inf in the same places."""
    assert_near(found[0], wanted[0], terms=terms, scale=8.0)
    assert np.array_equal(np.isinf(found[1]), np.isinf(wanted[1]))
    assert_near(np.exp(found[1]), np.exp(wanted[1]), terms=terms)


@given(seeds, sizes, sizes, heads, tiles, windows, softcaps, st.sampled_from(["none", "bool", "added"]))
def test_flash_is_attention_whatever_the_tile(seed, T, S, NK, tile, window, softcap, kind):
    q, k, v = draw(seed, T, S, *NK)
    rules = {"window": window, "softcap": softcap, "mask": draw_mask(seed + 3, kind, NK[0], T, S), "return_lse": True}
    assert_same(flash_attention(q, k, v, tile=tile, **rules), attention(q, k, v, **rules), terms=40)


@given(seeds, sizes, sizes, tiles)
def test_flash_without_a_causal_mask(seed, T, S, tile):
    q, k, v = draw(seed, T, S)
    assert_near(flash_attention(q, k, v, tile=tile, causal=False), attention(q, k, v, causal=False), terms=S, scale=8.0)


@given(seeds, sizes, sizes, heads)
def test_one_step_from_the_start_is_attention(seed, T, S, NK):
    q, k, v = draw(seed, T, S, *NK)
    mask = draw_mask(seed + 3, "bool", NK[0], T, S) | (np.arange(S) == 0)
    sums, top, total = flash_step(*start(T, NK[0]), q, k, v, mask=mask, scale=0.7)
    wanted = attention(q, k, v, mask=mask, scale=0.7, causal=False, return_lse=True)
    assert_same((sums / total[..., None], top + np.log(total)), wanted, terms=40)
    assert (total >= 1).all()  # the largest score weighs 1


@given(seeds, sizes, st.integers(2, 9))
def test_two_tiles_in_any_order_are_one(seed, T, S):
    q, k, v = draw(seed, T, S)
    cut = 1 + seed % (S - 1)
    whole = flash_step(*start(T), q, k, v)
    for first, second in ((slice(0, cut), slice(cut, S)), (slice(cut, S), slice(0, cut))):
        half = flash_step(*start(T), q, k[first], v[first])
        both = flash_step(*half, q, k[second], v[second])
        assert_near(both[1], whole[1], terms=8)
        assert_near(both[2], whole[2], terms=S)
        assert_near(both[0], whole[0], terms=S, scale=8.0)


@given(seeds, sizes, sizes)
def test_a_hidden_tile_leaves_the_state_to_the_bit(seed, T, S):
    q, k, v = draw(seed, T, S)
    for state in (start(T), flash_step(*start(T), q, k, v)):
        after = flash_step(*state, q, k * np.nan, v * np.inf, mask=np.zeros((T, S), bool))
        assert all(np.array_equal(a, b) for a, b in zip(after, state, strict=True))


@given(seeds, sizes, st.integers(2, 9), st.sampled_from([np.nan, np.inf, -np.inf]))
def test_poison_in_a_hidden_slot_changes_nothing(seed, T, S, poison):
    q, k, v = draw(seed, T, S)
    bad, mask = seed % S, normal(seed + 3, T, S) > -0.5
    mask[:, bad] = False
    clean = flash_attention(q, k, v, mask=mask, tile=3, return_lse=True)
    k[bad], v[bad] = poison, poison
    found = flash_attention(q, k, v, mask=mask, tile=3, return_lse=True)
    assert all(np.array_equal(a, b) for a, b in zip(found, clean, strict=True))


@given(seeds, st.integers(1, 8))
def test_poison_reaches_the_queries_that_see_it(seed, S):
    q, k, v = draw(seed, S, S)
    bad = seed % S
    k[bad] = np.nan
    o, lse = flash_attention(q, k, v, tile=2, return_lse=True)
    assert np.isnan(o[bad:]).all() and np.isnan(lse[bad:]).all() and np.isfinite(o[:bad]).all()


@given(seeds, sizes, st.integers(2, 9), windows)
def test_parts_of_the_keys_merge_into_the_whole(seed, T, S, window):
    q, k, v = draw(seed, T, S)
    cut = 1 + seed % (S - 1)
    parts = [
        attention(q, k, v, window=window, mask=np.tile(seen, (T, 1)), return_lse=True)
        for seen in (np.arange(S) < cut, np.arange(S) >= cut)
    ]
    assert_same(merge_states(*parts[0], *parts[1]), attention(q, k, v, window=window, return_lse=True), terms=40)


def draw_part(seed, T, blind):
    o, lse = normal(seed, T, 2, 3), 5 * normal(seed + 1, T, 2)
    return np.where(blind, np.nan, o), np.where(blind, -np.inf, lse)


@given(seeds, sizes, st.tuples(*[st.booleans()] * 3))
def test_merge_is_commutative_and_associative(seed, T, blind):
    a, b, c = (draw_part(seed + 2 * i, T, each) for i, each in enumerate(blind))
    assert all(np.array_equal(x, y) for x, y in zip(merge_states(*a, *b), merge_states(*b, *a), strict=True))
    left, right = merge_states(*merge_states(*a, *b), *c), merge_states(*a, *merge_states(*b, *c))
    assert_near(left[0], right[0], terms=8, scale=4.0)
    assert np.array_equal(np.isinf(left[1]), np.isinf(right[1]))
    assert_near(np.exp(left[1]), np.exp(right[1]), terms=20)


@given(seeds, sizes)
def test_a_part_that_saw_nothing_is_the_unit_of_merge(seed, T):
    part = draw_part(seed, T, blind=False)
    o, lse = merge_states(*part, *draw_part(seed + 2, T, blind=True))
    assert np.array_equal(o, part[0]) and np.array_equal(lse, part[1])
    o, lse = merge_states(*draw_part(seed, T, blind=True), *draw_part(seed + 2, T, blind=True))
    assert (o == 0).all() and (lse == -np.inf).all()


@given(seeds, sizes)
def test_a_part_merged_with_itself_counts_twice(seed, T):
    o, lse = draw_part(seed, T, blind=False)
    merged = merge_states(o, lse, o, lse)
    assert_near(merged[0], o)
    assert_near(merged[1], lse + np.log(2), scale=20.0)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_the_state_and_the_lse_stay_wide(dtype):
    q, k, v = (array.astype(dtype) for array in draw(0, 3, 5))
    wide = np.float64 if dtype == np.float64 else np.float32
    state = flash_step(*(part.astype(wide) for part in start(3)), q, k, v)
    o, lse = flash_attention(q, k, v, return_lse=True)
    merged, merged_lse = merge_states(o, lse, o, lse)
    assert [part.dtype for part in state] == [wide] * 3
    assert (o.dtype, lse.dtype, merged.dtype, merged_lse.dtype) == (dtype, wide, dtype, wide)


def test_no_keys_at_all():
    q, k, v = draw(0, 2, 0)
    o, lse = flash_attention(q, k, v, return_lse=True)
    assert o.shape == (2, 2, 3) and (o == 0).all() and (lse == -np.inf).all()


def test_huge_scores_do_not_overflow():
    q, k, v = np.full((1, 1, 4), 200.0), np.full((2, 1, 4), 200.0), np.arange(2.0).reshape(2, 1, 1)
    k[1] = -200
    o, lse = flash_attention(q, k, v, tile=1, return_lse=True)
    assert o.tolist() == [[[0.0]]] and lse.tolist() == [[80000.0]]
