"""Laws of attention that kernels keep too: what changes nothing, often to the bit, and what they refuse."""

import importlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu.efficient.flash import flash_attention, flash_step, merge_states
from gpu.efficient.paged import paged_attention
from gpu.llm.attention import attention
from refimpl.contract import ContractError
from tests.equivalence.attending import assert_scores
from tests.equivalence.strategies import examples, numbers, seeds
from tests.equivalence.test_attention import chunks, prefixes, rules_of, windows
from tests.laws.batch import Batch
from tests.laws.strategies import assert_near
from tests.laws.test_sinks import BROKEN

queries, keys = st.sampled_from((1, 2, 17, 33)), st.sampled_from((1, 3, 33, 70))
heads = st.sampled_from(((1, 1), (4, 2), (6, 1)))
tiles = st.integers(1, 40)
H = 16


def draw(seed, T, S, NK):
    return numbers(seed, T, NK[0], H), numbers(seed + 1, S, NK[1], H), numbers(seed + 2, S, NK[1], H)


def same(a, b):
    return all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


@examples
@given(seeds, queries, keys, heads, windows, prefixes, chunks)
def test_a_sink_of_minus_infinity_is_none_and_no_sink_changes_the_lse(seed, T, S, NK, window, prefix, chunk):
    q, k, v = draw(seed, T, S, NK)
    rules = rules_of(seed, NK[0], window, prefix, chunk, True) | {"return_lse": True}
    o, lse = attention(q, k, v, **rules | {"sinks": None})
    assert same(attention(q, k, v, **rules | {"sinks": np.full(NK[0], -np.inf, np.float32)}), (o, lse))
    assert np.array_equal(attention(q, k, v, **rules)[1], lse)


@examples
@given(seeds, queries, keys, heads)
def test_a_sink_is_a_key_more_without_a_value_and_a_part_to_merge(seed, T, S, NK):
    (q, k, v), N = draw(seed, T, S, NK), NK[0]
    sinks = rules_of(seed, N, None, 0, None, True)["sinks"]
    added = np.concatenate([np.zeros((N, T, S), np.float32), np.tile(sinks[:, None, None], (1, T, 1))], -1)
    more_k, more_v = (np.concatenate([x, np.zeros_like(x[:1])]) for x in (k, v))
    wanted, wanted_lse = attention(q, more_k, more_v, causal=False, mask=added, return_lse=True)
    o, lse = attention(q, k, v, causal=False, sinks=sinks, return_lse=True)
    assert_near(o, wanted, terms=S + H, scale=8.0)
    assert_scores(np.logaddexp(lse, sinks), wanted_lse, terms=S + H)
    plain = attention(q, k, v, causal=False, return_lse=True)
    merged, merged_lse = merge_states(*plain, np.zeros_like(o), np.tile(sinks, (T, 1)))
    assert_near(merged, wanted, terms=S + H, scale=8.0)
    assert_scores(merged_lse, wanted_lse, terms=S + H)


@examples
@given(seeds, queries, keys, heads, st.integers(0, 9))
def test_rules_that_leave_nothing_out_change_no_bit(seed, T, S, NK, more):
    q, k, v = draw(seed, T, S, NK)
    full = attention(q, k, v, return_lse=True)
    for rules in ({"window": S + more}, {"window": 1 + more, "prefix": S}, {"chunk": S + more}):
        assert same(attention(q, k, v, **rules, return_lse=True), full)


