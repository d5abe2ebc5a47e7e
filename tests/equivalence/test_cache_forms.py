"""Every kernel of rings, of caches of codes and of copied blocks gives what the reference gives, bit by bit."""

import importlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from golden.values import dtype_named
from gpu.efficient.paged import paged_append
from gpu.efficient.prefix_sharing import copy_blocks
from gpu.llm.attention import attention
from gpu.llm.cache_forms import quantized_append, quantized_read, quantized_read_into, ring_append, ring_read
from refimpl.contract import ContractError
from tests.equivalence.strategies import dtypes, each_kernel, examples, numbers, reference, seeds, specials
from tests.laws.test_cache_forms import BROKEN, held
from tests.laws.test_prefix_sharing import BROKEN as BROKEN_COPIES
from tests.laws.test_prefix_sharing import Engine, check_steps

capacities = st.sampled_from((1, 2, 5, 17))
counts = st.sampled_from((0, 1, 3, 17, 40))
lengths = st.sampled_from((0, 1, 4, 17, 100, 2**40))
shapes = st.sampled_from(((1, 1, 1), (2, 33, 5), (3, 64, 64), (9, 3, 130)))  # (K, H, H2)
codes_types = st.sampled_from((np.int8, np.uint8))
sizes = st.sampled_from((1.0, 1e-3, 1e4, 1e-30, 0.0))


def same(found, wanted):
    """Whether two arrays hold the same bits."""
    return (found.shape, found.dtype, found.tobytes()) == (wanted.shape, wanted.dtype, wanted.tobytes())


def alike(found, wanted):
    """Whether two arrays hold the same numbers; of a NaN, that it is one."""
    return found.dtype == wanted.dtype and np.array_equal(found, wanted, equal_nan=True)


@each_kernel("ring_append")
@examples
@given(seeds, capacities, counts, lengths, shapes, dtypes, dtypes, specials)
def test_ring_append(kernel, seed, capacity, T, length, shape, dtype, new_dtype, special):
    K, *widths = shape
    caches = [np.full((capacity, K, width), np.nan, dtype_named(dtype)) for width in widths]
    new = [numbers(seed + i, T, K, width, dtype=new_dtype, special=special) for i, width in enumerate(widths)]
    wanted = reference("ring_append")(*(x.copy() for x in caches), *new, length)
    found = kernel.call(*caches, *new, length)
    assert all(map(alike, found, wanted)) and all(map(np.shares_memory, found, caches))


@each_kernel("ring_read")
@examples
@given(seeds, capacities, lengths, shapes, dtypes, specials)
def test_ring_read(kernel, seed, capacity, length, shape, dtype, special):
    K, *widths = shape
    caches = [numbers(seed + i, capacity, K, width, dtype=dtype, special=special) for i, width in enumerate(widths)]
    assert all(map(same, kernel.call(*caches, length), reference("ring_read")(*caches, length)))


@each_kernel("quantized_append")
@examples
@given(seeds, codes_types, st.sampled_from((0, 1, 2, 9)), shapes, dtypes, dtypes, specials, sizes)
def test_quantized_append(kernel, seed, codes_type, T, shape, scales, dtype, special, size):
    with np.errstate(all="ignore"):
        x = (numbers(seed, T, *shape[:2], special=special).astype(np.float64) * size).astype(dtype_named(dtype))
    cache = held(codes_type, T + 3, *shape[:2], scales=dtype_named(scales))
    wanted = reference("quantized_append")(*(part.copy() for part in cache), x, 2)
    found = kernel.call(*cache, x, 2)
    assert all(map(same, found, wanted)) and all(map(np.shares_memory, found, cache))


@each_kernel("quantized_read")
@examples
@given(seeds, codes_types, st.sampled_from((0, 1, 2, 9)), shapes, dtypes, specials)
def test_quantized_read(kernel, seed, codes_type, length, shape, dtype, special):
    codes = np.random.default_rng(seed).integers(0, 256, (length + 1, *shape[:2])).astype(np.uint8).view(codes_type)
    scales = numbers(seed, length + 1, shape[0], dtype=dtype, special=special)
    assert alike(kernel.call(codes, scales, length), reference("quantized_read")(codes, scales, length))


