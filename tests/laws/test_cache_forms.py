"""Laws of the ring and of the cache of codes."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from refimpl.contract import ContractError
from refimpl.llm.attention import attention
from refimpl.llm.cache_forms import quantized_append, quantized_read, ring_append, ring_read
from refimpl.llm.kv_cache import cache_append, new_cache
from tests.laws.strategies import DTYPES, assert_near, heads, normal, seeds

chunkings = st.lists(st.integers(0, 9), min_size=1, max_size=5)
capacities = st.integers(1, 6)
codes_types = st.sampled_from((np.int8, np.uint8))
MOST = {np.int8: 127, np.uint8: 448}


def ring(capacity, *shape, poison=np.nan):
    """Return the empty rings of k and v."""
    return [np.full((capacity, *shape), poison), np.full((capacity, *shape), poison)]


@given(seeds, chunkings, capacities, st.integers(0, 3), heads)
def test_attention_over_a_ring_is_attention_with_a_window(seed, chunks, window, more, NK):
    """Whatever the chunks, those longer than the window included, and whatever lies in unused slots."""
    (N, K), T = NK, sum(chunks)
    q, k, v = normal(seed, T, N, 4), normal(seed + 1, T, K, 4), normal(seed + 2, T, K, 4)
    caches, outputs, end = ring(window + more, K, 4), [np.zeros((0, N, 4))], 0
    for count in chunks:
        start, end = end, end + count
        old = ring_read(*caches, start)
        keys, values = (np.concatenate((a, b[start:end])) for a, b in zip(old, (k, v), strict=True))
        outputs.append(attention(q[start:end], keys, values, window=window))
        ring_append(*caches, k[start:end], v[start:end], start)
    assert_near(np.concatenate(outputs), attention(q, k, v, window=window), terms=8 * T, scale=4.0)


@given(seeds, st.integers(1, 12), capacities, heads)
def test_a_decode_may_read_the_slots_as_they_lie(seed, T, window, NK):
    (N, K), caches = NK, ring(window, NK[1], 4)
    q, k, v = normal(seed, T, N, 4), normal(seed + 1, T, K, 4), normal(seed + 2, T, K, 4)
    wanted = attention(q, k, v, window=window)
    for t in range(T):
        ring_append(*caches, k[t : t + 1], v[t : t + 1], t)
        written = (np.arange(window) <= t)[None]
        found = attention(q[t : t + 1], *caches, causal=False, mask=written)
        assert_near(found[0], wanted[t], terms=8 * window, scale=4.0)


@given(seeds, chunkings, capacities)
def test_a_ring_holds_the_last_tokens_in_order(seed, chunks, capacity):
    T = sum(chunks)
    k, v, caches, end = normal(seed, T, 2, 3), normal(seed + 1, T, 2, 3), ring(capacity, 2, 3), 0
    for count in chunks:
        start, end = end, end + count
        given_back = ring_append(*caches, k[start:end], v[start:end], start)
        assert all(x is y for x, y in zip(given_back, caches, strict=True))
    found_k, found_v = ring_read(*caches, T)
    assert np.array_equal(found_k, k[-capacity:]) and np.array_equal(found_v, v[-capacity:])
    assert np.isnan(caches[0]).sum() == max(0, capacity - T) * 6


@given(seeds, chunkings)
def test_a_ring_that_never_turns_is_the_plain_cache(seed, chunks):
    T, end = sum(chunks), 0
    k, v, caches = normal(seed, T, 2, 3), normal(seed + 1, T, 2, 3), ring(T + 1, 2, 3)
    plain = new_cache(T + 1, 2, 3, np.float64)
    for count in chunks:
        start, end = end, end + count
        ring_append(*caches, k[start:end], v[start:end], start)
        plain = cache_append(plain, k[start:end], v[start:end])
    assert all(map(np.array_equal, ring_read(*caches, T), (plain.k[:T], plain.v[:T])))


def scatter(cache, new, index, mode):
    """Return what ONNX's TensorScatter makes of one sequence, given as [slots K H]."""
    node = helper.make_node("TensorScatter", ["cache", "new", "index"], ["out"], mode=mode)
    values = [helper.make_tensor_value_info(name, TensorProto.DOUBLE, None) for name in ("cache", "new", "out")]
    places = helper.make_tensor_value_info("index", TensorProto.INT64, [1])
    graph = helper.make_graph([node], "scatter", [*values[:2], places], values[2:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)], ir_version=10)
    heads_first = [x.transpose(1, 0, 2)[None].copy() for x in (cache, new)]
    given_back = dict(zip(("cache", "new"), heads_first, strict=True), index=np.array([index]))
    return ReferenceEvaluator(model).run(None, given_back)[0][0].transpose(1, 0, 2)


