"""Every kernel of attention, of its steps and of their merging gives what the reference gives in float64."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from golden.values import dtype_named
from gpu import device
from gpu.llm.attention import attention as twin
from gpu.registry import variants
from tests.equivalence.attending import assert_rows, assert_scores, truth_of
from tests.equivalence.strategies import dtypes, each_kernel, examples, numbers, seeds

lengths = st.sampled_from((0, 1, 2, 7, 16, 33, 65))
heads = st.sampled_from(((1, 1), (3, 3), (6, 2), (5, 1), (17, 1)))  # (N, K)
shapes = st.sampled_from((  # dtype, H, H2, how the mask hides: a kernel is compiled for each
    ("float32", 1, 1, "none"), ("float32", 5, 3, "added"), ("float32", 64, 64, "none"), ("float32", 80, 16, "bool"),
    ("bfloat16", 64, 64, "none"), ("bfloat16", 128, 128, "none"), ("bfloat16", 8, 40, "added"),
    ("float16", 64, 64, "none"), ("float16", 3, 130, "bool"), ("float16", 128, 128, "none"),
    ("float32", 256, 256, "none"), ("float32", 300, 264, "added"),
))  # fmt: skip
tensor_shapes = st.sampled_from(tuple((dtype, H, H, "none") for dtype in ("bfloat16", "float16") for H in (64, 128)))
some = st.sampled_from((1, 7, 16, 33, 65, 130))
masked = shapes.filter(lambda shape: shape[3] != "none")
windows = st.sampled_from((None, None, 1, 3, 40))
softcaps = st.sampled_from((None, None, 0.5, 30.0))
scales = st.sampled_from((None, None, 0.3, -0.5))
prefixes = st.sampled_from((0, 0, 2, 20))
chunks = st.sampled_from((None, None, 1, 5, 32, 50))

*TENSOR_CORES, NUMBA = variants("attention")


def draw(seed, T, S, NK, shape):
    """Return q, k, v and a mask of one head or of all; some rows of it hide everything."""
    (N, K), (dtype, H, H2, kind) = NK, shape
    q, k, v = (numbers(seed + i, *axes, dtype=dtype) for i, axes in enumerate(((T, N, H), (S, K, H), (S, K, H2))))
    axes = (N, T, S) if seed % 2 else (T, S)
    visible = (numbers(seed + 3, *axes) > -0.5) & (numbers(seed + 4, *axes[:-1], 1) > -1)
    added = np.where(visible, numbers(seed + 5, *axes), -np.inf).astype(np.float32)
    return {"q": q, "k": k, "v": v, "mask": {"none": None, "bool": visible, "added": added}[kind]}


def rules_of(seed, N, window, prefix, chunk, sunk, dtype="float32"):
    """Return the rules as keywords: a prefix stands beside a window, and every fourth head has no sink."""
    sinks = np.where(numbers(seed + 6, N) > -0.7, 2 * numbers(seed + 7, N), -np.inf).astype(dtype_named(dtype))
    return {"window": window, "prefix": prefix if window else 0, "chunk": chunk, "sinks": sinks if sunk else None}


def assert_attention(kernel, arguments, terms):
    (o, lse), magnitude = truth_of(kernel.op, arguments | {"return_lse": True}, ("v",))
    found, found_lse = kernel.call(**arguments, return_lse=True)
    assert_rows(found, o, magnitude, arguments["q"].dtype, terms)
    assert_scores(found_lse, lse, terms)
    assert np.array_equal(kernel.call(**arguments), found)


@examples
@given(seeds, lengths, lengths, heads, shapes, windows, softcaps, scales, prefixes, chunks, st.booleans())
def test_attention(seed, T, S, NK, shape, window, softcap, scale, prefix, chunk, sunk):
    arguments = draw(seed, T, S, NK, shape) | rules_of(seed, NK[0], window, prefix, chunk, sunk)
    arguments |= {"softcap": softcap, "scale": scale}
    assert_attention(NUMBA, arguments, terms=4 * (S + shape[1]))


@examples
@given(seeds, st.sampled_from((1, 17, 33)), st.sampled_from((17, 33, 130)), heads, st.sampled_from((1, 3, 40)),
       st.sampled_from((1, 2, 20)), st.sampled_from((None, None, 50)), st.booleans())  # fmt: skip
def test_attention_with_a_prefix(seed, T, S, NK, window, prefix, chunk, sunk):
    arguments = draw(seed, T, S, NK, ("float32", 64, 64, "none"))
    arguments |= rules_of(seed, NK[0], window, prefix, chunk, sunk)
    assert_attention(NUMBA, arguments, terms=4 * (S + 64))


@examples
@given(seeds, lengths, lengths, heads, shapes, st.booleans())
def test_attention_that_is_not_causal(seed, T, S, NK, shape, sunk):
    arguments = draw(seed, T, S, NK, shape) | rules_of(seed, NK[0], None, 0, None, sunk) | {"causal": False}
    assert_attention(NUMBA, arguments, terms=4 * (S + shape[1]))


@examples
@given(seeds, some, some, heads, tensor_shapes, windows, st.sampled_from((None, 0.3)), st.booleans(), st.booleans())
def test_attention_on_tensor_cores(seed, T, S, NK, shape, window, scale, causal, sunk):
    arguments = draw(seed, T, S, NK, shape) | {"scale": scale, "causal": causal}
    arguments |= rules_of(seed, NK[0], window if causal else None, 0, None, sunk, shape[0])
    (kernel,) = (variant for variant in TENSOR_CORES if variant.takes(**arguments))
    assert_attention(kernel, arguments, terms=4 * (S + shape[1]))


@each_kernel("flash_attention")
@examples
@given(seeds, lengths, lengths, heads, shapes, windows, softcaps, st.integers(1, 70), prefixes, chunks, st.booleans())
def test_flash_attention(kernel, seed, T, S, NK, shape, window, softcap, tile, prefix, chunk, sunk):
    arguments = draw(seed, T, S, NK, shape) | rules_of(seed, NK[0], window, prefix, chunk, sunk)
    arguments |= {"softcap": softcap, "tile": tile}
    assert_attention(kernel, arguments, terms=4 * (S + shape[1]))


@each_kernel("flash_step")
@examples
@given(seeds, lengths, lengths, heads, shapes, softcaps, st.booleans())
def test_flash_step(kernel, seed, T, S, NK, shape, softcap, is_first):
    (N, _), H2 = NK, shape[2]
    state = numbers(seed + 7, T, N, H2), numbers(seed + 8, T, N), 1 + np.abs(numbers(seed + 9, T, N))
    if is_first:
        state = np.zeros_like(state[0]), np.full((T, N), -np.inf, np.float32), np.zeros((T, N), np.float32)
    arguments = draw(seed, T, S, NK, shape) | dict(zip(("sums", "top", "total"), state, strict=True))
    (sums, top, total), magnitude = truth_of("flash_step", arguments | {"softcap": softcap}, ("sums", "v"))
    found, terms = kernel.call(**arguments, softcap=softcap), 4 * (S + shape[1])
    assert_rows(found[0], sums, magnitude, np.dtype(np.float32), terms)
    assert_scores(found[1], top, terms)
    assert_rows(found[2][..., None], total[..., None], total[..., None], np.dtype(np.float32), terms)


@each_kernel("merge_states")
@examples
@given(seeds, lengths, heads, st.sampled_from((1, 3, 64, 130)), dtypes, dtypes, st.booleans())
def test_merge_states(kernel, seed, T, NK, H2, dtype, other, some_are_blind):
    parts = [numbers(seed + i, T, NK[0], H2, dtype=each) for i, each in enumerate((dtype, other))]
    lses = [9 * numbers(seed + i, T, NK[0]) for i in (2, 3)]
    for o, lse, drawn in zip(parts, lses, (numbers(seed + i, T, NK[0]) for i in (4, 5)), strict=True):
        blind = (drawn > 0) & some_are_blind
        lse[blind], o[blind] = -np.inf, np.nan
    arguments = {"o_a": parts[0], "lse_a": lses[0], "o_b": parts[1], "lse_b": lses[1]}
    (o, lse), magnitude = truth_of("merge_states", arguments, ("o_a", "o_b"))
    found, found_lse = kernel.call(**arguments)
    assert_rows(found, o, magnitude, parts[0].dtype, terms=16)
    assert_scores(found_lse, lse, terms=16)


@examples
@given(seeds, lengths, st.sampled_from((2, 7, 33)), heads, masked, windows, st.sampled_from((np.nan, np.inf, -np.inf)))
def test_poison_in_hidden_slots_changes_nothing(seed, T, S, NK, shape, window, poison):
    arguments = draw(seed, T, S, NK, shape) | {"window": window}
    arguments["mask"][..., seed % S] = False if shape[3] == "bool" else -np.inf
    clean = twin(**arguments, return_lse=True)
    arguments["k"][seed % S], arguments["v"][seed % S] = poison, poison
    found = twin(**arguments, return_lse=True)
    assert all(np.array_equal(a, b) for a, b in zip(found, clean, strict=True))


@examples
@given(seeds, st.sampled_from((1, 8, 33)), heads, dtypes, st.sampled_from((np.nan, np.inf)))
def test_poison_reaches_only_the_queries_that_see_it(seed, S, NK, dtype, poison):
    arguments, bad = draw(seed, S, S, NK, (dtype, 64, 64, "none")), seed % S
    clean = twin(**arguments)
    arguments["v"][bad] = poison
    found = twin(**arguments)
    assert np.array_equal(found[:bad], clean[:bad]) and not np.isfinite(found[bad:]).any()


@examples
@given(seeds, st.sampled_from((3, 20, 65)), heads, dtypes, windows)
def test_no_bit_of_a_row_depends_on_the_other_queries(seed, S, NK, dtype, window):
    """A prompt that is cut anywhere gives what it gives in one piece."""
    arguments = draw(seed, S, S, NK, (dtype, 64, 64, "none")) | {"window": window}
    whole, cut = twin(**arguments, return_lse=True), 1 + seed % (S - 1)
    for queries in (slice(0, cut), slice(cut, S), slice(cut, cut + 1)):
        seen = {name: arguments[name][: queries.stop] for name in "kv"}
        part = twin(**arguments | seen | {"q": arguments["q"][queries]}, return_lse=True)
        assert all(np.array_equal(a, b[queries]) for a, b in zip(part, whole, strict=True))


def test_no_float64_and_no_launch_without_rows():
    with device.recording() as launches:
        found = twin(*(np.zeros((0, heads, 64), np.float32) for heads in (4, 2, 2)))
    assert found.shape == (0, 4, 64) and launches == []


@pytest.mark.parametrize(("T", "S"), [(1, 300), (40, 40)])
def test_keys_and_values_are_read_in_whole_sectors(T, S):
    q, k, v = numbers(0, T, 4, 64), numbers(1, S, 2, 64), numbers(2, S, 2, 64)
    with device.recording() as launches:
        twin(q, k, v)
    (launch,) = launches
    for asked, least in (launch.counters.loads["k"], launch.counters.loads["v"]):
        assert asked == least > 0
    assert launch.counters.shared_wavefronts == launch.counters.shared_ideal
