"""Every kernel of the training cycle gives what the reference gives, and so does a step made of them."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from golden.tolerance import judge
from golden.values import dtype_named
from gpu import device
from gpu.basics import activation, linear, training
from gpu.registry import variants
from refimpl.basics import activation as reference_activation
from refimpl.basics import linear as reference_linear
from refimpl.basics import training as reference_training
from refimpl.basics.training import training_step
from refimpl.contract import ContractError
from tests.equivalence.strategies import (
    assert_equivalent,
    dtypes,
    each_kernel,
    examples,
    numbers,
    reference,
    seeds,
    specials,
    widths,
)
from tests.laws.test_training import BROKEN, network, still, targets_for

counts = st.sampled_from((1, 2, 9, 33))
ids_types = st.sampled_from((np.int32, np.int64, np.int16))


@each_kernel("cross_entropy", "cross_entropy_backward")
@examples
@given(seeds, st.sampled_from((1, 3)), widths, dtypes, ids_types, specials, st.booleans())
def test_cross_entropy_and_its_gradient(kernel, seed, T, V, dtype, ids_type, special, has_ignored):
    logits = (4 * numbers(seed, T, V, special=special)).astype(dtype_named(dtype))
    targets = targets_for(seed, T, V).astype(ids_type)
    if has_ignored:
        targets[0] = -100
    arguments = {"logits": logits, "targets": targets}
    if kernel.op == "cross_entropy":
        # A loss is a difference of two numbers as large as the logits.
        with np.errstate(all="ignore"):
            losses = np.nan_to_num(reference("cross_entropy")(logits.astype(np.float64), targets), posinf=0)
        amplification = float(np.nanmax(np.abs(logits), initial=1, where=np.isfinite(logits)) / (losses.max() + 1e-9))
        assert_equivalent(kernel, arguments, dtype, terms=max(1, V * min(amplification, 1e6) ** 2))
    else:
        assert_equivalent(kernel, arguments | {"scale": 1 / 3}, dtype, terms=64 * V)


def test_large_logits_and_rows_of_minus_infinity():
    logits, targets = np.float32([[1e4, -1e4], [0, -np.inf], [-np.inf, -np.inf]]), np.array([1, 1, 0])
    found = training.cross_entropy(logits, targets)
    assert found[:2].tolist() == [2e4, np.inf] and np.isnan(found[2])
    assert training.cross_entropy_backward(logits, targets)[0].tolist() == [1, -1]


@each_kernel("linear_backward")
@examples
@given(seeds, counts, widths, counts, dtypes, dtypes)
def test_linear_backward(kernel, seed, T, D, outputs, dtype, w_dtype):
    dy, x = numbers(seed, T, outputs), numbers(seed + 1, T, D, dtype=dtype)
    w = numbers(seed + 2, outputs, D, dtype=w_dtype)
    wide = [each.astype(np.float64) for each in (dy, x, w)]
    found, truth = kernel.call(dy, x, w), reference("linear_backward")(*wide)
    parts = reference("linear_backward")(*map(np.abs, wide))  # sums whose terms do not cancel
    for result, wanted, most, name in zip(found, truth, parts, (dtype, w_dtype, w_dtype), strict=True):
        amplification = (np.max(most, -1) / np.max(np.abs(wanted), -1)).max() ** 2
        verdict = judge(result, wanted, name, terms=round(64 * amplification))
        assert verdict.passed, verdict.reason


@each_kernel("relu_backward")
@examples
@given(seeds, st.lists(widths, min_size=0, max_size=2), dtypes, dtypes, specials)
def test_relu_backward(kernel, seed, shape, dtype, x_dtype, special):
    x = np.asarray(numbers(seed + 1, *shape, dtype=x_dtype, special=special))
    x.flat[seed % x.size :: 5] = 0
    arguments = {"dy": np.asarray(numbers(seed, *shape, dtype=dtype)), "x": x}
    assert_equivalent(kernel, arguments, dtype, exact=True)


@each_kernel("sgd_step")
@examples
@given(seeds, counts, widths, dtypes, dtypes, st.sampled_from((0.0, 0.9)), specials)
def test_sgd_step(kernel, seed, rows, D, dtype, velocity_dtype, momentum, special):
    arguments = {
        "w": numbers(seed, rows, D, dtype=dtype), "dw": numbers(seed + 1, rows, D, dtype=dtype, special=special),
        "velocity": numbers(seed + 2, rows, D, dtype=velocity_dtype),
    }  # fmt: skip
    rate = {"learning_rate": 0.25, "momentum": momentum}
    found = kernel.call(**arguments, **rate)
    with np.errstate(all="ignore"):
        truth = reference("sgd_step")(**{name: x.astype(np.float64) for name, x in arguments.items()}, **rate)
    for result, wanted, name in zip(found, truth, (dtype, velocity_dtype), strict=True):
        # Where the sum cancels in every number of a row, the parts set its scale.
        verdict = judge(result, wanted, name, terms=400)
        assert verdict.passed, verdict.reason


def ops(*modules):
    return SimpleNamespace(**{name: getattr(m, name) for m in modules for name in m.__all__})


@examples
@given(seeds, st.sampled_from((1, 4, 17)), st.sampled_from((1, 33)))
def test_a_training_step_of_kernels_is_that_of_the_reference(seed, T, F):
    x, targets = numbers(seed, T, 3), targets_for(seed, T, 5)
    weights = {name: w.astype(np.float32) for name, w in network(seed + 1, 3, F, 5).items()}
    hidden = x @ weights["w_up"].T + weights["b_up"]
    x[np.abs(hidden).min(-1) < 1e-4] += 1  # a relu beside its bend may fall to either side
    truth = ops(reference_activation, reference_linear, reference_training)
    rate = {"learning_rate": 0.1, "momentum": 0.5}
    found = training_step(x, targets, weights, still(weights), ops(activation, linear, training), **rate)
    wanted = training_step(x, targets, weights, still(weights), truth, **rate)
    np.testing.assert_allclose(found[0], wanted[0], rtol=1e-4, atol=1e-5)
    for one, other in zip(found[1:], wanted[1:], strict=True):
        for name in weights:
            np.testing.assert_allclose(one[name], other[name], rtol=1e-4, atol=1e-5)


def test_the_loss_goes_down_on_kernels():
    x, targets = numbers(1, 12, 3), targets_for(2, 12, 4)
    weights = {name: w.astype(np.float32) for name, w in network(3, 3, 16, 4).items()}
    velocities, means = still(weights), []
    with device.checks(orders=1, races=False):
        for _ in range(20):
            losses, weights, velocities = training_step(
                x, targets, weights, velocities, ops(activation, linear, training), learning_rate=0.1
            )
            means.append(float(losses.mean()))
    assert all(later < before for before, later in itertools.pairwise(means))


def test_launchers_write_in_place():
    w, dw, velocity = numbers(1, 300), numbers(2, 300), numbers(3, 300)
    stepped, moving = training.sgd_step(w, dw, velocity, learning_rate=0.1, momentum=0.9)
    training.sgd_step_into(w, velocity, w, dw, velocity, learning_rate=0.1, momentum=0.9)
    assert np.array_equal(w, stepped) and np.array_equal(velocity, moving)
    logits, targets = numbers(4, 3, 65), np.int32([0, -1, 64])
    gradient = training.cross_entropy_backward(logits, targets, ignore_index=-1)
    training.cross_entropy_backward_into(logits, logits, targets)
    assert np.array_equal(logits, gradient)


def test_nothing_gives_nothing_without_a_launch():
    nothing, none = np.zeros((0, 3), np.float32), np.array([], np.int64)
    with device.recording() as launches:
        assert training.cross_entropy(nothing, none).shape == (0,)
        assert training.cross_entropy_backward(nothing, none).shape == (0, 3)
        assert training.relu_backward(nothing, nothing).shape == (0, 3)
    assert launches == []
    dx, dw, db = training.linear_backward(np.zeros((0, 2), np.float32), nothing, np.ones((2, 3), np.float32))
    assert dx.shape == (0, 3) and dw.tolist() == [[0] * 3] * 2 and db.tolist() == [0, 0]


TWIN = {variant.op: variant.call for variant in variants() if variant.name == "numba"}


@pytest.mark.parametrize(
    ("function", "label", "arguments", "keywords"), BROKEN, ids=[f"{row[0].__name__}-{row[1]}" for row in BROKEN]
)
def test_refused_by_label(function, label, arguments, keywords):
    with pytest.raises(ContractError, match=f"^{label}: "):
        TWIN[function.__name__](*arguments, **keywords)


def test_float64_is_refused_by_name():
    wide, targets = np.ones((2, 2)), np.array([0, 1])
    calls = [
        lambda: training.cross_entropy(wide, targets), lambda: training.cross_entropy_backward(wide, targets),
        lambda: training.linear_backward(wide, wide, wide), lambda: training.relu_backward(wide, wide),
        lambda: training.sgd_step(wide, wide, wide, learning_rate=0.1),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(ContractError, match=r"^kernels take float32, bfloat16 and float16, not float64$"):
            call()