@each_kernel("copy_blocks")
@examples
@given(seeds, st.integers(0, 4), st.sampled_from((1, 3, 16)), shapes, dtypes, dtypes)
def test_copy_blocks(kernel, seed, count, block_size, shape, dtype, v_dtype):
    K, *widths = shape
    order, kinds = np.random.default_rng(seed).permutation(7), (dtype, v_dtype)
    caches = [numbers(seed + i, 7, block_size, K, widths[i], dtype=kinds[i], special=np.nan) for i in range(2)]
    pairs = order[:2][np.arange(count) % 2], order[2 : 2 + count]
    wanted = reference("copy_blocks")(*(x.copy() for x in caches), *pairs)
    found = kernel.call(*caches, *pairs)
    assert all(map(same, found, wanted)) and all(map(np.shares_memory, found, caches))


@given(seeds, st.lists(st.integers(0, 9), min_size=1, max_size=5), st.integers(1, 5))
def test_attention_over_a_ring_of_the_kernels_is_attention_with_a_window(seed, chunks, window):
    T, end = sum(chunks), 0
    q, k, v = numbers(seed, T, 2, 4), numbers(seed + 1, T, 1, 4), numbers(seed + 2, T, 1, 4)
    caches, wanted = [np.full((window, 1, 4), np.nan, np.float32) for _ in "kv"], attention(q, k, v, window=window)
    for count in chunks:
        start, end = end, end + count
        keys, values = (
            np.concatenate((old, new[start:end]))
            for old, new in zip(ring_read(*caches, start), (k, v), strict=True))
        found = attention(q[start:end], keys, values, window=window)
        assert np.allclose(found, wanted[start:end], atol=1e-5)
        ring_append(*caches, k[start:end], v[start:end], start)


@examples
@given(seeds, codes_types, st.lists(st.integers(0, 5), max_size=4))
def test_chunks_and_neighbours_change_no_code_of_the_kernels(seed, codes_type, chunks):
    T, end = sum(chunks), 0
    x, cache = numbers(seed, T, 2, 40), held(codes_type, T + 1, 2, 40)
    for count in chunks:
        start, end = end, end + count
        quantized_append(*cache, x[start:end], start)
    alone = quantized_append(*held(codes_type, T, 1, 40), x[:, 1:], 0)
    assert same(cache[0][:T, 1:], alone[0]) and same(cache[1][:T, 1:], alone[1])
    assert (cache[0][T:] == 77).all() and np.isnan(cache[1][T:]).all()
    error, most = np.abs(quantized_read(*cache, T) - x), np.abs(x).max(-1, keepdims=True, initial=0)
    assert (error <= most * (0.5 / 127 if codes_type is np.int8 else 1 / 28) * 1.0001).all()


@given(seeds, st.integers(1, 3))
def test_a_branch_that_the_kernels_write_never_changes_its_sibling(seed, block_size):
    check_steps(Engine(block_size, writes=paged_append, copies=copy_blocks), seed)


ROWS = BROKEN + BROKEN_COPIES


@pytest.mark.parametrize(
    ("function", "label", "arguments", "keywords"), ROWS, ids=[f"{row[0].__name__}-{row[1]}" for row in ROWS]
)
def test_twin_refuses_by_label(function, label, arguments, keywords):
    twin = importlib.import_module(function.__module__.replace("refimpl", "gpu", 1))
    with pytest.raises(ContractError, match=f"^{label}: "):
        getattr(twin, function.__name__)(*arguments, **keywords)


def test_numbers_are_read_in_the_dtype_of_the_scales():
    out = np.zeros((1, 1, 1), np.float16)
    with pytest.raises(ContractError, match=r"^x is float16, the scales are float32$"):
        quantized_read_into(out, np.zeros((1, 1, 1), np.int8), np.ones((1, 1), np.float32))
