"""Laws of what a window, a chunk, a prefix and learned sinks do to attention, and of attention to another sequence."""

from types import SimpleNamespace

import jaxtyping
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refimpl.basics.linear import linear
from refimpl.contract import ContractError
from refimpl.efficient.flash import flash_attention, flash_step, merge_states
from refimpl.efficient.paged import paged_attention
from refimpl.llm.attention import attention, cross_attention
from tests.laws.batch import Batch
from tests.laws.strategies import assert_near, heads, normal, seeds, sizes
from tests.laws.test_attention import by_scalars, draw, softcaps
from tests.laws.test_flash import assert_same, draw_mask, start

windows = st.none() | st.integers(1, 6)
prefixes = st.integers(0, 9)
chunks = st.none() | st.integers(1, 6)
tiles = st.integers(1, 12)
kinds = st.sampled_from(["none", "bool", "added"])
OPS = SimpleNamespace(attention=attention, linear=linear)


def rules_of(window, prefix, chunk):
    """Return the rules as keywords; a prefix stands beside a window."""
    return {"window": window, "prefix": prefix if window else 0, "chunk": chunk}


def draw_sinks(seed, N):
    """Draw a sink for each head, every fourth of them none."""
    return np.where(normal(seed + 8, N) > -0.7, 2 * normal(seed + 9, N), -np.inf)


def with_sink(o, lse, sinks):
    """Share the softmax of a plain result with sinks, by its log-sum-exp."""
    weight = np.exp(lse)
    return o * (weight / np.where(weight > 0, weight + np.exp(sinks), 1))[..., None]