@given(seeds, capacities, st.integers(0, 6), st.integers(0, 20))
def test_ring_append_is_onnx_tensor_scatter_in_a_circle(seed, capacity, T, length):
    T = min(T, capacity)  # ONNX takes no more
    caches, new = [normal(seed, capacity, 2, 3), normal(seed + 1, capacity, 2, 3)], normal(seed + 2, 2, T, 2, 3)
    wanted = [scatter(x, y, length % capacity, "circular") for x, y in zip(caches, new, strict=True)]
    assert all(map(np.array_equal, ring_append(*caches, *new, length), wanted))


def held(codes_type, capacity, *shape, scales=np.float32):
    return np.full((capacity, *shape), 77, codes_type), np.full((capacity, shape[0]), np.nan, scales)


def steps_of(codes_type, x, scale):
    """Return how far two codes lie apart where x lies."""
    if codes_type is np.int8:
        return np.broadcast_to(scale, x.shape)
    ratio = np.maximum(np.abs(x) / scale, 2.0**-6)
    return scale * 2.0 ** (np.floor(np.log2(ratio)) - 3)


@given(seeds, codes_types, st.integers(0, 5), st.sampled_from(DTYPES), st.sampled_from((1e-5, 1.0, 1e4)))
def test_what_is_read_errs_by_half_a_step(seed, codes_type, T, dtype, size):
    x = (size * normal(seed, T, 3, 8)).astype(dtype)
    codes, scales = quantized_append(*held(codes_type, T + 2, 3, 8, scales=np.float64), x, 1)
    scale, wide = scales[1 : T + 1, :, None], x.astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        steps = steps_of(codes_type, wide, scale)
    error = np.abs(quantized_read(codes, scales, T + 1)[1:] - wide)
    eps = float(ml_dtypes.finfo(np.float32).eps)
    assert (error <= steps * (0.5 + 500 * eps)).all()
    np.testing.assert_allclose(scales[1 : T + 1] * MOST[codes_type], np.abs(wide).max(-1), rtol=2 * eps)


@given(seeds, st.integers(-5, 7), st.sampled_from((np.float32, np.float64, np.float16)))
def test_numbers_on_the_grid_are_exact(seed, exponent, scales):
    draws, unit = np.random.default_rng(seed), 2.0**exponent
    whole = draws.integers(-127, 128, (2, 3, 9)).astype(np.float64)
    numbers = np.delete(np.arange(256), (127, 255)).astype(np.uint8).view(ml_dtypes.float8_e4m3fn)
    eighth = draws.choice(numbers, (2, 3, 9)).astype(np.float64)
    whole[..., 0], eighth[..., 4] = -127, 448
    for codes_type, x in ((np.int8, whole), (np.uint8, eighth)):
        cache = quantized_append(*held(codes_type, 2, 3, 9, scales=scales), x * unit, 0)
        assert (cache[1] == unit).all() and np.array_equal(quantized_read(*cache, 2), x * unit)


@given(seeds, codes_types, chunkings)
def test_chunks_and_neighbours_change_no_code(seed, codes_type, chunks):
    T, end = sum(chunks), 0
    x, cache = normal(seed, T, 2, 5), held(codes_type, T + 1, 2, 5)
    for count in chunks:
        start, end = end, end + count
        given_back = quantized_append(*cache, x[start:end], start)
        assert given_back[0] is cache[0] and given_back[1] is cache[1]
    alone = quantized_append(*held(codes_type, T, 1, 5), x[:, 1:], 0)
    assert np.array_equal(cache[0][:T, 1:], alone[0]) and np.array_equal(cache[1][:T, 1:], alone[1])
    assert (cache[0][T:] == 77).all() and np.isnan(cache[1][T:]).all()
    assert np.isfinite(quantized_read(*cache, T)).all()


