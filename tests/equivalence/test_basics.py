"""Every kernel of the basic operations gives what the reference gives."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from golden.tolerance import judge
from golden.values import dtype_named
from gpu import device
from gpu.basics.activation import softmax
from gpu.basics.gated import gated_into, swiglu
from gpu.basics.linear import linear, linear_into
from gpu.basics.norm import layer_norm, rms_norm
from refimpl.basics import activation as activations
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

counts = st.sampled_from((1, 2, 3, 8, 9, 17))
depths = st.sampled_from((1, 8, 31, 32, 64, 257, 520))  # some are whole 16-byte words


def amplified(truth: np.ndarray, parts: np.ndarray) -> float:
    """Return the square of how much larger the parts of sums are than the sums, in the row where that is most."""
    with np.errstate(all="ignore"):
        ratio = np.nanmax(parts, -1, initial=0) / np.nanmax(np.abs(truth), -1, initial=0)
    return float(np.square(ratio[np.isfinite(ratio)]).max(initial=1.0))


@each_kernel("linear")
@examples
@given(seeds, counts, depths, widths, dtypes, dtypes, st.booleans(), specials)
def test_linear(kernel, seed, T, D, outputs, dtype, w_dtype, has_bias, special):
    x, w = numbers(seed, T, D, dtype=dtype, special=special), numbers(seed + 1, outputs, D, dtype=w_dtype)
    b = numbers(seed + 2, outputs, dtype=w_dtype) if has_bias else None
    wide_x, wide_w = x.astype(np.float64), w.astype(np.float64)
    with np.errstate(all="ignore"):
        y = wide_x @ wide_w.T + (0 if b is None else b.astype(np.float64))
        longest = np.linalg.norm(wide_x, axis=1, keepdims=True) * np.linalg.norm(wide_w, axis=1)
    assert_equivalent(kernel, {"x": x, "w": w, "b": b}, dtype, terms=D * amplified(y, longest / np.sqrt(D)))


@given(seeds, st.integers(1, 40), depths)
def test_a_row_of_linear_has_the_same_bits_in_any_batch(seed, T, D):
    x, w = numbers(seed, T, D), numbers(seed + 1, 35, D, dtype="bfloat16")
    together = linear(x, w)
    for t in (0, T // 2, T - 1):
        assert np.array_equal(linear(x[t : t + 1], w)[0], together[t])
        assert np.array_equal(linear(x[: t + 1], w)[t], together[t])


@given(seeds, st.sampled_from((1, 3, 20)), dtypes)
def test_linear_into_adds_a_residual_in_place(seed, T, dtype):
    x, w, b = numbers(seed, T, 65), numbers(seed + 1, 33, 65, dtype=dtype), numbers(seed + 2, 33, dtype=dtype)
    stream = numbers(seed + 3, T, 33)
    truth = x.astype(np.float64) @ w.astype(np.float64).T + b.astype(np.float64) + stream
    linear_into(stream, x, w, b, stream)
    verdict = judge(stream, truth, "float32", terms=4 * 65)
    assert verdict.passed, verdict.reason


@each_kernel("layer_norm", "rms_norm")
@examples
@given(seeds, counts, widths, dtypes, dtypes, st.sampled_from((0.0, 1.0, 300.0)), specials, st.booleans())
def test_norms(kernel, seed, T, D, dtype, gain_dtype, offset, special, is_plain):
    drawn = numbers(seed, T, D, special=special)
    arguments = {"x": (drawn + offset).astype(dtype_named(dtype)), "gain": numbers(seed + 1, D, dtype=gain_dtype)}
    if kernel.op == "layer_norm":
        arguments |= {"bias": None if is_plain and D > 1 else numbers(seed + 2, D, dtype=gain_dtype), "eps": 1e-3}
    elif not is_plain:
        arguments |= {"eps": 0.1, "gain_offset": 1.0}
    assert_equivalent(kernel, arguments, dtype, terms=D)


@pytest.mark.parametrize("norm", [layer_norm, rms_norm])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_three_hundred_gives_one(norm, dtype):  # ≡ CONVENTIONS row 8: its square overflows float16
    x, gain = np.full((2, 36), 300, dtype_named(dtype)), np.ones(36, dtype_named(dtype))
    x[:, ::2] *= -1
    assert (np.abs(norm(x, gain, eps=0.0)) == 1).all()


@each_kernel("softmax", "log_softmax")
@examples
@given(seeds, st.sampled_from((1, 3)), widths, st.sampled_from((1, 2, 33)), dtypes, specials, st.booleans())
def test_softmax_and_its_logarithm(kernel, seed, outer, n, inner, dtype, special, is_last):
    shape, axis = ((inner, outer, n), -1) if is_last else ((outer, n, inner), 1)
    x = (8 * numbers(seed, *shape, special=special)).astype(dtype_named(dtype))
    if seed % 3 == 0:
        x[0] = -np.inf if seed % 2 else x.flat[0]  # no softmax, or nothing but ties
    assert_equivalent(kernel, {"x": x, "axis": axis}, dtype, terms=n, axis=axis)


@each_kernel("logsumexp")
@examples
@given(seeds, st.sampled_from((1, 3)), widths, st.sampled_from((1, 2, 33)), dtypes, specials, st.booleans())
def test_logsumexp(kernel, seed, outer, n, inner, dtype, special, is_last):
    shape, axis = ((inner, outer, n), -1) if is_last else ((outer, n, inner), 1)
    x = (8 * numbers(seed, *shape, special=special)).astype(dtype_named(dtype))
    if seed % 3 == 0:
        x[0] = -np.inf
    with np.errstate(all="ignore"):
        wide = x.astype(np.float64)
        truth = np.log(np.exp(wide).sum(axis))
    assert_equivalent(kernel, {"x": x, "axis": axis}, dtype, terms=n * amplified(truth, np.abs(wide).max(axis)))


@each_kernel("relu", "silu", "gelu_erf", "gelu_tanh", "gelu_quick")
@examples
@given(seeds, st.lists(widths, min_size=0, max_size=2), dtypes, st.sampled_from((1.0, 8.0, 1e4)), specials)
def test_activations(kernel, seed, shape, dtype, scale, special):
    x = scale * numbers(seed, *shape, special=special)
    x.flat[0] = abs(x.flat[0]) + 1  # the tails are judged at the scale of the row, which a positive number sets
    is_exact = kernel.op == "relu"
    assert_equivalent(kernel, {"x": x.astype(dtype_named(dtype))}, dtype, exact=is_exact, terms=4)


@each_kernel("swiglu", "geglu")
@examples
@given(seeds, counts, widths, dtypes, dtypes, specials)
def test_gated_activations(kernel, seed, T, D, dtype, up_dtype, special):
    gate, up = 3 * numbers(seed, T, D, special=special), numbers(seed + 1, T, D)
    gate[:, 0] = np.abs(gate[:, 0]) + 1
    arguments = {"gate": gate.astype(dtype_named(dtype)), "up": up.astype(dtype_named(up_dtype))}
    assert_equivalent(kernel, arguments, dtype, terms=8)


@pytest.mark.parametrize("activation", ["gelu_erf", "gelu_quick", "gelu_tanh", "relu", "silu"])
def test_gated_into_is_the_activation_times_up_in_place(activation):
    gate, up = np.abs(numbers(1, 3, 301)), numbers(2, 3, 301)
    truth = getattr(activations, activation)(gate.astype(np.float64)) * up
    gated_into(gate, gate, up, activation)
    assert judge(gate, truth, "float32", terms=8).passed


@pytest.mark.parametrize(
    ("function", "arguments", "shape"),
    [
        (linear, (np.zeros((0, 3), np.float32), np.zeros((2, 3), np.float32)), (0, 2)),
        (rms_norm, (np.zeros((0, 3), np.float32), np.zeros(3, np.float32)), (0, 3)),
        (layer_norm, (np.zeros((0, 3), np.float32), np.zeros(3, np.float32)), (0, 3)),
        (softmax, (np.zeros((0, 3), np.float32),), (0, 3)),
        (swiglu, (np.zeros((0, 3), np.float32),) * 2, (0, 3)),
    ],
)
def test_nothing_gives_nothing_without_a_launch(function, arguments, shape):
    with device.recording() as launches:
        assert function(*arguments).shape == shape
    assert launches == []


def test_a_sum_of_no_terms_is_the_bias():
    b = np.float32([1, 2])
    assert linear(np.zeros((3, 0), np.float32), np.zeros((2, 0), np.float32), b).tolist() == [[1, 2]] * 3