@given(seeds, sizes, sizes, heads, windows, prefixes, chunks, softcaps)
def test_attention_with_every_rule_is_its_definition(seed, T, S, NK, window, prefix, chunk, softcap):
    (q, k, v), sinks, rules = draw(seed, T, S, *NK), draw_sinks(seed, NK[0]), rules_of(window, prefix, chunk)

    def sees(n, t, s):
        p = t + S - T
        near = window is None or s > p - window or s < prefix
        return s <= p and near and (chunk is None or s // chunk == p // chunk)

    o, lse = attention(q, k, v, **rules, softcap=softcap, sinks=sinks, return_lse=True)
    plain, wanted_lse = by_scalars(q, k, v, 0.5, sees, softcap)
    assert_same((o, lse), (with_sink(plain, wanted_lse, sinks), wanted_lse), terms=40)


@given(seeds, sizes, sizes, heads, windows, prefixes, chunks)
def test_a_sink_of_minus_infinity_is_none_and_no_sink_changes_the_lse(seed, T, S, NK, window, prefix, chunk):
    (q, k, v), rules = draw(seed, T, S, *NK), rules_of(window, prefix, chunk)
    o, lse = attention(q, k, v, **rules, return_lse=True)
    found = attention(q, k, v, **rules, sinks=np.full(NK[0], -np.inf), return_lse=True)
    assert np.array_equal(found[0], o) and np.array_equal(found[1], lse)
    assert np.array_equal(attention(q, k, v, **rules, sinks=draw_sinks(seed, NK[0]), return_lse=True)[1], lse)


@given(seeds, sizes, sizes, heads)
def test_a_sink_is_a_key_more_without_a_value(seed, T, S, NK):
    (q, k, v), sinks, N = draw(seed, T, S, *NK), draw_sinks(seed, NK[0]), NK[0]
    mask = np.where(np.tri(T, S, S - T, dtype=bool), 0.0, -np.inf)
    added = np.concatenate([np.tile(mask, (N, 1, 1)), np.broadcast_to(sinks[:, None, None], (N, T, 1))], -1)
    k_more, v_more = (np.concatenate([x, np.zeros_like(x[:1])]) for x in (k, v))
    wanted, wanted_lse = attention(q, k_more, v_more, causal=False, mask=added, return_lse=True)
    o, lse = attention(q, k, v, sinks=sinks, return_lse=True)
    assert_same((o, np.logaddexp(lse, sinks)), (wanted, wanted_lse), terms=40)


@given(seeds, sizes, sizes, heads, windows, prefixes)
def test_a_sink_is_a_part_to_merge_and_a_state_to_start_from(seed, T, S, NK, window, prefix):
    (q, k, v), N, rules = draw(seed, T, S, *NK), NK[0], rules_of(window, prefix, None)
    sinks = draw_sinks(seed, N)
    rows = np.broadcast_to(sinks, (T, N)).copy()
    wanted = attention(q, k, v, **rules, sinks=sinks)
    merged = merge_states(*attention(q, k, v, **rules, return_lse=True), np.zeros((T, N, 3)), rows)
    assert_near(merged[0], wanted, terms=40, scale=8.0)
    sums, _, total = flash_step(start(T, N)[0], rows, np.exp(np.where(np.isinf(rows), -np.inf, 0)), q, k, v)
    full = attention(q, k, v, causal=False, sinks=sinks)
    assert_near(sums / total[..., None], full, terms=40, scale=8.0)


@given(seeds, sizes, sizes, heads)
def test_scores_and_sinks_shift_together(seed, T, S, NK):
    (q, k, v), sinks = draw(seed, T, S, *NK), draw_sinks(seed, NK[0])
    shifted = attention(q, k, v, mask=np.full((T, S), 7.0), sinks=sinks + 7)
    assert_near(shifted, attention(q, k, v, sinks=sinks), terms=40, scale=20.0)


@given(seeds, sizes, heads)
def test_a_large_sink_takes_everything_and_a_small_one_nothing(seed, S, NK):
    q, k, v = draw(seed, S, S, *NK)
    for dtype in (np.float16, np.float32, np.float64):
        tensors = [x.astype(dtype) for x in (q, k, v)]
        large, small = (attention(*tensors, sinks=np.full(NK[0], sink, dtype)) for sink in (6e4, -6e4))
        assert (large == 0).all() and np.array_equal(small, attention(*tensors))


@given(seeds, sizes, st.integers(1, 5), heads)
def test_a_query_that_sees_nothing_gives_zero_whatever_its_sink(seed, S, more, NK):
    q, k, v = draw(seed, S + more, S, *NK)
    for sinks in (draw_sinks(seed, NK[0]), np.full(NK[0], 1e5)):
        o, lse = attention(q, k, v, sinks=sinks, return_lse=True)
        assert (o[:more] == 0).all() and (lse[:more] == -np.inf).all() and np.isfinite(lse[more:]).all()


@given(seeds, sizes, sizes, heads)
def test_order_and_hull_of_the_visible_values_with_a_sink(seed, T, S, NK):
    (q, k, v), sinks = draw(seed, T, S, *NK), draw_sinks(seed, NK[0])
    order = np.random.default_rng(seed).permutation(S)
    o = attention(q, k, v, causal=False, sinks=sinks)
    assert_near(attention(q, k[order], v[order], causal=False, sinks=sinks), o, terms=S, scale=4.0)
    seen = np.repeat(v, NK[0] // NK[1], axis=1)
    least, most = np.minimum(seen.min(0), 0), np.maximum(seen.max(0), 0)
    assert (o >= least - 1e-12).all() and (o <= most + 1e-12).all()


@given(seeds, sizes, sizes, windows, prefixes, chunks)
def test_grouped_heads_are_repeated_key_heads_with_every_rule(seed, T, S, window, prefix, chunk):
    (q, k, v), sinks, rules = draw(seed, T, S, 6, 2), draw_sinks(seed, 6), rules_of(window, prefix, chunk)
    repeated = attention(q, np.repeat(k, 3, axis=1), np.repeat(v, 3, axis=1), **rules, sinks=sinks)
    assert_near(attention(q, k, v, **rules, sinks=sinks), repeated, terms=S, scale=4.0)


@given(seeds, sizes, heads, windows, prefixes, chunks)
def test_prefill_is_so_many_decodes_with_every_rule(seed, T, NK, window, prefix, chunk):
    (q, k, v), rules = draw(seed, T, T, *NK), rules_of(window, prefix, chunk) | {"sinks": draw_sinks(seed, NK[0])}
    steps = [attention(q[t : t + 1], k[: t + 1], v[: t + 1], **rules) for t in range(T)]
    assert_near(attention(q, k, v, **rules), np.concatenate(steps), terms=T, scale=4.0)


@given(seeds, sizes, sizes, heads, st.integers(1, 6), st.integers(0, 20))
def test_a_prefix_of_none_is_the_plain_window_and_of_all_is_no_window(seed, T, S, NK, window, more):
    q, k, v = draw(seed, T, S, *NK)
    mask = np.tri(T, S, S - T, dtype=bool) & ~np.tri(T, S, S - T - window, dtype=bool)
    assert np.array_equal(attention(q, k, v, window=window, prefix=0), attention(q, k, v, causal=False, mask=mask))
    assert np.array_equal(attention(q, k, v, window=window, prefix=S + more), attention(q, k, v))


@given(seeds, st.integers(4, 12), heads, st.integers(1, 3), st.integers(1, 3))
def test_a_prefix_stands_before_the_window(seed, S, NK, window, prefix):
    """The last query attends to the first keys and the last ones, as if those between were not there."""
    q, k, v = draw(seed, 1, S, *NK)
    prefix = min(prefix, S - window)
    kept = [*range(prefix), *range(S - window, S)]
    assert_near(attention(q, k, v, window=window, prefix=prefix), attention(q, k[kept], v[kept]), terms=S, scale=4.0)


@given(seeds, sizes, sizes, st.integers(0, 20))
def test_a_chunk_of_the_whole_length_is_none(seed, T, S, more):
    q, k, v = draw(seed, T, S)
    assert np.array_equal(attention(q, k, v, chunk=S + more), attention(q, k, v))


@given(seeds, sizes, heads, st.integers(1, 5))
def test_a_chunk_is_a_sequence_of_its_own(seed, S, NK, chunk):
    q, k, v = draw(seed, S, S, *NK)
    parts = [slice(first, first + chunk) for first in range(0, S, chunk)]
    alone = np.concatenate([attention(q[part], k[part], v[part]) for part in parts])
    assert_near(attention(q, k, v, chunk=chunk), alone, terms=S, scale=4.0)
    assert np.array_equal(attention(q, k, v, chunk=1), np.repeat(v, NK[0] // NK[1], axis=1))


@given(seeds, st.integers(2, 9), windows, prefixes, chunks, st.sampled_from([np.nan, np.inf, -np.inf]))
def test_poison_that_no_rule_shows_changes_nothing(seed, S, window, prefix, chunk, poison):
    (q, k, v), bad, rules = draw(seed, 1, S), seed % S, rules_of(window, prefix, chunk)
    at = np.arange(S)
    near = np.ones(S, bool) if window is None else (at > S - 1 - window) | (at < rules["prefix"])
    visible = near & (at // (chunk or S) == (S - 1) // (chunk or S))
    clean = attention(q, k, v, **rules, return_lse=True)
    k[bad], v[bad] = poison, poison
    found = attention(q, k, v, **rules, return_lse=True)
    same = all(np.array_equal(a, b) for a, b in zip(found, clean, strict=True))
    assert same == (not visible[bad]) or np.isinf(poison)


@given(seeds, sizes, sizes, heads, tiles, windows, prefixes, chunks, softcaps, kinds)
def test_flash_is_attention_with_every_rule(seed, T, S, NK, tile, window, prefix, chunk, softcap, kind):
    (q, k, v), sinks = draw(seed, T, S, *NK), draw_sinks(seed, NK[0])
    rules = rules_of(window, prefix, chunk) | {"softcap": softcap, "sinks": sinks, "return_lse": True}
    rules |= {"mask": draw_mask(seed + 3, kind, NK[0], T, S)}
    assert_same(flash_attention(q, k, v, tile=tile, **rules), attention(q, k, v, **rules), terms=40)


lengths = st.lists(st.tuples(st.integers(0, 13), st.integers(0, 5)), min_size=1, max_size=4)  # (tokens, new of them)


@given(seeds, lengths, st.integers(1, 5), heads, windows, prefixes, chunks)
def test_paged_is_contiguous_with_every_rule(seed, lengths, block_size, NK, window, prefix, chunk):
    batch = Batch(seed, lengths, block_size, *NK)
    rules = rules_of(window, prefix, chunk) | {"sinks": draw_sinks(seed, NK[0]), "return_lse": True}
    order = np.random.default_rng(seed).permutation(batch.blocks)
    o, lse = paged_attention(**batch.arguments(order), **rules)
    wanted = [attention(batch.queries(r), *batch.kv[r], **rules) for r in range(len(lengths))]
    assert np.array_equal(o, np.concatenate([each for each, _ in wanted]))
    assert np.array_equal(lse, np.concatenate([each for _, each in wanted]))


# ---- attention to another sequence ----


def draw_cross(seed, T, S, NK=(4, 2), D=5, memory_width=3, H=2):
    shapes = {"w_q": (NK[0] * H, D), "w_k": (NK[1] * H, memory_width), "w_v": (NK[1] * H, memory_width)}
    shapes |= {"w_o": (D, NK[0] * H), "b_q": (NK[0] * H,), "b_v": (NK[1] * H,), "b_o": (D,)}
    weights = {name: normal(seed + i, *shape) for i, (name, shape) in enumerate(shapes.items())}
    return normal(seed + 20, T, D), normal(seed + 21, S, memory_width), weights


@given(seeds, sizes, sizes, heads)
def test_cross_attention_is_its_definition(seed, T, S, NK):
    x, memory, weights = draw_cross(seed, T, S, NK)
    q, k, v = (
        (tokens @ weights[f"w_{name}"].T + weights.get(f"b_{name}", 0)).reshape(len(tokens), -1, 2)
        for name, tokens in (("q", x), ("k", memory), ("v", memory))
    )
    o, _ = by_scalars(q, k, v, 0.5, lambda n, t, s: True)
    wanted = o.reshape(T, -1) @ weights["w_o"].T + weights["b_o"]
    assert_near(cross_attention(x, memory, weights, NK[0], OPS, scale=0.5), wanted, terms=80, scale=100.0)


@given(seeds, sizes, sizes, st.integers(1, 4))
def test_cross_attention_ignores_padding_and_the_order_of_the_memory(seed, T, S, padding):
    x, memory, weights = draw_cross(seed, T, S)
    wanted = cross_attention(x, memory, weights, 4, OPS)
    padded = np.concatenate([memory, np.full((padding, 3), np.nan)])
    mask = np.tile(np.arange(S + padding) < S, (T, 1))
    assert_near(cross_attention(x, padded, weights, 4, OPS, mask=mask), wanted, terms=S, scale=100.0)
    shuffled = memory[np.random.default_rng(seed).permutation(S)]
    assert_near(cross_attention(x, shuffled, weights, 4, OPS), wanted, terms=S, scale=100.0)


@given(seeds, sizes, sizes)
def test_cross_attention_of_a_token_knows_no_other_token(seed, T, S):
    x, memory, weights = draw_cross(seed, T, S)
    whole = cross_attention(x, memory, weights, 4, OPS)
    assert_near(cross_attention(x[:1], memory, weights, 4, OPS)[0], whole[0], terms=S, scale=100.0)


def wave(*shape, at=0):
    return np.sin(np.arange(at, at + np.prod(shape))).reshape(shape)


def test_cross_attention_gives_what_bart_and_t5_give():
    """Literals from transformers 5.24 in float64: BartAttention, with a mask and biases; T5Attention, unscaled."""
    x, memory = wave(3, 4), wave(5, 4, at=20)
    bart = {f"w_{name}": wave(4, 4, at=40 + 20 * i) for i, name in enumerate("qkvo")}
    bart |= {f"b_{name}": wave(4, at=100 + 10 * i) for i, name in enumerate("qkvo")}
    wanted = [
        [0.772114535602, -2.694959474871, 0.812950486481, 1.758957541037],
        [0.384449495719, -2.1451228491, 0.481821120461, 1.642002110826],
        [-1.226551838542, -2.164351494324, 2.117959817298, -0.477672488021],
    ]
    found = cross_attention(x, memory, bart, 2, OPS, mask=np.tile(np.arange(5) < 3, (3, 1)))
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-12)
    t5 = {f"w_{name}": wave(6, 4, at=40 + 30 * i) for i, name in enumerate("qkv")} | {"w_o": wave(4, 6, at=130)}
    wanted = [
        [-0.686508667424, -0.757273214098, -0.767713810681, -0.716998765237],
        [0.843070641678, 0.589023030258, 0.288054181934, -0.03586089738],
        [-0.060926797536, 0.250149793779, 0.541299595933, 0.789329782602],
    ]
    np.testing.assert_allclose(cross_attention(x, memory, t5, 2, OPS, scale=1.0), wanted, rtol=0, atol=1e-12)


# ---- constraints ----


def a(*shape):
    return np.ones(shape)


QKV = (a(2, 4, 8), a(3, 2, 8), a(3, 2, 5))
PAGES = (QKV[0], a(3, 4, 2, 8), a(3, 4, 2, 5))
PAGES += (np.array([[0, 2], [1, -1]]), np.array([5, 4]), np.array([0, 1, 2]))
BROKEN = [
    *((attention, "C6", QKV, {"sinks": a(*shape)}) for shape in ((2,), (4, 1), ())),
    (attention, "C7", QKV, {"prefix": 1}),
    (attention, "C7", QKV, {"prefix": -1, "window": 2}),
    (attention, "C8", QKV, {"chunk": 0}),
    (attention, "C8", QKV, {"chunk": 2, "causal": False}),
    (flash_attention, "C7", QKV, {"sinks": a(2)}),
    (flash_attention, "C8", QKV, {"prefix": 1}),
    (flash_attention, "C8", QKV, {"prefix": -1, "window": 2}),
    (flash_attention, "C9", QKV, {"chunk": 0}),
    (flash_attention, "C9", QKV, {"chunk": 2, "causal": False}),
    (paged_attention, "C8", PAGES, {"sinks": a(2)}),
    (paged_attention, "C9", PAGES, {"prefix": 1}),
    (paged_attention, "C9", PAGES, {"prefix": -1, "window": 2}),
    (paged_attention, "C10", PAGES, {"chunk": 0}),
]


@pytest.fixture
def unchecked_shapes():
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", before)


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize(
    ("function", "label", "arguments", "keywords"), BROKEN, ids=[f"{row[0].__name__}-{row[1]}" for row in BROKEN]
)
def test_refused_by_label(function, label, arguments, keywords):
    with pytest.raises(ContractError, match=f"^{label}: "):
        function(*arguments, **keywords)
