"""Linear maps, norms, embeddings and feed-forward networks, one token at a time."""

import math

import numpy as np

from golden.derive import activation as act
from golden.derive import gated as gates
from golden.values import Array

__all__ = ["embedding", "gated_mlp", "layer_norm", "learned_position", "linear", "mlp", "rms_norm"]


def linear(x: Array, w: Array, b: Array | None = None) -> Array:
    return np.array([[math.fsum(token * row) for row in w] for token in x]) + (0.0 if b is None else b)


def _rows(x: Array) -> Array:
    return x.reshape(-1, x.shape[-1])


def rms_norm(x: Array, gain: Array, eps: float = 1e-6, *, gain_offset: float = 0.0) -> Array:
    roots = [math.sqrt(math.fsum(row * row) / len(row) + eps) for row in _rows(x)]
    return (_rows(x) / np.array(roots)[:, None] * (gain_offset + gain)).reshape(x.shape)


def layer_norm(x: Array, gain: Array, bias: Array | None = None, eps: float = 1e-5) -> Array:
    rows = []
    for row in _rows(x):
        centred = row - math.fsum(row) / len(row)
        rows.append(centred / math.sqrt(math.fsum(centred * centred) / len(row) + eps))
    return (np.array(rows) * gain + (0.0 if bias is None else bias)).reshape(x.shape)


def embedding(ids: Array, table: Array) -> Array:
    return np.array([table[int(i)] for i in ids])


def learned_position(x: Array, positions: Array, table: Array) -> Array:
    return np.array([token + table[int(p)] for token, p in zip(x, positions, strict=True)])


def mlp(
    x: Array, w_up: Array, w_down: Array, b_up: Array | None = None, b_down: Array | None = None, *,
    activation: str = "gelu_tanh",
) -> Array:  # fmt: skip
    return linear(getattr(act, activation)(linear(x, w_up, b_up)), w_down, b_down)


def gated_mlp(
    x: Array, w_gate: Array, w_up: Array, w_down: Array, b_gate: Array | None = None, b_up: Array | None = None,
    b_down: Array | None = None, *, activation: str = "silu", limit: float = 7.0,
) -> Array:  # fmt: skip
    gate, up = linear(x, w_gate, b_gate), linear(x, w_up, b_up)
    clamped = activation == "swiglu_clamped"
    hidden = gates.swiglu_clamped(gate, up, limit=limit) if clamped else getattr(act, activation)(gate) * up
    return linear(hidden, w_down, b_down)
