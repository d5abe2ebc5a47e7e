"""Laws of the training cycle: every gradient is that of finite differences, and a step goes down."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refimpl.basics import activation, linear, training
from refimpl.basics.activation import log_softmax, relu
from refimpl.basics.training import (
    cross_entropy,
    cross_entropy_backward,
    linear_backward,
    relu_backward,
    sgd_step,
    training_step,
)
from refimpl.contract import ContractError
from tests.laws.strategies import DTYPES, assert_near, normal, seeds, sizes

OPS = SimpleNamespace(**{name: getattr(m, name) for m in (activation, linear, training) for name in m.__all__})
STEP = 1e-6
TORCH = {
    "losses": [1.354478987739813, 0.22760750458704385, 0.859826178359804],
    "w_up": [
        [0.4637023892880888, -0.17740477857617762],
        [1.0050736447217732, 0.7804418683306386],
        [-0.46502979725592175, 0.1543190401520702],
    ],
    "b_up": [0.06370238928808881, -0.18985271055645384, 0.23901090135427108],
    "w_down": [
        [0.26681758284319146, -0.4505311793787669, 0.5346071127233949],
        [0.7331824171568085, 0.15053117937876692, -0.23460711272339493],
    ],
    "b_down": [-0.0065994688909329045, 0.5065994688909329],
}


def slopes(loss, x):
    """Return the gradient of a number by every element of ``x``, from differences to both sides."""
    gradient = np.empty_like(x)
    for i in range(x.size):
        up, down = x.copy(), x.copy()
        up.flat[i] += STEP
        down.flat[i] -= STEP
        gradient.flat[i] = (loss(up) - loss(down)) / (2 * STEP)
    return gradient


def assert_slopes(found, loss, x):
    np.testing.assert_allclose(found, slopes(loss, x), rtol=1e-6, atol=1e-7)


def targets_for(seed, T, V):
    return np.random.default_rng(seed).integers(0, V, T)


@given(seeds, sizes, sizes)
def test_cross_entropy_is_the_log_softmax_at_the_target(seed, T, V):
    logits, targets = 3 * normal(seed, T, V), targets_for(seed, T, V)
    losses = cross_entropy(logits, targets)
    assert_near(losses, -log_softmax(logits)[np.arange(T), targets], terms=V, scale=20.0)
    assert (losses > -1e-12).all()
    assert_near(cross_entropy(logits + 100, targets), losses, terms=V, scale=200.0)


@given(seeds, sizes, sizes, st.sampled_from((-2.0, 0.25, 1.0)))
def test_gradient_of_cross_entropy(seed, T, V, scale):
    logits, targets = normal(seed, T, V), targets_for(seed, T, V)
    targets[::3] = -100
    found = cross_entropy_backward(logits, targets, scale=scale)
    assert_slopes(found, lambda at: scale * cross_entropy(at, targets).sum(), logits)
    assert_near(found.sum(-1), np.zeros(T), terms=V, scale=abs(scale))
    assert (found[::3] == 0).all()


@given(seeds, sizes, sizes, sizes)
def test_gradients_of_linear(seed, T, D, outputs):
    dy, x, w, b = normal(seed, T, outputs), normal(seed + 1, T, D), normal(seed + 2, outputs, D), normal(3, outputs)
    dx, dw, db = linear_backward(dy, x, w)
    assert_slopes(dx, lambda at: (dy * linear.linear(at, w, b)).sum(), x)
    assert_slopes(dw, lambda at: (dy * linear.linear(x, at, b)).sum(), w)
    assert_slopes(db, lambda at: (dy * linear.linear(x, w, at)).sum(), b)


@given(seeds, sizes, sizes)
def test_gradient_of_relu(seed, T, D):
    dy, x = normal(seed, T, D), normal(seed + 1, T, D)
    x += np.sign(x) * 0.01  # away from the bend
    assert_slopes(relu_backward(dy, x), lambda at: (dy * relu(at)).sum(), x)


@given(seeds, sizes, st.floats(0.0, 1.0), st.floats(0.0, 0.99))
def test_steps_of_sgd_are_a_geometric_sum(seed, D, learning_rate, momentum):
    w, dw = normal(seed, D), normal(seed + 1, D)
    at, velocity = w, np.zeros(D)
    for count in range(1, 4):
        at, velocity = sgd_step(at, dw, velocity, learning_rate=learning_rate, momentum=momentum)
        assert_near(velocity, dw * sum(momentum**i for i in range(count)), terms=4, scale=9.0)
    shares = 3 + 2 * momentum + momentum**2
    assert_near(at, w - learning_rate * shares * dw, terms=9, scale=20.0)


@given(seeds, sizes)
def test_a_quadratic_is_solved_in_one_step_of_its_curvature(seed, D):
    w, goal, curvature = normal(seed, D), normal(seed + 1, D), 4.0
    found, _ = sgd_step(w, curvature * (w - goal), np.zeros(D), learning_rate=1 / curvature)
    assert_near(found, goal, terms=4, scale=9.0)


def network(seed, D, F, V):
    shapes = {"w_up": (F, D), "b_up": (F,), "w_down": (V, F), "b_down": (V,)}
    return {name: normal(seed + i, *shape) for i, (name, shape) in enumerate(shapes.items())}


def still(weights):
    return {name: np.zeros_like(w) for name, w in weights.items()}


@given(seeds, sizes)
def test_a_training_step_goes_along_the_gradient_of_the_mean_loss(seed, T):
    D, V = 3, 4
    x, targets, weights = normal(seed, T, D), targets_for(seed, T, V), network(seed + 9, D, 5, V)
    losses, moved, velocities = training_step(x, targets, weights, still(weights), OPS, learning_rate=0.5)

    def mean_loss(name, at):
        own = weights | {name: at}
        hidden = relu(x @ own["w_up"].T + own["b_up"])
        return cross_entropy(hidden @ own["w_down"].T + own["b_down"], targets).mean()

    assert_near(losses.mean(), mean_loss("w_up", weights["w_up"]), terms=40, scale=9.0)
    assert set(moved) == set(velocities) == set(weights)
    for name, w in weights.items():
        assert_slopes(velocities[name], lambda at, name=name: mean_loss(name, at), w)
        assert_near(moved[name], w - 0.5 * velocities[name], terms=2, scale=9.0)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("dtype", DTYPES[2:], ids=str)
def test_the_loss_goes_down(momentum, dtype):
    x, targets, weights = normal(1, 12, 3, dtype=dtype), targets_for(2, 12, 4), network(3, 3, 16, 4)
    weights = {name: w.astype(dtype) for name, w in weights.items()}
    velocities, means = still(weights), []
    for _ in range(60):
        losses, weights, velocities = training_step(
            x, targets, weights, velocities, OPS, learning_rate=0.05, momentum=momentum
        )
        means.append(float(losses.mean()))
    assert means[-1] < 0.5 * means[0] and {w.dtype for w in weights.values()} == {np.dtype(dtype)}
    if not momentum:
        assert all(later < before for before, later in itertools.pairwise(means))


def test_a_step_of_torch():
    """Weights after two steps of torch 2.13 (autograd, optim.SGD with momentum 0.5) in float64 from the same start."""
    x, targets = np.array([[1.0, -2.0], [0.5, 3.0], [-1.0, 1.0]]), np.array([0, 1, 1])
    weights = {
        "w_up": np.array([[0.5, -0.25], [1.0, 0.75], [-0.5, 0.25]]), "b_up": np.array([0.1, -0.2, 0.3]),
        "w_down": np.array([[0.2, -0.4, 0.6], [0.8, 0.1, -0.3]]), "b_down": np.array([0.0, 0.5]),
    }  # fmt: skip
    velocities = still(weights)
    for _ in range(2):
        losses, weights, velocities = training_step(
            x, targets, weights, velocities, OPS, learning_rate=0.1, momentum=0.5
        )
    assert_near(losses, TORCH["losses"], terms=20, scale=2.0)
    for name, w in weights.items():
        assert_near(w, TORCH[name], terms=20, scale=2.0)



@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_each_gradient_has_the_dtype_of_what_it_is_of(dtype):
    logits, x, w = (normal(i, 3, 3).astype(dtype) for i in range(3))
    other = np.dtype(np.float32)
    targets = np.array([0, 1, -100])
    assert cross_entropy(logits, targets).dtype == cross_entropy_backward(logits, targets).dtype == dtype
    assert [each.dtype for each in linear_backward(logits.astype(other), x, w)] == [dtype] * 3
    assert relu_backward(logits, x).dtype == dtype
    stepped, velocity = sgd_step(w, x, x.astype(other), learning_rate=0.1)
    assert (stepped.dtype, velocity.dtype) == (dtype, other)


def test_an_ignored_row_may_hold_anything():
    logits = np.array([[np.nan, np.inf], [0.0, 0.0]])
    targets = np.array([-100, 0])
    assert_near(cross_entropy(logits, targets), [0.0, np.log(2)])
    assert cross_entropy_backward(logits, targets).tolist() == [[0, 0], [-0.5, 0.5]]


def a(*shape):
    return np.ones(shape)


TARGETS = ((a(2, 3), np.array([0])), (a(3), np.array([0])), (a(1, 3), np.array([0.0])), (a(1, 0), np.array([-100])))
BROKEN = [
    *((cross_entropy, "C1", given, {}) for given in TARGETS),
    *((cross_entropy_backward, "C1", given, {}) for given in TARGETS),
    *((cross_entropy, "C2", (a(1, 3), np.array([at])), {}) for at in (3, -1)),
    *((cross_entropy_backward, "C2", (a(1, 3), np.array([at])), {}) for at in (3, -1)),
    (cross_entropy, "C2", (a(1, 3), np.array([-100])), {"ignore_index": -1}),
    *((linear_backward, "C1", given, {}) for given in (
        (a(2, 3), a(1, 4), a(3, 4)), (a(2, 3), a(2, 4), a(2, 4)), (a(2, 3), a(2, 4), a(3, 5)),
        (a(3), a(2, 4), a(3, 4)))),
    (relu_backward, "C1", (a(2, 3), a(1, 3)), {}),
    (sgd_step, "C1", (a(2), a(1), a(2)), {"learning_rate": 0.1}),
    (sgd_step, "C1", (a(2), a(2), a(1)), {"learning_rate": 0.1}),
]  # fmt: skip


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize(
    ("function", "label", "arguments", "keywords"), BROKEN, ids=[f"{row[0].__name__}-{row[1]}" for row in BROKEN]
)
def test_refused_by_label(function, label, arguments, keywords):
    with pytest.raises(ContractError, match=f"^{label}: "):
        function(*arguments, **keywords)
