"""Laws of the contiguous cache."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from refimpl.llm.kv_cache import cache_append, new_cache
from tests.laws.strategies import normal, seeds

chunkings = st.lists(st.integers(0, 4), min_size=1, max_size=6)


@given(seeds, chunkings)
def test_the_cache_holds_what_was_appended(seed, chunks):
    T = sum(chunks)
    k, v, cache, end = normal(seed, T, 2, 3), normal(seed + 1, T, 2, 3), new_cache(24, 2, 3, np.float64), 0
    for count in chunks:
        start, end = end, end + count
        cache = cache_append(cache, k[start:end], v[start:end])
    assert cache.length == T
    assert np.array_equal(cache.k[:T], k) and np.array_equal(cache.v[:T], v)


def test_an_older_cache_still_reads_its_own_tokens():
    ones = np.ones((2, 1, 3))
    older = cache_append(new_cache(4, 1, 3), ones, ones)
    newer = cache_append(older, 2 * ones, 2 * ones)
    assert (older.length, newer.length) == (2, 4)
    assert np.array_equal(older.k[: older.length], ones)


def test_the_cache_casts_to_its_own_dtype():
    cache = cache_append(new_cache(1, 1, 1, np.float16), np.full((1, 1, 1), 1 / 3), np.ones((1, 1, 1)))
    assert cache.k[0, 0, 0] == np.float16(1 / 3)
