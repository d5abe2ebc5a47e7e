"""Functions on sixteen lanes against scalar float64."""

import math

import numpy as np
import pytest

from gpu.executor.elementary import ACTIVATIONS, activate, exp, layer_norm_row, rms_norm_row
from gpu.executor.jit import jit
from gpu.executor.vector import load, store


@jit
def exp_all(source, target, count):
    for i in range(0, 4 * count, 64):
        store(target + i, exp(load(source + i)))


@jit
def activate_all(source, target, count, code):
    for i in range(0, 4 * count, 64):
        store(target + i, activate(load(source + i), code))


@jit
def norm(x, gain, bias, out, width, eps, layer):
    if layer:
        layer_norm_row(x, gain, bias, out, width, eps)
    else:
        rms_norm_row(x, gain, out, width, eps)


def test_exp():
    x = np.linspace(-87, 88, 16 * 4000, dtype=np.float32)
    y = np.empty_like(x)
    exp_all(x.ctypes.data, y.ctypes.data, len(x))
    assert np.abs(y / np.exp(x.astype(np.float64)) - 1).max() < 1e-7
    x[:6] = -np.inf, np.nan, 0, -0.0, -104, -88
    exp_all(x.ctypes.data, y.ctypes.data, len(x))
    assert y[0] == 0 and np.isnan(y[1]) and y[2] == y[3] == 1 and y[4] == y[5] == 0


TRUTH = {
    "relu": lambda x: max(x, 0.0),
    "gelu_erf": lambda x: x / 2 * math.erfc(-x / math.sqrt(2)),
    "gelu_tanh": lambda x: x / 2 * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "gelu_quick": lambda x: x / (1 + math.exp(-1.702 * x)),
    "silu": lambda x: x / (1 + math.exp(-x)),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations(name):
    x = np.linspace(-20, 20, 16 * 500, dtype=np.float32)
    y = np.empty_like(x)
    activate_all(x.ctypes.data, y.ctypes.data, len(x), ACTIVATIONS.index(name))
    truth = np.array([TRUTH[name](float(value)) for value in x])
    assert (np.abs(y - truth) <= 4 * np.finfo(np.float32).eps * np.maximum(np.abs(truth), 0.5)).all()
    x[:] = np.nan
    activate_all(x.ctypes.data, y.ctypes.data, len(x), ACTIVATIONS.index(name))
    assert np.isnan(y).all()


@pytest.mark.parametrize("width", [1, 15, 16, 33, 576])
@pytest.mark.parametrize("layer", [False, True])
def test_norms(width, layer):
    random = np.random.default_rng(width)
    x, gain, bias = random.normal(1, 2, (3, width)).astype(np.float32)
    out = np.full(width + 1, 7, np.float32)
    norm(x.ctypes.data, gain.ctypes.data, bias.ctypes.data, out.ctypes.data, width, 1e-5, layer)
    wide = x.astype(np.float64) - (x.astype(np.float64).mean() if layer else 0)
    truth = wide / math.sqrt((wide**2).mean() + 1e-5) * gain + (bias if layer else 0)
    assert np.abs(out[:-1] - truth).max() < 2e-6 * max(1, np.abs(truth).max()) and out[-1] == 7
