"""Every kernel of the paged cache gives what the reference gives; no bit of a sequence depends on its neighbours."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gpu import device
from gpu.efficient.paged import paged_attention as twin
from gpu.efficient.paged import paged_attention_into, parts_for
from gpu.efficient.paged_kernels import SPLIT
from tests.equivalence.attending import assert_rows, assert_scores, truth_of
from tests.equivalence.strategies import assert_equivalent, dtypes, each_kernel, examples, numbers, seeds
from tests.equivalence.test_attention import rules_of, softcaps, windows
from tests.laws.batch import Batch

block_sizes = st.sampled_from((1, 3, 16))
heads = st.sampled_from(((1, 1), (4, 2), (17, 1)))  # (N, K)
shapes = st.sampled_from((  # H, H2, dtype of q, dtype of the cache: kernels are compiled for each
    (64, 64, "float32", "float32"), (128, 128, "bfloat16", "bfloat16"), (80, 80, "float16", "float16"),
    (64, 64, "float32", "bfloat16"), (5, 1, "float32", "float32"), (256, 40, "float32", "float32"),
))  # fmt: skip
few_heads = st.sampled_from(((4, 2), (5, 1)))
few_shapes = st.sampled_from(((64, 64, "float32", "float32"), (80, 80, "float16", "float16")))
a_length = st.sampled_from((0, 1, 15, 16, 17, 48)) | st.sampled_from((SPLIT - 1, SPLIT, SPLIT + 1, 2 * SPLIT + 9))
prefixes = st.sampled_from((0, 0, 2, 20, SPLIT))
chunks = st.sampled_from((None, None, 7, 48, SPLIT))
batches = st.lists(st.tuples(a_length, st.sampled_from((0, 1, 1, 2, 19))), min_size=1, max_size=4)  # (tokens, new)


def shuffled(seed, batch):
    return np.random.default_rng(seed).permutation(batch.blocks)


@each_kernel("slot_mapping")
@examples
@given(seeds, block_sizes, st.sampled_from((0, 1, 31, 200)), st.sampled_from((np.int32, np.int64)))
def test_slot_mapping(kernel, seed, block_size, T, dtype):
    table = np.random.default_rng(seed).permutation(300).astype(dtype)
    positions = np.random.default_rng(seed + 1).integers(0, 300 * block_size, T).astype(dtype)
    arguments = {"block_table": table, "positions": positions, "block_size": block_size}
    assert_equivalent(kernel, arguments, "int32", exact=True)


@each_kernel("paged_append")
@examples
@given(seeds, block_sizes, st.sampled_from((0, 1, 9)), st.sampled_from((1, 3, 64, 130)), dtypes, dtypes)
def test_paged_append(kernel, seed, block_size, T, H, dtype, held):
    caches = [numbers(seed + i, 12, block_size, 2, width, dtype=held) for i, width in enumerate((H, 3))]
    k, v = (numbers(seed + 2 + i, T, 2, width, dtype=dtype) for i, width in enumerate((H, 3)))
    slots = np.random.default_rng(seed).permutation(np.arange(-1, 12 * block_size))[:T].astype(np.int32)
    wanted = [cache.reshape(-1, *cache.shape[2:]).copy() for cache in caches]
    for cache, new in zip(wanted, (k, v), strict=True):
        cache[slots[slots >= 0]] = new[slots >= 0].astype(np.float32)
    found = kernel.call(*caches, k, v, slots)
    for cache, after, expected in zip(caches, found, wanted, strict=True):
        assert np.array_equal(after.reshape(expected.shape), expected) and np.shares_memory(after, cache)


@each_kernel("paged_attention")
@examples
@given(seeds, batches, block_sizes, heads, shapes, windows, softcaps, prefixes, chunks, st.booleans())
def test_paged_attention(kernel, seed, lengths, block_size, NK, shape, window, softcap, prefix, chunk, sunk):
    batch = Batch(seed, lengths, block_size, *NK, *shape)
    arguments = batch.arguments(shuffled(seed, batch)) | rules_of(seed, NK[0], window, prefix, chunk, sunk)
    arguments |= {"softcap": softcap, "return_lse": True}
    (o, lse), magnitude = truth_of("paged_attention", arguments, ("v_cache",))
    found, found_lse = kernel.call(**arguments)
    terms = 4 * (max(batch.lengths) + shape[0])
    assert_rows(found, o, magnitude, batch.q.dtype, terms)
    assert_scores(found_lse, lse, terms)


@given(seeds, batches, block_sizes, heads, few_shapes, windows, prefixes, chunks, st.booleans())
def test_no_bit_of_a_sequence_depends_on_the_others_nor_on_its_blocks(
    seed, lengths, block_size, NK, shape, window, prefix, chunk, sunk
):
    batch = Batch(seed, lengths, block_size, *NK, *shape)
    arguments = batch.arguments(shuffled(seed, batch)) | rules_of(seed, NK[0], window, prefix, chunk, sunk)
    arguments |= {"return_lse": True}
    together = twin(**arguments)
    r, again = seed % len(lengths), batch.arguments(np.arange(batch.blocks), poison=0.0)
    alone = {"q": batch.queries(r), "cu_seqlens": np.array([0, len(batch.queries(r))])}
    alone |= {name: again[name][r : r + 1] for name in ("block_tables", "context_lens")}
    part = twin(**arguments | again | alone)
    for one, all_of_them in zip(part, together, strict=True):
        assert np.array_equal(one, all_of_them[batch.bounds[r] : batch.bounds[r + 1]])


@given(seeds, st.sampled_from((20, SPLIT + 10)), few_heads, few_shapes, windows, st.integers(1, 19), prefixes, chunks)
def test_a_prompt_in_chunks_is_the_prompt_in_one_piece(seed, S, NK, shape, window, cut, prefix, chunk):
    """The last 20 tokens: in one piece, in two, and the last alone, as if it were decoded."""
    batch = Batch(seed, [(S, 20)], 16, *NK, *shape)
    arguments = batch.arguments(shuffled(seed, batch)) | rules_of(seed, NK[0], window, prefix, chunk, True)
    arguments |= {"return_lse": True}
    whole = twin(**arguments)
    for first, last in ((0, cut), (cut, 20), (19, 20)):
        bounds = {"context_lens": np.array([S - 20 + last]), "cu_seqlens": np.array([0, last - first])}
        part = twin(**arguments | bounds | {"q": batch.q[first:last]})
        assert all(np.array_equal(a, b[first:last]) for a, b in zip(part, whole, strict=True))


def test_less_room_for_parts_takes_more_launches_and_changes_no_bit():
    batch = Batch(0, [(300, 9), (20, 1), (600, 2)], 16, 17, 1, 64, 64, "float32")
    arguments = batch.arguments(np.arange(batch.blocks))
    wanted, tensors = twin(**arguments), [device.array(x) for x in arguments.values()]
    sums, weights = parts_for(12, 3, 17, 1, 64, 640)
    for tiles in (1, 6, sums.shape[1]):
        out, parts = device.empty(batch.q.shape, np.float32), tuple(part[:, :tiles].copy() for part in (sums, weights))
        with device.recording() as launches:
            paged_attention_into(out, *tensors, parts=parts)
        assert np.array_equal(out, wanted) and len(launches) == 2 * -(-sums.shape[1] // tiles)


def test_keys_and_values_are_read_in_whole_sectors_and_once():
    batch = Batch(0, [(300, 1), (500, 1)], 16, 8, 2, 64, 64, "float32", "bfloat16")
    with device.recording() as launches:
        twin(**batch.arguments(shuffled(0, batch)))
    attend, _ = launches
    for asked, least in (attend.counters.loads["k"], attend.counters.loads["v"]):
        assert asked == least == 800 * 2 * 64 * 2 // 32
