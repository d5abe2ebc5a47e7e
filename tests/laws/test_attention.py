"""Laws of attention: its definition by scalars, and what must not change its answer."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refimpl.llm.attention import attention
from tests.laws.strategies import assert_near, heads, normal, seeds, sizes

windows = st.none() | st.integers(1, 6)
softcaps = st.none() | st.floats(0.5, 50.0)
bad_values = st.sampled_from([np.nan, np.inf, -np.inf])


def draw(seed, T, S, N=2, K=2, H=4, H2=3):
    return normal(seed, T, N, H), normal(seed + 1, S, K, H), normal(seed + 2, S, K, H2)


def by_scalars(q, k, v, scale, sees, softcap=None, bias=None):
    """Attend as the definition says, one number after the other; return the output and the lse."""
    (T, N, H), (S, K, H2) = q.shape, v.shape
    o, lse = np.zeros((T, N, H2)), np.full((T, N), -np.inf)
    for t in range(T):
        for n in range(N):
            kv, weights = n // (N // K), {}
            for s in (s for s in range(S) if sees(n, t, s)):
                score = scale * math.fsum(q[t, n, h] * k[s, kv, h] for h in range(H))
                score = softcap * math.tanh(score / softcap) if softcap else score
                weights[s] = math.exp(score + (0.0 if bias is None else bias[n, t, s]))
            if weights:
                total = math.fsum(weights.values())
                lse[t, n] = math.log(total)
                o[t, n] = [math.fsum(w * v[s, kv, h] for s, w in weights.items()) / total for h in range(H2)]
    return o, lse


@given(seeds, sizes, sizes, heads, windows, softcaps)
def test_attention_is_its_definition(seed, T, S, NK, window, softcap):
    q, k, v = draw(seed, T, S, *NK)

    def sees(n, t, s):
        return s <= t + S - T and (window is None or s > t + S - T - window)

    o, lse = attention(q, k, v, window=window, softcap=softcap, return_lse=True)
    wanted_o, wanted_lse = by_scalars(q, k, v, 0.5, sees, softcap)
    assert_near(o, wanted_o, terms=40, scale=10.0)
    assert np.array_equal(np.isinf(lse), np.isinf(wanted_lse))
    assert_near(np.exp(lse), np.exp(wanted_lse), terms=40)


@given(seeds, sizes, sizes, heads, softcaps)
def test_attention_with_masks_is_its_definition(seed, T, S, NK, softcap):
    q, k, v = draw(seed, T, S, *NK)
    boolean, bias = normal(seed + 3, NK[0], T, S) > 0, normal(seed + 4, NK[0], T, S)
    settings = {"causal": False, "softcap": softcap, "scale": 0.3}
    wanted = by_scalars(q, k, v, 0.3, lambda n, t, s: boolean[n, t, s], softcap)[0]
    assert_near(attention(q, k, v, mask=boolean, **settings), wanted, terms=40, scale=10.0)
    wanted = by_scalars(q, k, v, 0.3, lambda n, t, s: boolean[n, t, s], softcap, bias)[0]
    assert_near(attention(q, k, v, mask=np.where(boolean, bias, -np.inf), **settings), wanted, terms=40, scale=10.0)


@given(seeds, sizes, sizes, heads)
def test_order_of_visible_pairs_does_not_matter(seed, T, S, NK):
    q, k, v = draw(seed, T, S, *NK)
    mask, order = normal(seed + 3, T, S) > 0, np.random.default_rng(seed).permutation(S)
    shuffled = attention(q, k[order], v[order], causal=False, mask=mask[:, order])
    assert_near(shuffled, attention(q, k, v, causal=False, mask=mask), terms=S, scale=4.0)


@given(seeds, sizes, sizes, heads)
def test_output_stays_in_the_hull_of_the_visible_values(seed, T, S, NK):
    q, k, v = draw(seed, T, S, *NK)
    o = attention(q, k, v, scale=3.0)
    for t in range(max(0, T - S), T):
        seen = np.repeat(v[: t + S - T + 1], NK[0] // NK[1], axis=1)
        assert (o[t] >= seen.min(0) - 1e-12).all() and (o[t] <= seen.max(0) + 1e-12).all()


@given(seeds, sizes, heads, windows)
def test_prefill_is_so_many_decodes(seed, T, NK, window):
    q, k, v = draw(seed, T, T, *NK)
    steps = [attention(q[t : t + 1], k[: t + 1], v[: t + 1], window=window) for t in range(T)]
    assert_near(attention(q, k, v, window=window), np.concatenate(steps), terms=T, scale=4.0)


@given(seeds, sizes, sizes)
def test_queries_are_the_last_tokens(seed, T, more):
    q, k, v = draw(seed, T + more, T + more)
    assert_near(attention(q[more:], k, v), attention(q, k, v)[more:], terms=T + more, scale=4.0)


@given(seeds, sizes, sizes, st.integers(0, 20))
def test_window_of_the_whole_length_is_no_window(seed, T, S, more):
    q, k, v = draw(seed, T, S)
    assert np.array_equal(attention(q, k, v, window=S + more), attention(q, k, v))


@given(seeds, sizes)
def test_window_of_one_sees_itself(seed, T):
    q, k, v = draw(seed, T, T)
    assert np.array_equal(attention(q, k, v, window=1), v)


@given(seeds, sizes, sizes)
def test_grouped_heads_are_repeated_key_heads(seed, T, S):
    q, k, v = draw(seed, T, S, 6, 2)
    grouped, repeated = attention(q, k, v), attention(q, np.repeat(k, 3, axis=1), np.repeat(v, 3, axis=1))
    assert_near(grouped, repeated, terms=S, scale=4.0)


@given(seeds, sizes, st.integers(1, 5))
def test_early_queries_that_see_nothing_give_zero(seed, S, more):
    q, k, v = draw(seed, S + more, S)
    o, lse = attention(q, k, v, return_lse=True)
    assert (o[:more] == 0).all() and (lse[:more] == -np.inf).all()
    assert np.isfinite(lse[more:]).all() and np.array_equal(o[more], v[0])


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("hide", [np.zeros((2, 3), bool), np.full((2, 3), -np.inf, np.float32)], ids=["bool", "add"])
def test_rows_without_a_key_give_zero_whatever_is_there(dtype, hide):
    q, k, v = np.full((2, 1, 4), np.nan, dtype), np.full((3, 1, 4), np.inf, dtype), np.full((3, 1, 2), np.nan, dtype)
    o, lse = attention(q, k, v, causal=False, mask=hide, return_lse=True)
    assert (o == 0).all() and (lse == -np.inf).all()


def test_no_keys_at_all():
    q, k, v = draw(0, 2, 0)
    o, lse = attention(q, k, v, return_lse=True)
    assert o.shape == (2, 2, 3) and (o == 0).all() and (lse == -np.inf).all()


@given(seeds, sizes, st.integers(2, 9), windows, softcaps, bad_values)
def test_poison_in_a_hidden_slot_changes_nothing(seed, T, S, window, softcap, poison):
    q, k, v = draw(seed, T, S)
    mask = normal(seed + 3, T, S) > -0.5
    mask[:, seed % S] = False
    settings = {"window": window, "softcap": softcap}
    for hidden in (mask, np.where(mask, 0.5, -np.inf)):
        clean = attention(q, k, v, mask=hidden, return_lse=True, **settings)
        bad_k, bad_v = k.copy(), v.copy()
        bad_k[seed % S], bad_v[seed % S] = poison, poison
        found = attention(q, bad_k, bad_v, mask=hidden, return_lse=True, **settings)
        assert_near(found[0], clean[0], terms=S, scale=4.0)
        assert np.array_equal(found[1], clean[1])


@given(seeds, st.integers(1, 8), bad_values, st.sampled_from(["k", "v"]))
def test_poison_reaches_only_the_queries_that_see_it(seed, S, poison, where):
    q, k, v = draw(seed, S, S)
    clean, bad = attention(q, k, v), seed % S
    {"k": k, "v": v}[where][bad] = poison
    found = attention(q, k, v)
    assert_near(found[:bad], clean[:bad], terms=S, scale=4.0)
    assert (~np.isfinite(found[bad:])).any(-1).all() or (where == "k" and np.isinf(poison))


@given(seeds, sizes, st.integers(2, 9), st.floats(0.5, 2.0))
def test_softcap_comes_before_the_mask(seed, T, S, softcap):
    """A hidden key is a key that is not there; capped after masking it would weigh exp(-softcap)."""
    q, k, v = draw(seed, T, S)
    mask = np.ones((T, S), bool)
    mask[:, 0] = False
    without = attention(q, k[1:], v[1:], causal=False, softcap=softcap)
    for hidden in (mask, np.where(mask, 0.0, -np.inf)):
        masked = attention(q, k, v, causal=False, softcap=softcap, mask=hidden)
        assert_near(masked, without, terms=S, scale=4.0)


@given(seeds, sizes, sizes)
def test_a_large_softcap_is_none_and_a_small_one_flattens(seed, T, S):
    q, k, v = draw(seed, T, S)
    assert_near(attention(q, k, v, softcap=1e6), attention(q, k, v), scale=1e5)
    flat = attention(q, k, v, softcap=1e-9, causal=False)
    assert_near(flat, np.broadcast_to(v.mean(0), flat.shape), scale=1e8)


@given(seeds, sizes, sizes)
def test_adding_log_two_counts_a_key_twice(seed, T, S):
    q, k, v = draw(seed, T, S)
    bias = np.zeros((T, S))
    bias[:, 0] = math.log(2)
    twice = attention(q, np.concatenate([k, k[:1]]), np.concatenate([v, v[:1]]), causal=False, return_lse=True)
    for found, wanted in zip(attention(q, k, v, causal=False, mask=bias, return_lse=True), twice, strict=True):
        assert_near(found, wanted, terms=S, scale=8.0)


@given(seeds, sizes, st.integers(2, 9))
def test_parts_merge_by_their_lse(seed, T, S):
    q, k, v = draw(seed, T, S)
    cut = 1 + seed % (S - 1)
    parts = [attention(q, k[p], v[p], causal=False, return_lse=True) for p in (slice(0, cut), slice(cut, S))]
    weights = [np.exp(lse)[..., None] for _, lse in parts]
    merged = sum(o * w for (o, _), w in zip(parts, weights, strict=True)) / sum(weights)
    assert_near(attention(q, k, v, causal=False), merged, terms=S, scale=8.0)


@given(seeds, sizes, sizes)
def test_lse_of_equal_scores_is_the_natural_log_of_the_count(seed, T, S):
    _, k, v = draw(seed, T, S)
    o, lse = attention(np.zeros((T, 2, 4)), k, v, causal=False, return_lse=True)
    assert_near(lse, np.full((T, 2), math.log(S)), scale=4.0)
    assert_near(o, np.broadcast_to(v.mean(0), o.shape), terms=S)


@given(seeds, sizes, st.floats(0.1, 4.0))
def test_scale_multiplies_the_queries(seed, T, scale):
    q, k, v = draw(seed, T, T)
    assert_near(attention(q, k, v, scale=scale), attention(scale * q, k, v, scale=1.0), terms=40, scale=20.0)
    assert np.array_equal(attention(q, k, v), attention(q, k, v, scale=0.5))


@given(seeds, sizes, sizes)
def test_masks_of_one_head_and_of_all_agree(seed, T, S):
    q, k, v = draw(seed, T, S, 6, 2)
    mask = normal(seed + 3, T, S) > 0
    assert np.array_equal(attention(q, k, v, mask=mask), attention(q, k, v, mask=np.repeat(mask[None], 6, axis=0)))
    full = attention(q, k, v, causal=False, mask=np.tri(T, S, S - T, dtype=bool))
    assert np.array_equal(full, attention(q, k, v))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_huge_scores_do_not_overflow(dtype):
    q, k, v = np.full((1, 1, 4), 200, dtype), np.full((2, 1, 4), 200, dtype), np.arange(2, dtype=dtype).reshape(2, 1, 1)
    k[1] = -200
    o, lse = attention(q, k, v, return_lse=True)
    assert o.tolist() == [[[0.0]]] and lse.tolist() == [[80000.0]]


def test_hidden_keys_weigh_nothing_even_where_the_visible_are_far_below():
    q, k, v = np.full((1, 1, 1), 1e20), np.array([-1e20, 0.0]).reshape(2, 1, 1), np.array([5.0, 7.0]).reshape(2, 1, 1)
    o, lse = attention(q, k, v, mask=np.array([[True, False]]), return_lse=True)  # a finite sentinel would win
    assert o.tolist() == [[[5.0]]] and lse.tolist() == [[-1e40]]


def test_lse_stays_wide():
    q, k, v = (array.astype(np.float16) for array in draw(0, 3, 3))
    o, lse = attention(q, k, v, return_lse=True)
    assert o.dtype == np.float16 and lse.dtype == np.float32
