"""The kernels of convolutions give what the reference gives, and the same bits for every chunking."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from golden.tolerance import judge
from golden.values import dtype_named
from gpu import device
from gpu.basics.conv import conv1d, conv2d, conv_transpose2d, upsample_nearest
from gpu.registry import variants
from refimpl.basics import conv as reference
from refimpl.contract import ContractError
from tests.equivalence.strategies import assert_equivalent, dtypes, each_kernel, examples, numbers, seeds, specials
from tests.laws.strategies import normal
from tests.laws.test_conv import BROKEN

groupings = st.sampled_from([(1, 1, 1), (1, 3, 2), (2, 4, 6), (3, 3, 3), (3, 6, 3)])  # groups, channels, outputs
sides, taps = st.sampled_from((1, 2, 3, 5, 8, 17)), st.integers(1, 4)
pairs = st.tuples(st.integers(1, 3), st.integers(1, 3))
paddings = st.tuples(*[st.tuples(st.integers(0, 2), st.integers(0, 2))] * 2)


def assert_images(kernel, arguments, dtype, terms):
    """Judge an image at the scale of all its places: a place may be a difference of larger numbers."""
    wide = {n: v.astype(np.float64) if isinstance(v, np.ndarray) else v for n, v in arguments.items()}
    with np.errstate(all="ignore"):
        truth = np.asarray(getattr(reference, kernel.op)(**wide))
    result = kernel.call(**arguments)
    assert result.shape == truth.shape
    verdict = judge(result.reshape(-1), truth.reshape(-1), dtype, terms=terms)
    assert verdict.passed, verdict.reason


@each_kernel("conv1d")
@examples
@given(
    seeds, st.sampled_from((0, 1, 2, 9, 65)), taps, groupings, dtypes, dtypes, st.sampled_from([None, "silu"]),
    st.booleans(), st.booleans(), specials,
)  # fmt: skip
def test_conv1d(kernel, seed, T, taps, grouping, dtype, w_dtype, activation, has_bias, has_state, special):
    groups, C, outputs = grouping
    x = numbers(seed, T, C, dtype=dtype, special=special)
    w = numbers(seed + 1, outputs, C // groups, taps, dtype=w_dtype)
    b = 1 + abs(numbers(seed + 2, outputs, dtype=w_dtype)) if has_bias else None
    state = numbers(seed + 3, taps - 1, C, dtype=dtype) if has_state else None
    arguments = {"x": x, "w": w, "b": b, "state": state, "groups": groups, "activation": activation}
    wide = {n: v.astype(np.float64) if isinstance(v, np.ndarray) else v for n, v in arguments.items()}
    with np.errstate(all="ignore"):
        truth, kept = reference.conv1d(**wide)
    y, after = kernel.call(**arguments)
    assert y.shape == truth.shape and np.array_equal(after.astype(np.float64), kept, equal_nan=True)
    verdict = judge(y.reshape(-1), truth.reshape(-1), dtype, terms=16 * taps * C)
    assert verdict.passed, verdict.reason


@each_kernel("conv2d")
@examples
@given(seeds, sides, sides, pairs, pairs, pairs, paddings, groupings, dtypes, dtypes, st.booleans(), specials)
def test_conv2d(kernel, seed, Y, X, taps, stride, dilation, padding, grouping, dtype, w_dtype, has_bias, special):
    groups, C, outputs = grouping
    sizes = [n + sum(zeros) - d * (k - 1) for n, k, d, zeros in zip((Y, X), taps, dilation, padding, strict=True)]
    assume(min(sizes) >= 1)
    x = numbers(seed, C, Y, X, dtype=dtype, special=special)
    w, b = numbers(seed + 1, outputs, C // groups, *taps, dtype=w_dtype), numbers(seed + 2, outputs, dtype=w_dtype)
    steps = {"stride": stride, "dilation": dilation, "padding": padding, "groups": groups}
    assert_images(kernel, {"x": x, "w": w, "b": b if has_bias else None} | steps, dtype, 16 * C * taps[0] * taps[1])


@each_kernel("conv_transpose2d")
@examples
@given(seeds, sides, sides, pairs, pairs, pairs, paddings, pairs, groupings, dtypes, dtypes, st.booleans(), specials)
def test_conv_transpose2d(
    kernel, seed, Y, X, taps, stride, dilation, padding, more, grouping, dtype, w_dtype, has_bias, special
):
    groups, C, outputs = grouping
    more = tuple(min(n, max(s, d)) - 1 for n, s, d in zip(more, stride, dilation, strict=True))
    each = zip((Y, X), taps, stride, dilation, more, padding, strict=True)
    assume(min((n - 1) * s + d * (k - 1) + 1 + m - sum(cut) for n, k, s, d, m, cut in each) >= 1)
    x, b = numbers(seed, C, Y, X, dtype=dtype, special=special), numbers(seed + 2, outputs, dtype=w_dtype)
    w = numbers(seed + 1, C, outputs // groups, *taps, dtype=w_dtype)
    steps = {"stride": stride, "dilation": dilation, "padding": padding, "output_padding": more, "groups": groups}
    assert_images(kernel, {"x": x, "w": w, "b": b if has_bias else None} | steps, dtype, 16 * C * taps[0] * taps[1])


@each_kernel("upsample_nearest")
@examples
@given(seeds, st.integers(0, 3), sides, sides, pairs, dtypes, specials)
def test_upsample_nearest(kernel, seed, C, Y, X, scale, dtype, special):
    x = numbers(seed, C, Y, X, dtype=dtype, special=special)
    assert_equivalent(kernel, {"x": x, "scale": scale}, dtype, exact=True)


@given(seeds, st.integers(1, 9), st.integers(0, 9), taps, groupings, dtypes)
def test_chunks_of_conv1d_have_the_bits_of_the_whole(seed, first, second, taps, grouping, dtype):
    groups, C, outputs = grouping
    x, w = numbers(seed, first + second, C, dtype=dtype), numbers(seed + 1, outputs, C // groups, taps, dtype=dtype)
    whole, after = conv1d(x, w, groups=groups, activation="silu")
    head, between = conv1d(x[:first], w, groups=groups, activation="silu")
    tail, end = conv1d(x[first:], w, None, between, groups=groups, activation="silu")
    assert np.array_equal(np.concatenate([head, tail]), whole) and np.array_equal(end, after)


@given(seeds, st.integers(1, 9), taps, st.integers(1, 5))
def test_depthwise_conv1d_is_each_channel_alone(seed, T, taps, C):
    x, w = numbers(seed, T, C), numbers(seed + 1, C, 1, taps)
    y, _ = conv1d(x, w, groups=C)
    for c in range(C):
        assert np.array_equal(conv1d(x[:, c : c + 1], w[c : c + 1])[0], y[:, c : c + 1])


@given(seeds, sides, sides, paddings, st.integers(0, 2), st.integers(0, 2))
def test_a_kernel_of_one_tap_shifts(seed, Y, X, padding, i, j):
    x, delta = numbers(seed, 2, Y + 2, X + 2), np.zeros((2, 1, 3, 3), np.float32)
    delta[:, :, i, j] = 1
    padded = np.pad(x, ((0, 0), *padding))
    wanted = padded[:, i : i + padded.shape[1] - 2, j : j + padded.shape[2] - 2]
    assert np.array_equal(conv2d(x, delta, padding=padding, groups=2), wanted)


@given(seeds, sides, sides, pairs, pairs, groupings)
def test_transposed_is_the_adjoint(seed, Y, X, stride, taps, grouping):
    groups, C, outputs = grouping
    x = normal(seed, C, Y * stride[0] + taps[0] - 1, X * stride[1] + taps[1] - 1, dtype=np.float32)
    w = normal(seed + 1, outputs, C // groups, *taps, dtype=np.float32)
    y = conv2d(x, w, stride=stride, groups=groups)
    z = normal(seed + 2, *y.shape, dtype=np.float32)
    more = tuple(s - 1 for s in stride)
    back = conv_transpose2d(z, w, stride=stride, output_padding=more, groups=groups)
    products = [np.float64(one) * two for one, two in ((y, z), (x, back))]
    assert abs(products[0].sum() - products[1].sum()) <= 1e-5 * abs(products[0]).sum() + 1e-5


@given(seeds, sides, sides, pairs)
def test_upsample_nearest_is_undone_by_a_stride(seed, Y, X, scale):
    x = numbers(seed, 2, Y, X)
    assert np.array_equal(upsample_nearest(x, scale)[:, :: scale[0], :: scale[1]], x)


def test_no_token_is_no_launch_without_a_state():
    with device.recording() as launches:
        y, state = conv1d(np.zeros((0, 3), np.float32), np.ones((3, 1, 1), np.float32), groups=3)
    assert y.shape == (0, 3) and state.shape == (0, 3) and launches == []


TWIN = {variant.op: variant.call for variant in variants() if variant.name == "numba"}


@pytest.mark.parametrize(
    ("function", "label", "arguments", "keywords"), BROKEN, ids=[f"{row[0].__name__}-{row[1]}" for row in BROKEN]
)
def test_refused_by_label(function, label, arguments, keywords):
    with pytest.raises(ContractError, match=f"^{label}: "):
        TWIN[function.__name__](*arguments, **keywords)


@pytest.mark.parametrize(
    ("op", "arguments"),
    [
        ("conv1d", (np.ones((3, 2)), np.ones((2, 2, 1)))), ("conv2d", (np.ones((1, 3, 3)), np.ones((1, 1, 2, 2)))),
        ("conv_transpose2d", (np.ones((1, 3, 3)), np.ones((1, 1, 2, 2)))),
        ("upsample_nearest", (np.ones((1, 2, 2)), (2, 2))),
    ],
)  # fmt: skip
def test_float64_is_refused_by_name(op, arguments):
    with pytest.raises(ContractError, match=r"^kernels take float32, bfloat16 and float16, not float64$"):
        TWIN[op](*arguments)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_padding_is_multiplied_and_painting_is_not(bad):
    x, w = np.ones((1, 2, 2), np.float32), np.float32([[[[1, bad]]]])
    assert np.isnan(conv2d(x, w, padding=((0, 0), (0, 1)))[0, :, -1]).all()
    y = conv_transpose2d(x, w)[0]
    assert (y[:, 0] == 1).all() and np.isnan(y[:, 1:]).any() == np.isnan(bad)


def test_twins_of_numbers_are_kept_apart():
    x, w = numbers(1, 4, 3, dtype="bfloat16"), numbers(2, 3, 1, 2, dtype="float16")
    y, state = conv1d(x, w, groups=3)
    assert y.dtype == state.dtype == dtype_named("bfloat16")
