"""The paged cache: free and used pages are constant, no page is dealt out twice, memory follows use."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu.executor.cache import PagedCache, Sequence
from gpu.executor.cpu import CpuExecutor
from gpu.executor.page import PAGE
from refimpl.contract import UsageError
from tests.executor.tiny_models import LLAMA, random_tensors


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 120)), max_size=40))
def test_no_page_twice(actions):
    cache = PagedCache(LLAMA, 300)
    open_now = {}
    for key, length in actions:
        if length == 0:
            cache.release(open_now.pop(key, Sequence(cache, 128)))
            continue
        sequence = open_now.setdefault(key, Sequence(cache, 128))
        needed = -(-length // PAGE) - len(sequence.pages)
        if needed > cache.free_pages:
            with pytest.raises(UsageError, match="pages"):
                cache.extend(sequence, length)
        else:
            cache.extend(sequence, length)
            assert len(sequence.pages) * PAGE >= length
        used = [page for other in open_now.values() for page in other.pages]
        assert len(set(used)) == len(used) == cache.count - cache.free_pages
        addresses = [other.table[: len(other.pages)] for other in open_now.values()]
        assert len(np.unique(np.concatenate(addresses))) == len(used)


def test_a_sequence_ends_at_its_capacity():
    cache = PagedCache(LLAMA, 300)
    for longest in (1, 15, 16, 17, 32):  # tokens, not pages
        sequence = Sequence(cache, longest)
        cache.extend(sequence, longest)
        with pytest.raises(UsageError, match=f"holds {longest} tokens, it would have {longest + 1}"):
            cache.extend(sequence, longest + 1)


def test_a_cache_that_memory_cannot_hold_names_the_context():
    for capacity in (10**12, 10**16, 10**24):
        with pytest.raises(UsageError, match=r"context is too large.*--ctx-size"):
            PagedCache(LLAMA, capacity)


def test_little_memory_still_holds_one_context(monkeypatch):
    whole = PagedCache(LLAMA, 1024).memory.nbytes

    def aligned(size):
        if size > whole:
            raise MemoryError
        return np.zeros(size, np.uint8)

    monkeypatch.setattr("gpu.executor.cache.aligned", aligned)
    executor = CpuExecutor(LLAMA, random_tensors(LLAMA), threads=1, context=1024)
    assert executor.cache.tokens == 1024
    executor.close()
    with pytest.raises(UsageError, match="context is too large"):
        CpuExecutor(LLAMA, random_tensors(LLAMA), threads=1, context=2048)


def test_freed_twice_is_freed_once():
    executor = CpuExecutor(LLAMA, random_tensors(LLAMA), threads=1, context=64, capacity=512)
    sequence = executor.new_sequence()
    executor.step([(sequence, [1] * 64)])
    assert executor.cache.free_pages == executor.cache.count - 4
    with pytest.raises(UsageError, match="holds 64 tokens"):
        executor.step([(sequence, [1])])
    for _ in range(2):
        executor.free(sequence)
    assert executor.cache.free_pages == executor.cache.count
    executor.close()


def test_a_full_cache_says_so_and_goes_on():
    executor = CpuExecutor(LLAMA, random_tensors(LLAMA), threads=1, context=256, capacity=256)
    first, second = executor.new_sequence(), executor.new_sequence()
    executor.step([(first, [1] * 200)])
    with pytest.raises(UsageError, match="pages left"):
        executor.step([(second, [2] * 100)])
    executor.free(second)
    executor.step([(first, [1] * 56)])
    executor.free(first)
    assert executor.cache.free_pages == executor.cache.count
    executor.close()