@examples
@given(seeds, keys, heads, windows, prefixes, chunks)
def test_prefill_is_so_many_decodes_to_the_bit(seed, S, NK, window, prefix, chunk):
    (q, k, v), rules = draw(seed, S, S, NK), rules_of(seed, NK[0], window, prefix, chunk, True)
    whole = attention(q, k, v, **rules)
    for t in {0, S // 2, S - 1, seed % S}:
        assert np.array_equal(attention(q[t : t + 1], k[: t + 1], v[: t + 1], **rules)[0], whole[t])


@examples
@given(seeds, queries, keys, windows, prefixes, chunks)
def test_grouped_heads_are_repeated_key_heads_to_the_bit(seed, T, S, window, prefix, chunk):
    (q, k, v), rules = draw(seed, T, S, (6, 2)), rules_of(seed, 6, window, prefix, chunk, True)
    repeated = attention(q, np.repeat(k, 3, axis=1), np.repeat(v, 3, axis=1), **rules)
    assert np.array_equal(attention(q, k, v, **rules), repeated)


@examples
@given(seeds, queries, keys, heads)
def test_order_of_visible_pairs_and_the_hull_of_the_values(seed, T, S, NK):
    (q, k, v), order = draw(seed, T, S, NK), np.random.default_rng(seed).permutation(S)
    sinks = rules_of(seed, NK[0], None, 0, None, True)["sinks"]
    o = attention(q, k, v, causal=False, sinks=sinks)
    assert_near(attention(q, k[order], v[order], causal=False, sinks=sinks), o, terms=S + H, scale=8.0)
    seen = np.repeat(v, NK[0] // NK[1], axis=1)
    plain = attention(q, k, v, causal=False)
    assert (plain >= seen.min(0) - 1e-5).all() and (plain <= seen.max(0) + 1e-5).all()


@examples
@given(seeds, queries, keys, heads, tiles, windows, prefixes, chunks)
def test_flash_is_attention_whatever_the_tile(seed, T, S, NK, tile, window, prefix, chunk):
    q, k, v = draw(seed, T, S, NK)
    rules = rules_of(seed, NK[0], window, prefix, chunk, True) | {"return_lse": True}
    o, lse = attention(q, k, v, **rules)
    found, found_lse = flash_attention(q, k, v, tile=tile, **rules)
    assert_near(found, o, terms=S + H, scale=8.0)
    assert_scores(found_lse, lse, terms=S + H)


@examples
@given(seeds, queries, heads, st.tuples(*[st.booleans()] * 3))
def test_merge_is_commutative_and_associative(seed, T, NK, blind):
    parts = [(numbers(seed + 2 * i, T, NK[0], H), 5 * numbers(seed + 2 * i + 1, T, NK[0])) for i in range(3)]
    a, b, c = ((o, np.full_like(lse, -np.inf) if none else lse) for (o, lse), none in zip(parts, blind, strict=True))
    left, right = merge_states(*merge_states(*a, *b), *c), merge_states(*a, *merge_states(*b, *c))
    for found, wanted in ((merge_states(*a, *b), merge_states(*b, *a)), (left, right)):
        assert_near(found[0], wanted[0], terms=30, scale=4.0)
        assert_scores(found[1], wanted[1], terms=400)


@examples
@given(seeds, queries, st.sampled_from((3, 33, 70)), heads)
def test_steps_over_two_tiles_are_one_step(seed, T, S, NK):
    (q, k, v), cut = draw(seed, T, S, NK), 1 + seed % (S - 1)
    none = np.zeros((T, NK[0]), np.float32)
    start = np.zeros_like(q), none - np.inf, none
    whole = flash_step(*start, q, k, v)
    both = flash_step(*flash_step(*start, q, k[:cut], v[:cut]), q, k[cut:], v[cut:])
    assert_near(both[0] / both[2][..., None], whole[0] / whole[2][..., None], terms=S + H, scale=8.0)
    assert_scores(both[1], whole[1], terms=S + H)


lengths = st.lists(st.tuples(st.sampled_from((0, 1, 17, 40, 300)), st.sampled_from((0, 1, 5))), min_size=1, max_size=3)


@examples
@given(seeds, lengths, st.sampled_from((1, 3, 16)), heads, windows, prefixes, chunks)
def test_paged_is_contiguous_under_any_order_of_the_blocks(seed, lengths, block_size, NK, window, prefix, chunk):
    batch = Batch(seed, lengths, block_size, *NK, H, H, "float32")
    rules = rules_of(seed, NK[0], window, prefix, chunk, True) | {"return_lse": True}
    order = np.random.default_rng(seed).permutation(batch.blocks)
    o, lse = paged_attention(**batch.arguments(order), **rules)
    assert same(paged_attention(**batch.arguments(np.arange(batch.blocks), poison=np.inf), **rules), (o, lse))
    wanted = [attention(batch.queries(r), *batch.kv[r], **rules) for r in range(len(lengths))]
    assert_near(o, np.concatenate([each for each, _ in wanted]), terms=300 + H, scale=8.0)
    assert_scores(lse, np.concatenate([each for _, each in wanted]), terms=300 + H)


@examples
@given(seeds, keys, heads, windows, prefixes, chunks, st.sampled_from((np.nan, np.inf, -np.inf)))
def test_poison_that_no_rule_shows_changes_nothing(seed, S, NK, window, prefix, chunk, poison):
    (q, k, v), bad, s = draw(seed, 1, S, NK), seed % S, np.arange(S)
    rules = rules_of(seed, NK[0], window, prefix, chunk, True)
    near = (s > S - 1 - (window or S)) | (s < rules["prefix"])
    visible = near & (s // (chunk or S) == (S - 1) // (chunk or S))
    clean = attention(q, k, v, **rules, return_lse=True)
    k[bad], v[bad] = poison, poison
    assert visible[bad] or same(attention(q, k, v, **rules, return_lse=True), clean)


@pytest.mark.parametrize(
    ("function", "label", "arguments", "keywords"), BROKEN, ids=[f"{row[0].__name__}-{row[1]}" for row in BROKEN]
)
def test_refused_by_label(function, label, arguments, keywords):
    module = importlib.import_module(function.__module__.replace("refimpl", "gpu", 1))
    with pytest.raises(ContractError, match=f"^{label}: "):
        getattr(module, function.__name__)(*arguments, **keywords)
