"""Flash attention on tensor cores: more than one tile of queries and of keys, and what its kernel is made of."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu import device, sass
from gpu.llm.flash_mma import VARIANTS, flash_mma_into
from gpu.toolkit import spilled
from tests.equivalence.attending import assert_rows, assert_scores, truth_of
from tests.equivalence.strategies import examples, numbers, seeds

queries, keys = st.integers(1, 80), st.integers(1, 100)  # the tile of queries grows at 65
heads = st.sampled_from(((1, 1), (2, 2), (2, 1), (3, 1), (4, 2)))  # (N, K)
shapes = st.sampled_from((("bfloat16", 64), ("bfloat16", 128), ("float16", 64), ("float16", 128)))


def draw(seed, T, S, NK, shape):
    (N, K), (dtype, H) = NK, shape
    axes = {"q": (T, N, H), "k": (S, K, H), "v": (S, K, H)}
    return {name: numbers(seed + i, *axes[name], dtype=dtype) for i, name in enumerate(axes)}


def attention(q, k, v, **rules):
    """Return o and the lse as the kernel gives them."""
    (chosen,) = [variant for variant in VARIANTS if variant.takes(q, k, v, **rules)]
    return chosen.call(q, k, v, **rules, return_lse=True)


@examples
@given(seeds, queries, keys, heads, shapes, st.sampled_from((None, 1, 33, 64, 100)), st.sampled_from((None, 0.05, 1.0)))
def test_flash_mma_gives_attention(seed, T, S, NK, shape, window, scale):
    arguments = draw(seed, T, S, NK, shape) | {"window": window, "scale": scale}
    (o, lse), magnitude = truth_of("attention", arguments | {"return_lse": True}, ("v",))
    found, found_lse = attention(**arguments)
    spread = 1 if scale is None else scale * shape[1] ** 0.5  # of the scores, whose errors exp amplifies
    assert_rows(found, o, magnitude, arguments["q"].dtype, terms=S + shape[1])
    assert_scores(found_lse, lse, terms=(S + shape[1]) * max(1, spread) ** 2)


@examples
@given(seeds, queries, keys, heads, shapes)
def test_flash_mma_that_is_not_causal(seed, T, S, NK, shape):
    arguments = draw(seed, T, S, NK, shape) | {"causal": False}
    (o, lse), magnitude = truth_of("attention", arguments | {"return_lse": True}, ("v",))
    found, found_lse = attention(**arguments)
    assert_rows(found, o, magnitude, arguments["q"].dtype, terms=S + shape[1])
    assert_scores(found_lse, lse, terms=S + shape[1])


@given(seeds, st.integers(2, 90), shapes, st.sampled_from((None, 1, 40)))
def test_a_prompt_in_pieces_has_the_same_bits(seed, S, shape, window):
    whole = draw(seed, S, S, (2, 1), shape)
    o, lse = attention(**whole, window=window)
    cut = 1 + seed % (S - 1)
    for first, last in ((0, cut), (cut, S)):
        piece = {"q": whole["q"][first:last], "k": whole["k"][:last], "v": whole["v"][:last]}
        found, found_lse = attention(**piece, window=window)
        assert np.array_equal(found, o[first:last]) and np.array_equal(found_lse, lse[first:last])


@given(seeds, st.integers(2, 60), shapes, st.sampled_from((np.nan, np.inf, -np.inf)), st.sampled_from((None, 7)))
def test_what_is_not_finite_reaches_who_sees_it(seed, S, shape, poison, window):
    clean, at = draw(seed, S, S, (2, 1), shape), seed % S
    o, lse = attention(**clean, window=window)
    poisoned = clean | {"v": clean["v"].copy()}
    poisoned["v"][at, 0, 5] = poison
    found, found_lse = attention(**poisoned, window=window)
    t = np.arange(S)
    sees = (t >= at) & (t < at + (window or S))
    assert np.array_equal(found[sees][..., 5], np.full((sees.sum(), 2), poison, found.dtype), equal_nan=True)
    found[sees, :, 5] = o[sees, :, 5]
    assert np.array_equal(found, o) and np.array_equal(found_lse, lse)


@pytest.mark.parametrize(("dtype", "H"), [("bfloat16", 64), ("float16", 128)])
def test_no_bank_conflict_and_whole_sectors(dtype, H):
    with device.recording() as launches:
        attention(**draw(0, 192, 256, (2, 1), (dtype, H)))
    counters = launches[0].counters
    assert counters.shared_wavefronts == counters.shared_ideal
    assert all(asked == least for asked, least in (counters.loads[name] for name in "qkv"))
    assert counters.stores["o"][0] == counters.stores["o"][1]


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
@pytest.mark.parametrize(("dtype", "H", "T"), [("bfloat16", 64, 1), ("float16", 64, 65), ("bfloat16", 128, 65)])
def test_machine_code(dtype, H, T, arch):
    with device.recording() as launches:
        attention(**draw(0, T, 1, (1, 1), (dtype, H)))
    kernel = launches[0].kernel
    counts = sass.count(kernel.cubin_path(arch))
    rows, columns = (1 if T == 1 else 2), H // 16
    tile = 4096 // H  # keys
    assert counts.mma == rows * (tile // 8) * columns * 2
    assert counts.ldmatrix == columns * (rows + tile // 16) + columns * tile // 16
    assert counts.loads_128 == (64 * rows + 2 * tile) * H // 8 // 128
    assert spilled(kernel.name, kernel.ptx(arch), arch) == 0


def test_takes_what_fits():
    fitting = draw(0, 3, 3, (2, 1), ("bfloat16", 64))
    assert [variant.name for variant in VARIANTS if variant.takes(**fitting)] == ["mma 64"]
    for other in (
        {"softcap": 1.0}, {"mask": np.ones((3, 3), bool)}, {"scale": -1.0}, {"v": numbers(0, 3, 1, 64)},
        {"window": 2, "prefix": 1}, {"chunk": 2},
        {"v": numbers(0, 3, 1, 128, dtype="bfloat16")}, draw(0, 0, 3, (2, 1), ("bfloat16", 64)),
        draw(0, 3, 3, (2, 1), ("float32", 64)), draw(0, 3, 3, (2, 1), ("bfloat16", 80)),
        {"k": np.zeros(3 * 64 + 1, fitting["k"].dtype)[1:].reshape(3, 1, 64)},
    ):  # fmt: skip
        assert not any(variant.takes(**fitting | other) for variant in VARIANTS)


def test_writes_into_given_buffers():
    arguments = draw(1, 5, 5, (2, 1), ("float16", 64))
    o, lse = np.zeros_like(arguments["q"]), np.zeros((5, 2), np.float32)
    flash_mma_into(o, lse, *arguments.values(), window=3)
    assert all(np.array_equal(a, b) for a, b in zip((o, lse), attention(**arguments, window=3), strict=True))


@given(seeds, queries, keys, shapes, st.sampled_from((None, 1, 40)))
def test_a_sink_takes_its_share_and_none_changes_no_bit(seed, T, S, shape, window):
    arguments = draw(seed, T, S, (2, 1), shape) | {"window": window}
    o, lse = attention(**arguments)
    found, found_lse = attention(**arguments, sinks=np.full(2, -np.inf, np.float32))
    assert np.array_equal(found, o) and np.array_equal(found_lse, lse)
    found, found_lse = attention(**arguments, sinks=np.array([-1e4, 1e4], np.float32))
    assert np.array_equal(found[:, 0], o[:, 0]) and (found[:, 1] == 0).all() and np.array_equal(found_lse, lse)
