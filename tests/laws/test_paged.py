"""Laws of the paged cache: where the blocks lie changes nothing, and no block is two sequences' to write."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refimpl.contract import UsageError
from refimpl.efficient.allocator import allocate, fork, free, new_allocator
from refimpl.efficient.paged import paged_append, paged_attention, slot_mapping
from refimpl.llm.attention import attention
from tests.laws.batch import Batch
from tests.laws.strategies import assert_near, heads, normal, seeds

lengths = st.lists(st.tuples(st.integers(0, 13), st.integers(0, 5)), min_size=1, max_size=4)  # (tokens, new of them)
block_sizes = st.integers(1, 5)
windows = st.none() | st.integers(1, 6)


@given(seeds, lengths, block_sizes, heads, windows, st.none() | st.floats(0.5, 9.0))
def test_paged_is_contiguous(seed, lengths, block_size, NK, window, softcap):
    batch, rules = Batch(seed, lengths, block_size, *NK), {"window": window, "softcap": softcap, "return_lse": True}
    order = np.random.default_rng(seed).permutation(batch.blocks)
    o, lse = paged_attention(**batch.arguments(order), **rules)
    wanted = [attention(batch.queries(r), *batch.kv[r], **rules) for r in range(len(lengths))]
    assert np.array_equal(o, np.concatenate([each for each, _ in wanted]))
    assert np.array_equal(lse, np.concatenate([each for _, each in wanted]))


@given(seeds, lengths, block_sizes, st.sampled_from([np.nan, np.inf, -np.inf, 1e300]))
def test_neither_the_order_of_the_blocks_nor_what_is_unused_matters(seed, lengths, block_size, poison):
    batch = Batch(seed, lengths, block_size, 2, 1)
    shuffled = np.random.default_rng(seed).permutation(batch.blocks)
    plain = paged_attention(**batch.arguments(np.arange(batch.blocks), 0.0))
    assert np.array_equal(paged_attention(**batch.arguments(shuffled, poison)), plain)


@given(seeds, st.integers(1, 12), block_sizes)
def test_prefill_is_so_many_decodes(seed, S, block_size):
    batch = Batch(seed, [(S, S)], block_size, 2, 1)
    arguments = batch.arguments(np.arange(batch.blocks))
    whole = paged_attention(**arguments)
    for t in range(S):
        now = {"q": batch.q[t : t + 1], "context_lens": np.array([t + 1]), "cu_seqlens": np.array([0, 1])}
        assert_near(paged_attention(**arguments | now)[0], whole[t], terms=S, scale=4.0)


@given(seeds, lengths, block_sizes)
def test_appended_tokens_are_the_ones_attended_to(seed, lengths, block_size):
    batch = Batch(seed, lengths, block_size, 2, 1)
    wanted = batch.arguments(np.random.default_rng(seed).permutation(batch.blocks))
    caches = [np.full_like(wanted[name], np.nan) for name in ("k_cache", "v_cache")]
    for table, kv in zip(wanted["block_tables"], batch.kv, strict=True):
        paged_append(*caches, *kv, slot_mapping(table, np.arange(len(kv[0])), block_size))
    assert np.array_equal(caches[0], wanted["k_cache"], equal_nan=True)
    assert np.array_equal(caches[1], wanted["v_cache"], equal_nan=True)


def test_more_queries_than_tokens_see_nothing():
    cache = normal(0, 2, 4, 1, 3)
    o, lse = paged_attention(
        normal(1, 3, 1, 3), cache, cache, np.array([[1]]), np.array([1]), np.array([0, 3]), return_lse=True
    )
    assert (o[:2] == 0).all() and (lse[:2] == -np.inf).all() and np.array_equal(o[2, 0], cache[1, 0, 0])


def test_no_sequences_at_all():
    cache, none = normal(0, 2, 4, 1, 3), np.zeros((0,), np.int32)
    o, lse = paged_attention(
        np.zeros((0, 2, 3), np.float32), cache, cache, np.zeros((0, 1), np.int32), none, np.zeros(1, np.int32),
        return_lse=True,
    )  # fmt: skip
    assert o.shape == (0, 2, 3) and lse.shape == (0, 2) and o.dtype == lse.dtype == np.float32


@given(seeds, block_sizes, st.integers(0, 20))
def test_slots_of_a_table_are_its_blocks_slot_by_slot(seed, block_size, T):
    table = np.random.default_rng(seed).permutation(20).astype(np.int32)
    slots = slot_mapping(table, np.arange(T), block_size)
    expected = [int(block) * block_size + i for block in table for i in range(block_size)]
    assert slots.tolist() == expected[:T] and slots.dtype == np.int32


@given(seeds, st.integers(0, 6))
def test_append_writes_its_slots_and_no_other(seed, T):
    k_cache, v_cache = normal(seed, 3, 4, 2, 3), normal(seed + 1, 3, 4, 2, 2)
    before, slots = k_cache.copy(), np.random.default_rng(seed).permutation(np.arange(-1, 12))[:T]
    k, v = normal(seed + 2, T, 2, 3), normal(seed + 3, T, 2, 2)
    found_k, found_v = paged_append(k_cache, v_cache, k, v, slots)
    assert found_k is k_cache and found_v is v_cache
    for slot in range(12):
        wanted = k[slots.tolist().index(slot)] if slot in slots else before.reshape(12, 2, 3)[slot]
        assert np.array_equal(k_cache.reshape(12, 2, 3)[slot], wanted)


@given(st.data())
def test_the_allocator_keeps_count(data):
    """Dealt and unused blocks are all there are, and no block is dealt to two sequences."""
    allocator, tables = new_allocator(8), []
    for _ in range(data.draw(st.integers(0, 12))):
        what = data.draw(st.sampled_from(["allocate", "fork", "free"]))
        if what == "allocate":
            count = data.draw(st.integers(0, len(allocator.unused)))
            allocator, blocks = allocate(allocator, count)
            assert not set(blocks) & {block for table in tables for block in table}
            tables.append(blocks)
        elif tables:
            table = data.draw(st.sampled_from(tables))
            allocator = fork(allocator, table) if what == "fork" else free(allocator, table)
            tables.append(table) if what == "fork" else tables.remove(table)
        held = [block for table in tables for block in table]
        assert list(allocator.holders) == [held.count(block) for block in range(8)]
        assert sorted({*allocator.unused} | {*held}) == list(range(8)) and not {*allocator.unused} & {*held}


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda a: allocate(a, 3), "3 blocks are needed, 2 of 4 are left"),
        (lambda a: allocate(a, -1), "-1 blocks are needed, 2 of 4 are left"),
        (lambda a: free(a, [0, 2]), "block 2 of 4: 1 holders expected, 0 found"),
        (lambda a: free(a, [0, 0]), "block 0 of 4: 2 holders expected, 1 found"),
        (lambda a: free(free(a, [1]), [1]), "block 1 of 4: 1 holders expected, 0 found"),
        (lambda a: fork(a, [4]), "block 4 of 4: 1 holders expected, 0 found"),
        (lambda a: fork(a, [-1]), "block -1 of 4: 1 holders expected, 0 found"),
    ],
    ids=["too many", "negative", "not held", "twice at once", "twice", "beyond", "before"],
)
def test_the_allocator_refuses(act, message):
    allocator, _ = allocate(new_allocator(4), 2)
    with pytest.raises(UsageError, match=f"^{message}$"):
        act(allocator)


def test_a_shared_block_is_free_when_its_last_holder_lets_go():
    allocator, blocks = allocate(new_allocator(2), 1)
    allocator = free(fork(allocator, blocks), blocks)
    assert allocator.unused == (1,)
    assert free(allocator, blocks) == new_allocator(2)