@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("codes_type", [np.int8, np.uint8])
def test_a_head_that_is_not_finite_is_read_as_nan_and_its_neighbour_as_it_is(codes_type, special):
    x = np.ones((1, 2, 3), np.float32)
    x[0, 0, 1] = special
    found = quantized_read(*quantized_append(*held(codes_type, 1, 2, 3), x, 0), 1)
    assert np.isnan(found[0, 0]).all() and np.array_equal(found[0, 1], x[0, 1])


@pytest.mark.parametrize("codes_type", [np.int8, np.uint8])
def test_a_head_of_zeros_and_one_too_small_are_read_as_zero(codes_type):
    x = np.array([[[0.0, -0.0], [1e-12, -1e-12]]], np.float32)
    cache = quantized_append(*held(codes_type, 1, 2, 2, scales=np.float16), x, 0)
    assert (cache[1] == 0).all() and (quantized_read(*cache, 1) == 0).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("codes_type", [np.int8, np.uint8])
def test_numbers_are_read_in_the_dtype_of_the_scales_with_one_cast(codes_type, dtype):
    codes, _ = quantized_append(*held(codes_type, 3, 2, 5), normal(0, 3, 2, 5), 0)
    scales = np.abs(normal(1, 3, 2)).astype(dtype)
    found = quantized_read(codes, scales, 2)
    wide = scales.astype(np.promote_types(np.float32, dtype) if dtype.kind == "f" else np.float32)
    assert found.dtype == dtype and np.array_equal(found, quantized_read(codes, wide, 2).astype(dtype))


def a(*shape, dtype=np.float64):
    return np.ones(shape, dtype)


RINGS, NEW = (a(3, 2, 4), a(3, 2, 5)), (a(2, 2, 4), a(2, 2, 5))
CODES, SCALES, X = a(4, 2, 3, dtype=np.int8), a(4, 2), a(2, 2, 3)
BROKEN = [
    *((ring_append, "C1", (a(n, 2, 4), a(m, 2, 5), *NEW, 0), {}) for n, m in ((0, 0), (3, 2))),
    *((ring_append, "C2", (*RINGS, *new, 0), {}) for new in ((a(2, 1, 4), NEW[1]), (NEW[0], a(1, 2, 5)), NEW[::-1])),
    (ring_append, "C3", (*RINGS, *NEW, -1), {}),
    *((ring_read, "C1", (a(n, 2, 4), a(m, 2, 5), 1), {}) for n, m in ((0, 0), (3, 2))),
    (ring_read, "C2", (*RINGS, -1), {}),
    *((quantized_append, "C1", (CODES.astype(dtype), SCALES, X, 0), {}) for dtype in (np.int16, np.float32, bool)),
    *((quantized_append, "C2", (CODES, scales, X, 0), {}) for scales in (a(4), a(4, 1), a(3, 2), a(4, 2, 3))),
    *((quantized_append, "C2", (CODES, SCALES, x, 0), {}) for x in (a(2, 2, 4), a(2, 1, 3), a(2, 6))),
    (quantized_append, "C2", (CODES[0], SCALES, X, 0), {}),
    *((quantized_append, "C3", (CODES, SCALES, X, length), {}) for length in (-1, 3)),
    *((quantized_read, "C1", (CODES.astype(dtype), SCALES, 0), {}) for dtype in (np.int16, np.float32)),
    *((quantized_read, "C2", (CODES, scales, 0), {}) for scales in (a(4), a(4, 1), a(3, 2))),
    *((quantized_read, "C3", (CODES, SCALES, length), {}) for length in (-1, 5)),
]


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize(
    ("function", "label", "arguments", "keywords"), BROKEN, ids=[f"{row[0].__name__}-{row[1]}" for row in BROKEN]
)
def test_refused_by_label(function, label, arguments, keywords):
    before = [np.copy(x) for x in arguments]
    with pytest.raises(ContractError, match=f"^{label}: "):
        function(*arguments, **keywords)
    assert all(map(np.array_equal, arguments, before))
