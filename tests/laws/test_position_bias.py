"""Laws of positions that are added: sines and cosines, ALiBi, T5; and of RoPE's trailing and multimodal forms."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refimpl.contract import ContractError
from refimpl.llm.attention import attention
from refimpl.llm.position import learned_position, mrope_table, rope, rope_table, sinusoidal_table
from refimpl.llm.position_bias import alibi_bias, alibi_slopes, t5_bias, t5_buckets
from refimpl.llm.rope_scaling import rope_frequencies
from tests.laws.strategies import DTYPES, assert_near, normal, seeds, sizes

positions = st.integers(0, 4000)
booleans = st.booleans()
counts = st.integers(0, 6)
head_counts = st.integers(1, 40)
shapes_of_buckets = st.sampled_from([(32, 128), (8, 20), (16, 64), (4, 3), (12, 100), (64, 512)])
INV_FREQ = rope_frequencies(12, 100.0)[0]


def turned(x, position, **keywords):
    cos, sin = rope_table(np.array([position]), INV_FREQ, dtype=np.float64)
    return rope(x[None], cos, sin, trailing=True, **keywords)[0]


@given(seeds, sizes, positions, booleans)
def test_trailing_rope_turns_the_tail_as_a_head_of_its_own(seed, N, position, interleaved):
    x = normal(seed, N, 17)
    y = turned(x, position, interleaved=interleaved)
    cos, sin = rope_table(np.array([position]), INV_FREQ, dtype=np.float64)
    assert np.array_equal(y[:, :5], x[:, :5])
    assert np.array_equal(y[:, 5:], rope(x[None, :, 5:], cos, sin, interleaved=interleaved)[0])
    assert_near(np.linalg.norm(y, axis=-1), np.linalg.norm(x, axis=-1), terms=17)


@given(seeds, positions, positions, positions, booleans)
def test_trailing_rope_knows_only_differences(seed, a, b, shift, interleaved):
    q, k = normal(seed, 1, 14), normal(seed + 1, 1, 14)
    near = turned(q, a, interleaved=interleaved) @ turned(k, b, interleaved=interleaved).T
    far = turned(q, a + shift, interleaved=interleaved) @ turned(k, b + shift, interleaved=interleaved).T
    assert_near(far, near, scale=20.0 * 8000)  # an angle of size p carries an error of p eps


sections = st.sampled_from([(2, 2, 2), (4, 1, 1), (6, 0, 0), (2, 3, 1), (0, 3, 3), (3, 2, 1)])


@given(seeds, sizes, sections, booleans, st.floats(0.5, 2.0))
def test_mrope_of_three_equal_positions_is_rope(seed, T, section, interleaved, factor):
    text = np.random.default_rng(seed).integers(0, 4000, T)
    found = mrope_table(np.stack([text] * 3), INV_FREQ, section, factor, interleaved=interleaved)
    assert all(map(np.array_equal, found, rope_table(text, INV_FREQ, factor)))


@given(seeds, sizes, sections.filter(lambda each: each != (0, 3, 3)), booleans)
def test_mrope_gives_each_axis_the_pairs_of_its_section(seed, T, section, interleaved):
    where = np.random.default_rng(seed).integers(0, 4000, (3, T))
    cos, _ = mrope_table(where, INV_FREQ, section, interleaved=interleaved)
    for axis, count in enumerate(section):
        moved = where.copy()
        moved[axis] += 1
        changed = (mrope_table(moved, INV_FREQ, section, interleaved=interleaved)[0] != cos).any(0)
        place = np.flatnonzero(changed)
        wanted = np.arange(axis, 3 * count, 3) if interleaved else np.arange(count) + sum(section[:axis])
        if not interleaved or axis:
            assert place.tolist() == [j for j in wanted.tolist() if j < 6]


@given(st.integers(1, 9), positions, positions, positions, booleans, st.integers(0, 1))
def test_products_of_sinusoids_know_only_differences(pairs, a, b, shift, interleaved, freq_shift):
    rules = {"interleaved": interleaved, "freq_shift": freq_shift if pairs > 1 else 0}
    table = sinusoidal_table(np.array([a, b, a + shift, b + shift]), 2 * pairs, **rules).astype(np.float64)
    assert table[0] @ table[1] == pytest.approx(table[2] @ table[3], abs=pairs * 1e-6)
    assert (table**2).sum(-1) == pytest.approx(pairs, abs=pairs * 1e-6)


@given(seeds, sizes, st.integers(1, 9))
def test_layouts_of_sinusoids_are_a_permutation_apart(seed, T, pairs):
    where = np.random.default_rng(seed).integers(0, 9999, T)
    in_turn, halves = (sinusoidal_table(where, 2 * pairs, interleaved=each) for each in (True, False))
    assert np.array_equal(in_turn[:, 0::2], halves[:, :pairs]) and np.array_equal(in_turn[:, 1::2], halves[:, pairs:])
    x = normal(seed, T, 2 * pairs, dtype=np.float32)
    assert np.array_equal(learned_position(x, np.arange(T), in_turn), x + in_turn)


@given(head_counts)
def test_slopes_fall_by_one_ratio_between_powers_of_two(N):
    slopes, power = alibi_slopes(N), 1 << N.bit_length() - 1
    assert len(set(slopes)) == len(slopes) == N and (slopes > 0).all() and (slopes < 1).all()
    assert slopes[power - 1] == 2.0**-8 and np.array_equal(slopes[:power], alibi_slopes(power))
    assert_near(slopes[1:power] / slopes[: power - 1], np.full(power - 1, 2.0 ** (-8 / power)))
    assert set(slopes[power:]) <= set(alibi_slopes(2 * power)) - set(slopes[:power])


@given(seeds, counts, counts, counts)
def test_biases_know_only_distances(seed, T, S, shift):
    """The bias of the last queries does not change when older keys are there too, nor along a diagonal."""
    slopes, table = alibi_slopes(3), normal(seed, 8, 3)
    for near, far in (
        (alibi_bias(slopes, T, S), alibi_bias(slopes, T, S + shift)),
        (t5_bias(table, T, S, max_distance=5), t5_bias(table, T, S + shift, max_distance=5)),
    ):
        assert near.shape == (3, T, S) and np.array_equal(far[:, :, shift:], near)
        assert np.array_equal(near[:, 1:, 1:], near[:, :-1, :-1])


@given(seeds, st.integers(1, 6), st.integers(0, 6))
def test_biases_of_a_prompt_are_those_of_so_many_decodes(seed, T, before):
    slopes, table, S = alibi_slopes(5), normal(seed, 6, 5), T + before
    for whole, one in (
        (alibi_bias(slopes, T, S), lambda n: alibi_bias(slopes, 1, n)),
        (t5_bias(table, T, S, bidirectional=False), lambda n: t5_bias(table, 1, n, bidirectional=False)),
    ):
        for t in range(T):
            assert np.array_equal(whole[:, t, : before + t + 1], one(before + t + 1)[:, 0])


@given(seeds, st.integers(1, 6), st.integers(0, 6))
def test_attention_takes_the_position_of_the_key_for_alibi(seed, T, before):
    """As Bloom has it: what is the same for a whole row, softmax does not see."""
    S, N, slopes = T + before, 6, alibi_slopes(6)
    q, k, v = normal(seed, T, N, 4), normal(seed + 1, S, 2, 4), normal(seed + 2, S, 2, 3)
    by_key = np.broadcast_to(slopes[:, None, None] * np.arange(S), (N, T, S))
    wanted = attention(q, k, v, mask=by_key)
    assert_near(attention(q, k, v, mask=alibi_bias(slopes, T, S)), wanted, terms=4 * S, scale=4.0)


@given(shapes_of_buckets, booleans)
def test_buckets_rise_with_distance(shape, bidirectional):
    num_buckets, max_distance = shape
    each = num_buckets // (1 + bidirectional)
    found = t5_buckets(np.arange(-600, 601), num_buckets, max_distance=max_distance, bidirectional=bidirectional)
    behind, ahead = found[600::-1], found[601:]
    assert (np.diff(behind) >= 0).all() and (np.diff(ahead) >= 0).all()
    assert behind[: each // 2].tolist() == list(range(each // 2))
    assert set(behind) <= set(range(each)) and (behind[max_distance:] == each - 1).all()
    assert np.array_equal(ahead, behind[1:] + each) if bidirectional else (ahead == 0).all()


def test_a_distance_within_the_last_bucket_is_not_out_of_range():
    ahead = np.array([-(2**40), 2**40])
    assert t5_buckets(ahead, 32).tolist() == [15, 31]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_biases_are_in_the_dtype_of_what_is_learned(dtype):
    slopes, table = normal(0, 3).astype(dtype), normal(1, 8, 3).astype(dtype)
    assert alibi_bias(slopes, 2, 3).dtype == t5_bias(table, 2, 3).dtype == dtype
    assert np.array_equal(alibi_bias(slopes, 2, 3), alibi_bias(slopes.astype(np.float64), 2, 3).astype(dtype))


def a(*shape):
    return np.ones(shape)


BROKEN = [
    *((alibi_bias, "C1", each, {}) for each in ((a(2, 1), 1, 1), (a(2), -1, 1), (a(2), 1, -1))),
    *((t5_bias, "C1", (a(buckets, 2), 1, 1), {}) for buckets in (0, 2, 3, 5)),
    (t5_bias, "C1", (a(1, 2), 1, 1), {"bidirectional": False}),
    *((t5_bias, "C2", (a(32, 2), 1, 1), {"max_distance": far}) for far in (8, 0)),
    (t5_bias, "C2", (a(32, 2), 1, 1), {"max_distance": 16, "bidirectional": False}),
    *((t5_bias, "C3", each, {}) for each in ((a(32), 1, 1), (a(32, 2), -1, 1), (a(32, 2), 1, -1))),
]
BROKEN_TABLES = [
    (alibi_slopes, "C1", (0,), {}),
    (t5_buckets, "C1", (np.arange(3), 3), {}),
    (t5_buckets, "C2", (np.arange(3), 32), {"max_distance": 8}),
    *((sinusoidal_table, "C1", (np.arange(3), dim), {}) for dim in (0, 3, -2)),
    (sinusoidal_table, "C1", (np.arange(3), 2), {"freq_shift": 1}),
    (mrope_table, "C1", (np.zeros((3, 2), int), a(6), (2, 2, 2), 1.0, np.float16), {}),
    *((mrope_table, "C2", (np.zeros((3, 2), int), a(6), each), {}) for each in ((2, 2, 1), (7, -1, 0), (3, 3))),
    *((mrope_table, "C3", (np.zeros(shape, int), a(6), (2, 2, 2)), {}) for shape in ((3,), (2, 2), (4, 2))),
]


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize(
    ("function", "label", "arguments", "keywords"), BROKEN + BROKEN_TABLES,
    ids=[f"{row[0].__name__}-{row[1]}" for row in BROKEN + BROKEN_TABLES],
)  # fmt: skip
def test_refused_by_label(function, label, arguments, keywords):
    with pytest.raises(ContractError, match=f"^{label}: "):
        function(*arguments, **keywords)
