"""Every kernel of embedding, positions, cache append and feed-forward gives what the reference gives."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from golden.tolerance import judge
from golden.values import dtype_named
from gpu import device
from gpu.llm.embedding import embedding, embedding_into
from gpu.llm.kv_cache import cache_append
from gpu.llm.mlp import gated_mlp, mlp, mlp_into
from gpu.llm.position import learned_position, rope, rope_append_into
from refimpl.basics import activation as activations
from refimpl.basics.norm import rms_norm
from refimpl.llm.kv_cache import KVCache, new_cache
from refimpl.llm.position import rope as turned
from tests.equivalence.strategies import (
    assert_equivalent,
    dtypes,
    each_kernel,
    examples,
    numbers,
    seeds,
    specials,
    widths,
)

counts = st.sampled_from((1, 2, 3, 9, 17))
heads = st.sampled_from(((1, 1), (3, 3), (6, 2), (9, 1)))  # (N, K)
head_widths = st.sampled_from(((2, 1), (33, 3), (64, 32), (65, 31), (128, 64), (5, 0)))  # (H, J)
cache_widths = st.sampled_from(((1, 1), (2, 33), (3, 64)))  # (K, H)
inner_widths = st.sampled_from((1, 31, 64, 130))
hidden_widths = st.sampled_from((3, 33, 257))
names = st.sampled_from(("gelu_erf", "gelu_quick", "gelu_tanh", "relu", "silu"))
ids_types = st.sampled_from((np.int32, np.int64, np.int16))


@each_kernel("embedding")
@examples
@given(seeds, counts, widths, widths, dtypes, specials, ids_types)
def test_embedding(kernel, seed, T, V, D, dtype, special, ids_type):
    ids = np.random.default_rng(seed).integers(0, V, T).astype(ids_type)
    arguments = {"ids": ids, "table": numbers(seed, V, D, dtype=dtype, special=special)}
    assert_equivalent(kernel, arguments, dtype, exact=True)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_embedding_into_widens(dtype):
    ids, table, out = np.int32([2, 0]), numbers(1, 3, 65, dtype=dtype), device.empty((2, 65), np.float32)
    embedding_into(out, ids, table)
    assert np.array_equal(out, table[ids].astype(np.float32))


@each_kernel("learned_position")
@examples
@given(seeds, counts, widths, widths, dtypes, dtypes, specials)
def test_learned_position(kernel, seed, T, rows, D, dtype, table_dtype, special):
    positions = np.random.default_rng(seed).integers(0, rows, T)
    x, table = numbers(seed, T, D, dtype=dtype, special=special), numbers(seed + 1, rows, D, dtype=table_dtype)
    assert_equivalent(kernel, {"x": x, "positions": positions, "table": table}, dtype, terms=16)


@each_kernel("rope")
@examples
@given(seeds, counts, heads, head_widths, dtypes, st.sampled_from((np.float32, np.float64)), st.booleans(), specials)
def test_rope(kernel, seed, T, NK, HJ, dtype, table_dtype, interleaved, special):
    (N, _), (H, J) = NK, HJ
    angles = 100 * numbers(seed, T, J)
    table = {"cos": np.cos(angles).astype(table_dtype), "sin": np.sin(angles).astype(table_dtype)}
    x = numbers(seed + 1, T, N, H, dtype=dtype, special=special)
    assert_equivalent(kernel, {"x": x, **table, "interleaved": interleaved}, dtype, terms=16)


@examples
@given(seeds, counts, heads, head_widths, dtypes, st.booleans(), st.booleans(), st.booleans())
def test_rope_append_is_norm_rope_and_append(seed, T, NK, HJ, dtype, interleaved, has_gains, is_fused):
    (N, K), (H, J) = NK, HJ
    block_size, num_blocks = 4, 8
    projected = numbers(seed, T, N + 2 * K, H)
    q, k, v = projected[:, :N], projected[:, N : N + K], projected[:, N + K :]
    gains = [numbers(seed + i, H, dtype=dtype) if has_gains else None for i in (1, 2)]
    cos, sin = np.cos(numbers(seed + 3, T, J)), np.sin(numbers(seed + 3, T, J))
    slots = np.random.default_rng(seed).permutation(num_blocks * block_size)[:T].astype(np.int32)
    slots[0] = -1
    wanted_q, wanted_k = (
        turned(wide if gain is None else rms_norm(wide, gain.astype(np.float64)), cos, sin, interleaved=interleaved)
        for wide, gain in zip((q.astype(np.float64), k.astype(np.float64)), gains, strict=True)
    )
    wanted_v = v.astype(np.float64)
    pages = [np.full((num_blocks, block_size, K, H), 7, dtype_named(dtype)) for _ in "kv"]
    q, k, v = (q, k, v) if is_fused else (x.copy() for x in (q, k, v))
    named = dict(zip(("q_gain", "k_gain"), gains, strict=True))
    rope_append_into(q, *pages, q, k, v, cos, sin, slots, interleaved=interleaved, **named)
    assert judge(q, wanted_q, "float32", terms=4 * H).passed
    for page, wanted in zip(pages, (wanted_k, wanted_v), strict=True):
        flat = page.reshape(-1, K, H)
        assert judge(flat[slots[1:]], wanted[1:], dtype, terms=4 * H).passed
        assert (np.delete(flat, slots[1:], 0) == 7).all()


@examples
@given(seeds, counts, st.integers(0, 5), cache_widths, dtypes, dtypes, specials)
def test_cache_append(seed, T, length, shape, dtype, new_dtype, special):
    k, v = (numbers(seed + i, T, *shape, dtype=new_dtype, special=special) for i in (0, 1))
    empty_k, empty_v = (np.full((length + T + 2, *shape), np.nan, dtype_named(dtype)) for _ in "kv")
    cache = cache_append(KVCache(empty_k, empty_v, length), k, v)
    assert cache.length == length + T
    for slots, new in ((cache.k, k), (cache.v, v)):
        assert np.array_equal(slots[length:-2], new.astype(slots.dtype), equal_nan=True)
        assert np.isnan(slots[:length].astype(np.float32)).all() and np.isnan(slots[-2:].astype(np.float32)).all()


@each_kernel("cache_append")
def test_cache_append_writes_where_the_cache_lies(kernel):
    cache = new_cache(4, 1, 2)
    assert kernel.call(cache, *np.ones((2, 2, 1, 2), np.float32)).length == 2
    assert cache.k.sum() == cache.v.sum() == 4


def parted(hidden: np.ndarray, w_down: np.ndarray, truth: np.ndarray) -> float:
    """Return the square of how much larger the parts of the sums of a row may be than its largest value."""
    parts, most = np.linalg.norm(hidden, axis=1) * np.linalg.norm(w_down, axis=1).max(), np.abs(truth).max(1)
    return float(np.square(np.minimum(parts[most > 0] / most[most > 0], 1e3)).max(initial=1.0))


@each_kernel("mlp")
@examples
@given(seeds, counts, inner_widths, hidden_widths, dtypes, dtypes, names, st.booleans())
def test_mlp(kernel, seed, T, D, F, dtype, w_dtype, activation, has_bias):
    arguments = {"x": numbers(seed, T, D, dtype=dtype), "w_up": numbers(seed + 1, F, D, dtype=w_dtype)}
    arguments |= {"w_down": numbers(seed + 2, D, F, dtype=w_dtype), "activation": activation}
    if has_bias:
        arguments |= {"b_up": numbers(seed + 3, F, dtype=w_dtype), "b_down": numbers(seed + 4, D, dtype=w_dtype)}
    wide = {name: x.astype(np.float64) for name, x in arguments.items() if name != "activation"}
    hidden = getattr(activations, activation)(wide["x"] @ wide["w_up"].T + wide.get("b_up", 0.0))
    truth = hidden @ wide["w_down"].T + wide.get("b_down", 0.0)
    reach = np.linalg.norm(wide["x"], axis=1)[:, None] * np.linalg.norm(wide["w_up"], axis=1) + np.abs(hidden)
    assert_equivalent(kernel, arguments, dtype, terms=9 * parted(reach, wide["w_down"], truth))


@each_kernel("gated_mlp")
@examples
@given(seeds, counts, inner_widths, hidden_widths, dtypes, dtypes, names, st.booleans())
def test_gated_mlp(kernel, seed, T, D, F, dtype, w_dtype, activation, has_bias):
    shapes = {"x": (T, D), "w_gate": (F, D), "w_up": (F, D), "w_down": (D, F)}
    shapes |= {"b_gate": (F,), "b_up": (F,), "b_down": (D,)} if has_bias else {}
    kinds = {name: dtype if name == "x" else w_dtype for name in shapes}
    arguments = {name: numbers(seed + i, *shapes[name], dtype=kinds[name]) for i, name in enumerate(shapes)}
    wide = {name: x.astype(np.float64) for name, x in arguments.items()}
    gate = getattr(activations, activation)(wide["x"] @ wide["w_gate"].T + wide.get("b_gate", 0.0))
    up = wide["x"] @ wide["w_up"].T + wide.get("b_up", 0.0)
    truth = (gate * up) @ wide["w_down"].T + wide.get("b_down", 0.0)
    size = np.linalg.norm(wide["x"], axis=1)[:, None]
    reach = (size * np.linalg.norm(wide["w_gate"], axis=1) + 1) * (size * np.linalg.norm(wide["w_up"], axis=1) + 1)
    arguments["activation"] = activation
    assert_equivalent(kernel, arguments, dtype, terms=9 * parted(reach, wide["w_down"], truth))


def test_mlp_into_adds_a_residual():
    x, w_up, w_down, stream = numbers(1, 3, 16), numbers(2, 40, 16), numbers(3, 16, 40), numbers(4, 3, 16)
    truth = activations.silu(x.astype(np.float64) @ w_up.T.astype(np.float64)) @ w_down.T.astype(np.float64) + stream
    mlp_into(stream, device.empty((3, 40), np.float32), x, w_up, w_down, activation="silu", residual=stream)
    assert judge(stream, truth, "float32", terms=160).passed


@pytest.mark.parametrize(
    ("function", "shapes"),
    [(learned_position, ((0, 2), (0,), (3, 2))), (rope, ((0, 2, 4), (0, 2), (0, 2))),
     (mlp, ((0, 2), (3, 2), (2, 3))), (gated_mlp, ((0, 2), (3, 2), (3, 2), (2, 3)))],
)  # fmt: skip
def test_nothing_gives_nothing_without_a_launch(function, shapes):
    arguments = [np.zeros(shape, np.int64 if shape == (0,) else np.float32) for shape in shapes]
    with device.recording() as launches:
        assert function(*arguments).shape == shapes[0]
        assert embedding(np.zeros(0, np.int64), np.ones((3, 2), np.float32)).shape == (0, 2)
    assert launches == []
