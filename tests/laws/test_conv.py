"""Laws of convolutions, and their constraints."""

import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refimpl.basics.activation import silu
from refimpl.basics.conv import conv1d, conv2d, conv_transpose2d, upsample_nearest
from refimpl.contract import ContractError, UsageError
from tests.laws.strategies import DTYPES, assert_near, normal, seeds, sizes

groupings = st.sampled_from([(1, 1, 1), (1, 3, 2), (2, 4, 6), (3, 3, 3), (3, 6, 3)])  # groups, channels, outputs
lengths, taps = st.integers(0, 9), st.integers(1, 4)
pairs = st.tuples(st.integers(1, 3), st.integers(1, 3))
paddings = st.tuples(*[st.tuples(st.integers(0, 2), st.integers(0, 2))] * 2)


@given(seeds, lengths, lengths, taps, groupings, st.sampled_from([None, "silu"]))
def test_chunks_of_tokens_give_what_the_whole_gives(seed, first, second, taps, grouping, activation):
    groups, C, outputs = grouping
    x, w, b = normal(seed, first + second, C), normal(seed + 1, outputs, C // groups, taps), normal(seed + 2, outputs)
    before, keywords = normal(seed + 3, taps - 1, C), {"groups": groups, "activation": activation}
    whole, after = conv1d(x, w, b, before, **keywords)
    head, between = conv1d(x[:first], w, b, before, **keywords)
    tail, end = conv1d(x[first:], w, b, between, **keywords)
    assert_near(np.concatenate([head, tail]), whole, terms=C * taps, scale=10.0)
    assert np.array_equal(end, after)
    state, steps = before, []
    for t in range(len(x)):
        y, state = conv1d(x[t : t + 1], w, b, state, **keywords)
        steps.append(y)
    assert_near(np.concatenate([whole[:0], *steps]), whole, terms=C * taps, scale=10.0)
    assert np.array_equal(state, after)


@given(seeds, lengths, taps, sizes)
def test_depthwise_is_each_channel_alone(seed, T, taps, C):
    x, w = normal(seed, T, C), normal(seed + 1, C, 1, taps)
    y, state = conv1d(x, w, groups=C)
    for c in range(C):
        alone, own = conv1d(x[:, c : c + 1], w[c : c + 1])
        assert np.array_equal(own, state[:, c : c + 1])
        assert_near(alone, y[:, c : c + 1], terms=taps, scale=4.0)
        padded = np.concatenate([np.zeros(taps - 1), x[:, c]])
        wanted = [math.fsum(padded[t : t + taps] * w[c, 0]) for t in range(T)]
        assert_near(y[:, c], wanted, terms=taps, scale=4.0)


@given(seeds, st.integers(1, 9), taps, st.integers(0, 8))
def test_a_token_sees_no_later_one(seed, T, taps, t):
    x, w, t = normal(seed, T, 2), normal(seed + 1, 3, 2, taps), t % T
    changed = x.copy()
    changed[t] = np.nan
    y, seen = conv1d(x, w)[0], conv1d(changed, w)[0]
    assert np.array_equal(seen[:t], y[:t]) and np.isnan(seen[t : t + taps]).all()
    assert_near(seen[t + taps :], y[t + taps :], terms=2 * taps, scale=10.0)


@given(seeds, sizes, sizes, paddings, pairs, st.integers(0, 2), st.integers(0, 2))
def test_a_kernel_of_one_tap_shifts(seed, Y, X, padding, stride, i, j):
    x, delta = normal(seed, 2, Y + 2, X + 2), np.zeros((2, 1, 3, 3))
    delta[:, :, i, j] = 1
    padded = np.pad(x, ((0, 0), *padding))
    wanted = padded[:, i : i + padded.shape[1] - 2 : stride[0], j : j + padded.shape[2] - 2 : stride[1]]
    assert np.array_equal(conv2d(x, delta, padding=padding, stride=stride, groups=2), wanted)
    assert np.array_equal(conv2d(x, np.eye(2)[:, :, None, None]), x)


@given(seeds, sizes, sizes, st.floats(-3, 3), groupings)
def test_convolutions_are_linear_in_image_and_kernel(seed, Y, X, factor, grouping):
    groups, C, outputs = grouping
    x, z = normal(seed, 2, C, Y + 1, X)
    keywords = {"padding": ((1, 1), (0, 1)), "groups": groups}
    for function, rows, each in ((conv2d, outputs, C // groups), (conv_transpose2d, C, outputs // groups)):
        w, v = normal(seed + 1, 2, rows, each, 2, 2)
        parts = function(x, w, **keywords), function(z, w, **keywords), function(x, v, **keywords)
        assert_near(function(x + factor * z, w, **keywords), parts[0] + factor * parts[1], terms=40, scale=40.0)
        assert_near(function(x, w + factor * v, **keywords), parts[0] + factor * parts[2], terms=40, scale=40.0)


@given(seeds, sizes, sizes, pairs, pairs, paddings, pairs, groupings)
def test_transposed_is_the_adjoint(seed, Y, X, stride, dilation, padding, taps, grouping):
    """<conv2d(x), y> = <x, conv_transpose2d(y)>, with one kernel and the rows that no stride reaches made good."""
    groups, C, outputs = grouping
    reach = [d * (n - 1) + 1 for d, n in zip(dilation, taps, strict=True)]
    x = normal(seed, C, Y + reach[0], X + reach[1])
    w, keywords = normal(seed + 1, outputs, C // groups, *taps), {"stride": stride, "dilation": dilation}
    y = conv2d(x, w, **keywords, padding=padding, groups=groups)
    z = normal(seed + 2, *y.shape)
    left = [(n + sum(p) - r) % s for n, p, r, s in zip(x.shape[1:], padding, reach, stride, strict=True)]
    back = conv_transpose2d(z, w, **keywords, padding=padding, output_padding=tuple(left), groups=groups)
    assert back.shape == x.shape
    assert_near((x * back).sum(), (y * z).sum(), terms=x.size, scale=float(np.abs(y).sum() * 10))


@given(seeds, sizes, sizes, groupings)
def test_a_group_is_a_convolution_of_its_own(seed, Y, X, grouping):
    groups, C, outputs = grouping
    x, b = normal(seed, C, Y + 1, X), normal(seed + 1, outputs)
    for function, rows, each in ((conv2d, outputs, C // groups), (conv_transpose2d, C, outputs // groups)):
        w = normal(seed + 2, rows, each, 2, 1)
        y, alone = function(x, w, b, groups=groups), []
        for part, kernels, bias in zip(*(np.split(each, groups) for each in (x, w, b)), strict=True):
            alone.append(function(part, kernels, bias))
        assert_near(y, np.concatenate(alone), terms=12, scale=10.0)


@given(seeds, sizes, sizes, pairs)
def test_upsampling_paints_boxes_and_is_undone_by_a_stride(seed, Y, X, scale):
    x = normal(seed, 2, Y, X)
    y = upsample_nearest(x, scale)
    assert np.array_equal(y[:, :: scale[0], :: scale[1]], x)
    assert np.array_equal(y, conv_transpose2d(x, np.ones((2, 1, *scale)), stride=scale, groups=2))
    assert np.array_equal(y.reshape(2, Y, scale[0], X, scale[1]).max((2, 4)), x)
    assert np.array_equal(y.reshape(2, Y, scale[0], X, scale[1]).min((2, 4)), x)


@given(seeds, sizes)
def test_conv1d_is_conv2d_on_one_row(seed, T):
    x, w, b = normal(seed, T, 4), normal(seed + 1, 6, 2, 3), normal(seed + 2, 6)
    image = conv2d(x.T[:, None], w[:, :, None], b, padding=((0, 0), (2, 0)), groups=2)
    assert_near(conv1d(x, w, b, groups=2)[0], image[:, 0].T, terms=8, scale=10.0)
    assert_near(conv1d(x, w, b, groups=2, activation="silu")[0], silu(image[:, 0].T), terms=8, scale=10.0)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_dtype_in_is_dtype_out_with_one_cast(dtype):
    x, b = normal(1, 4, 5, 5).astype(dtype), normal(2, 4).astype(dtype)
    w = normal(3, 4, 4, 3, 3).astype(dtype)
    wide = [each.astype(np.float64 if dtype == np.float64 else np.float32) for each in (x, w, b)]
    for function in (conv2d, conv_transpose2d):
        y = function(x, w, b)
        assert y.dtype == dtype and np.array_equal(y, function(*wide).astype(dtype))
    y, state = conv1d(x[0], w[:, :, 0, :][..., :2].repeat(2, 1)[:, :5], b, activation="silu")
    assert y.dtype == state.dtype == dtype and np.array_equal(state, x[0][-1:])
    large = upsample_nearest(x, (2, 1))
    assert large.dtype == dtype and np.array_equal(large[:, 1::2], x)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_padding_is_multiplied_and_painting_is_not(bad):
    x, w = np.ones((1, 2, 2)), np.float64([[[[1, bad]]]])
    with np.errstate(invalid="ignore"):
        assert np.isnan(conv2d(x, w, padding=((0, 0), (0, 1)))[0, :, -1]).all()
    y = conv_transpose2d(x, w)[0]
    assert (y[:, 0] == 1).all() and not np.isfinite(y[:, 1:]).any() and np.isnan(y[:, 1:]).any() == np.isnan(bad)


def test_products_beyond_float16_may_cancel():
    x, w = np.float16([512, 512, 2]), np.float16([256, -256, 4])
    assert conv2d(x[:, None, None], w[None, :, None, None]).tolist() == [[[8]]]
    assert conv1d(x[None], w[None, :, None])[0].tolist() == [[8]]
    assert conv_transpose2d(x[:, None, None], w[:, None, None, None]).tolist() == [[[8]]]


def a(*shape, dtype=np.float32):
    return np.ones(shape, dtype)


TOKENS, IMAGE, PAINT = (a(5, 4), a(6, 2, 3)), (a(4, 5, 5), a(6, 2, 3, 3)), (a(4, 5, 5), a(4, 3, 3, 3))
TWO = {"groups": 2}
NO_PAIRS = (1, None, "same", (1,), (1, 1, 1), (1.0, 1), (1, 1.5), (1, np.nan), ("1", 1), (1, (1, 1)), (2**63, 1))
NO_PADDINGS = (*NO_PAIRS, (1, 1), ((1, 1),), ((1, 1, 1), (1, 1, 1)), ((1,), (1, 1)), ((1, 1), (1.0, 1)), a(2, 3))
BROKEN = [
    *((f, "C3", arguments, TWO | {name: pair}) for f, arguments in ((conv2d, IMAGE), (conv_transpose2d, PAINT))
      for name, pairs in (("stride", NO_PAIRS), ("dilation", NO_PAIRS), ("padding", NO_PADDINGS)) for pair in pairs),
    *((conv_transpose2d, "C3", PAINT, TWO | {"output_padding": pair}) for pair in NO_PAIRS),
    *((upsample_nearest, "C1", (a(2, 3, 3), pair), {}) for pair in NO_PAIRS),
    *((conv1d, "C1", x_w, TWO) for x_w in (
        (a(5, 3), TOKENS[1]), (a(4), TOKENS[1]), (a(1, 5, 4), TOKENS[1]), (TOKENS[0], a(5, 2, 3)), (TOKENS[0], a(6, 2)),
        (TOKENS[0], a(6, 2, 0)), (TOKENS[0], a(0, 2, 3)), (TOKENS[0], a(6)), (TOKENS[0], a()), (a(), TOKENS[1]))),
    *((conv1d, "C1", TOKENS, {"groups": groups}) for groups in (0, -2, 1, 4)),
    *((conv1d, "C2", (*TOKENS, b), TWO) for b in (a(5), a(1), a(6, 1), a())),
    *((conv1d, "C3", (*TOKENS, None, state), TWO) for state in (
        a(3, 4), a(2, 3), a(4), a(2, 4, dtype=np.float16), a(2, 4, dtype=ml_dtypes.bfloat16))),
    *((conv1d, "C4", TOKENS, {**TWO, "activation": name}) for name in ("swish", "", "SiLU")),
    *((conv2d, "C1", x_w, TWO) for x_w in (
        (a(3, 5, 5), IMAGE[1]), (a(5, 5), IMAGE[1]), (a(1, 4, 5, 5), IMAGE[1]), (IMAGE[0], a(5, 2, 3, 3)),
        (IMAGE[0], a(6, 2, 3)), (IMAGE[0], a(6, 2, 3, 0)), (a(4, 0, 5), IMAGE[1]), (IMAGE[0], a(6)), (a(), IMAGE[1]))),
    *((conv2d, "C1", IMAGE, {"groups": groups}) for groups in (0, 1, 4)),
    *((conv2d, "C2", (*IMAGE, b), TWO) for b in (a(5), a(1), a(6, 1, 1))),
    *((conv2d, "C3", IMAGE, TWO | more) for more in (
        {"stride": (0, 1)}, {"stride": (1, -1)}, {"dilation": (1, 0)}, {"padding": ((0, -1), (0, 0))},
        {"padding": ((0, 0), (-1, 2))})),
    *((conv2d, "C4", IMAGE, TWO | more) for more in (
        {"dilation": (3, 1)}, {"dilation": (1, 4), "padding": ((0, 0), (1, 2))})),
    *((conv_transpose2d, "C1", x_w, TWO) for x_w in (
        (a(3, 5, 5), PAINT[1]), (a(5, 5), PAINT[1]), (PAINT[0], a(3, 2, 3, 3)), (PAINT[0], a(4, 3, 3)),
        (PAINT[0], a(4, 3, 0, 3)), (a(4, 5, 0), PAINT[1]), (PAINT[0], a(4)), (a(), PAINT[1]))),
    *((conv_transpose2d, "C1", PAINT, {"groups": groups}) for groups in (0, 3)),
    *((conv_transpose2d, "C2", (*PAINT, b), TWO) for b in (a(3), a(5), a(6, 1, 1))),
    *((conv_transpose2d, "C3", PAINT, TWO | more) for more in (
        {"stride": (0, 1)}, {"dilation": (1, 0)}, {"padding": ((0, -1), (0, 0))}, {"output_padding": (-1, 0)})),
    *((conv_transpose2d, "C4", PAINT, TWO | more) for more in (
        {"output_padding": (1, 0)}, {"output_padding": (2, 0), "stride": (2, 3)}, {"padding": ((4, 3), (0, 0))})),
    *((upsample_nearest, "C1", (a(2, 3, 3), scale), {}) for scale in ((0, 1), (1, -1))),
    *((upsample_nearest, "C1", (a(*shape), (1, 1)), {}) for shape in ((3, 3), (1, 2, 3, 3))),
]  # fmt: skip


@pytest.mark.parametrize("groups", [2.0, None, "2"])
@pytest.mark.usefixtures("unchecked_shapes")
def test_groups_are_a_whole_number(groups):
    for function, arguments in ((conv1d, TOKENS), (conv2d, IMAGE), (conv_transpose2d, PAINT)):
        with pytest.raises(UsageError, match=r"^groups is a whole number, got "):
            function(*arguments, groups=groups)


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize("kind", [list, np.array, lambda pair: tuple(map(np.int64, pair))])
def test_pairs_of_any_kind_are_pairs(kind):
    steps = {"stride": (2, 1), "dilation": (1, 2)}
    wanted = conv2d(*IMAGE, **steps, padding=((1, 0), (0, 2)), groups=2)
    given = {name: kind(pair) for name, pair in steps.items()}
    assert np.array_equal(conv2d(*IMAGE, **given, padding=[kind((1, 0)), kind((0, 2))], groups=2), wanted)
    assert np.array_equal(upsample_nearest(IMAGE[0], kind((2, 1))), upsample_nearest(IMAGE[0], (2, 1)))


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize(
    ("function", "label", "arguments", "keywords"), BROKEN, ids=[f"{row[0].__name__}-{row[1]}" for row in BROKEN]
)
def test_refused_by_label(function, label, arguments, keywords):
    with pytest.raises(ContractError, match=f"^{label}: "):
        function(*arguments, **keywords)
