"""Dtype in = dtype out: 16-bit inputs are widened to float32, computed, and cast once; float64 stays float64."""

import numpy as np
import pytest

from refimpl.basics.activation import (
    gelu_erf,
    gelu_quick,
    gelu_tanh,
    log_softmax,
    logsumexp,
    relu,
    sigmoid,
    silu,
    softmax,
    softplus,
)
from refimpl.basics.gated import geglu, swiglu, swiglu_clamped
from refimpl.basics.linear import linear
from refimpl.basics.norm import gated_rms_norm, group_norm, l2_norm, layer_norm, rms_norm
from refimpl.basics.training import cross_entropy, cross_entropy_backward, relu_backward
from refimpl.efficient.flash import flash_attention
from refimpl.llm.attention import attention
from refimpl.llm.embedding import embedding
from refimpl.llm.mlp import gated_mlp, mlp
from refimpl.llm.position import learned_position, rope
from tests.laws.strategies import DTYPES, normal

COS, SIN = np.cos(normal(1, 5, 4)), np.sin(normal(1, 5, 4))

CALLS = {
    "linear": (linear, (5, 8), (6, 8), (6,)),
    "softmax": (softmax, (5, 8)),
    "log_softmax": (log_softmax, (5, 8)),
    "logsumexp": (logsumexp, (5, 8)),
    "relu": (relu, (5, 8)),
    "silu": (silu, (5, 8)),
    "gelu_erf": (gelu_erf, (5, 8)),
    "gelu_tanh": (gelu_tanh, (5, 8)),
    "gelu_quick": (gelu_quick, (5, 8)),
    "sigmoid": (sigmoid, (5, 8)),
    "softplus": (softplus, (5, 8)),
    "swiglu": (swiglu, (5, 8), (5, 8)),
    "swiglu_clamped": (swiglu_clamped, (5, 8), (5, 8)),
    "geglu": (geglu, (5, 8), (5, 8)),
    "layer_norm": (layer_norm, (5, 8), (8,), (8,)),
    "rms_norm": (rms_norm, (5, 8), (8,)),
    "group_norm": (lambda x, gain: group_norm(x, gain, groups=2), (6, 8), (6,)),
    "gated_rms_norm": (gated_rms_norm, (5, 8), (5, 8), (8,)),
    "l2_norm": (l2_norm, (5, 8)),
    "cross_entropy": (lambda logits: cross_entropy(logits, np.array([1, 0, 7])), (3, 8)),
    "cross_entropy_backward": (lambda logits: cross_entropy_backward(logits, np.array([1, 0, 7])), (3, 8)),
    "relu_backward": (relu_backward, (5, 8), (5, 8)),
    "embedding": (lambda table: embedding(np.array([2, 0]), table), (5, 8)),
    "learned_position": (lambda x, table: learned_position(x, np.arange(5), table), (5, 8), (7, 8)),
    "rope": (lambda x: rope(x, COS.astype(np.float32), SIN.astype(np.float32)), (5, 2, 8)),
    "attention": (attention, (5, 4, 8), (6, 2, 8), (6, 2, 3)),
    "flash_attention": (flash_attention, (5, 4, 8), (6, 2, 8), (6, 2, 3)),
    "mlp": (mlp, (5, 8), (6, 8), (8, 6), (6,), (8,)),
    "gated_mlp": (gated_mlp, (5, 8), (6, 8), (6, 8), (8, 6), (6,), (6,), (8,)),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", CALLS)
def test_dtype_in_is_dtype_out_with_one_cast(name, dtype):
    function, *shapes = CALLS[name]
    arguments = [normal(seed, *shape).astype(dtype) for seed, shape in enumerate(shapes)]
    before = [a.copy() for a in arguments]
    y = function(*arguments)
    assert y.dtype == dtype
    assert all(np.array_equal(a, b) for a, b in zip(arguments, before, strict=True))
    if dtype.itemsize == 2:
        assert np.array_equal(y, function(*(a.astype(np.float32) for a in arguments)).astype(dtype))


@pytest.mark.parametrize("name", [name for name in CALLS if name not in ("embedding", "relu", "rope")])
def test_float64_stays_float64_throughout(name):
    """A float32 anywhere inside would hide a change in the tenth digit."""
    function, first, *rest = CALLS[name]
    x, others = normal(0, *first), [normal(seed + 1, *shape) for seed, shape in enumerate(rest)]
    moved = x + 1e-10 * normal(9, *first)
    change = np.abs(function(moved, *others) - function(x, *others)).max()
    assert 1e-13 < change < 1e-7


def test_mixed_inputs_compute_in_the_wider_and_return_the_first():
    x, w = normal(0, 5, 8, dtype=np.float32), normal(1, 6, 8)
    assert np.array_equal(linear(x, w), linear(x.astype(np.float64), w).astype(np.float32))


def test_weights_are_not_copied():
    w = normal(0, 6, 8, dtype=np.float32)
    w.flags.writeable = False
    assert linear(np.eye(8, dtype=np.float32), w).base is not w
    from refimpl.contract import widen

    assert widen(w) is w and widen(w.astype(np.float64)).dtype == np.float64
