"""Faults of linear maps, norms, activations, embeddings, feed-forward networks and block formats."""

from typing import Any

import numpy as np

from golden.derive import activation, layers, quantize, rng
from golden.values import Array

__all__ = [
    "activation_not_read", "bias_forgotten", "biases_forgotten", "block_neighbour", "deviation_unbiased", "eps_outside",
    "exp_unshifted", "gain_plus_one", "gate_is_up", "gated_by_erf", "gelu_by_erf", "gelu_by_sigmoid", "gelu_by_tanh",
    "id_off_by_one", "int8_truncated", "log_of_softmax", "log_to_base_2", "mean_kept", "minimum_forgotten",
    "nan_to_zero", "nibbles_side_by_side", "philox_7_rounds", "philox_words_swapped", "positions_from_zero",
    "softmax_over_first", "squares_in_dtype", "uniform_of_24_bits", "up_gates_gate", "variance_by_squares",
    "w_not_transposed", "x_not_quantised",
]  # fmt: skip


def bias_forgotten(x: Array, w: Array, b: Array) -> Array:
    """The bias is left out."""
    return layers.linear(x, w)


def w_not_transposed(x: Array, w: Array, b: Array | None = None) -> Array:
    """y = x w instead of x w^T; shapes tell only where w is not square."""
    return layers.linear(x, w.T, b)


def exp_unshifted(x: Array, axis: int = -1) -> Array:
    """exp without taking the largest score away."""
    weights = np.exp(x.astype(np.float32))
    return weights / weights.sum(axis, keepdims=True)


def softmax_over_first(x: Array, axis: int = -1) -> Array:
    """The axis is ignored."""
    return activation.softmax(x, 0)


def log_of_softmax(x: Array, axis: int = -1) -> Array:
    """The logarithm of probabilities that have underflowed."""
    return np.log(activation.softmax(x, axis).astype(x.dtype))


def log_to_base_2(x: Array, axis: int = -1) -> Array:
    """The logarithm to base 2."""
    return activation.logsumexp(x, axis) / np.log(2)


def nan_to_zero(x: Array) -> Array:
    """x > 0 ? x : 0 turns NaN into 0."""
    return np.where(x > 0, x, 0)


def gelu_by_erf(x: Array) -> Array:
    """The exact GELU where an approximation is meant."""
    return activation.gelu_erf(x)


def gelu_by_tanh(x: Array) -> Array:
    """GELU by tanh where another is meant."""
    return activation.gelu_tanh(x)


def gelu_by_sigmoid(x: Array) -> Array:
    """x sigmoid(1.702 x) where another is meant."""
    return activation.gelu_quick(x)


def gate_is_up(gate: Array, up: Array) -> Array:
    """The two halves change places."""
    return activation.swiglu(up, gate)


def gated_by_erf(gate: Array, up: Array) -> Array:
    """The exact GELU in GeGLU."""
    return activation.gelu_erf(gate) * up


def up_gates_gate(x: Array, w_gate: Array, w_up: Array, w_down: Array, **rest: Any) -> Array:
    """The two projections change places."""
    return layers.gated_mlp(x, w_up, w_gate, w_down, **rest)


def biases_forgotten(x: Array, *weights: Array, activation: str, **named: Array) -> Array:
    """No bias anywhere."""
    kept = {name: w for name, w in named.items() if name.startswith("w_")}
    return (layers.gated_mlp if "w_gate" in kept else layers.mlp)(x, *weights, **kept, activation=activation)


def activation_not_read(x: Array, activation: str, **weights: Array) -> Array:
    """The default activation whatever the keyword says."""
    return (layers.gated_mlp if "w_gate" in weights else layers.mlp)(x, **weights)


def squares_in_dtype(x: Array, gain: Array, eps: float = 1e-6) -> Array:
    """Squares in the dtype of the input: float16 overflows above 255."""
    mean = np.mean(x * x, -1, keepdims=True)
    return x / np.sqrt(mean + x.dtype.type(eps)) * gain


def eps_outside(x: Array, gain: Array, eps: float = 1e-6) -> Array:
    """eps is added to the root, not under it."""
    return x / (np.sqrt(np.mean(np.square(x, dtype=np.float64), -1, keepdims=True)) + eps) * gain


def gain_plus_one(x: Array, gain: Array, eps: float = 1e-6, **_: Any) -> Array:
    """Gemma's 1 + gain for everyone."""
    return layers.rms_norm(x, gain, eps, gain_offset=1.0)


def mean_kept(x: Array, gain: Array, bias: Array | None = None, eps: float = 1e-5) -> Array:
    """Layer norm without taking the mean away."""
    return layers.rms_norm(x, gain, eps) + (0 if bias is None else bias)


def deviation_unbiased(x: Array, gain: Array, bias: Array | None = None, eps: float = 1e-5) -> Array:
    """The variance over D - 1."""
    variance = x.var(-1, ddof=1, keepdims=True)
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(variance + eps) * gain + (0 if bias is None else bias)


def variance_by_squares(x: Array, gain: Array, bias: Array | None = None, eps: float = 1e-5) -> Array:
    """E[x^2] - E[x]^2 in float32: a large offset cancels all there is."""
    x = x.astype(np.float32)
    mean = x.mean(-1, keepdims=True)
    return (x - mean) / np.sqrt((x * x).mean(-1, keepdims=True) - mean * mean + np.float32(eps)) * gain + bias


def id_off_by_one(ids: Array, table: Array) -> Array:
    """Row i + 1 for token i."""
    return table[(ids + 1) % len(table)]


def positions_from_zero(x: Array, positions: Array, table: Array) -> Array:
    """Every chunk starts at position 0."""
    return x + table[: len(x)]


def nibbles_side_by_side(blocks: Array, name: str) -> Array:
    """Nibbles side by side instead of low halves first: elements 2j and 2j + 1 of a byte."""
    w = quantize.dequantize(blocks, name)
    run = 16 if name in ("q4_0", "q4_1", "q5_0", "q5_1") else 32
    return w.reshape(len(w), -1, 2, run).swapaxes(-1, -2).reshape(w.shape)


def block_neighbour(blocks: Array, name: str) -> Array:
    """Each group takes the scale of its neighbour: elements move by 16."""
    return np.roll(quantize.dequantize(blocks, name), 16, axis=1)


def minimum_forgotten(blocks: Array, name: str) -> Array:
    """The minimum of a block is not added: codes start at zero."""
    w = quantize.dequantize(blocks, name)
    group = 16 if name == "q2_k" else 32
    groups = w.reshape(len(w), -1, group)
    return (groups - groups.min(-1, keepdims=True)).reshape(w.shape)


def x_not_quantised(x: Array, blocks: Array, name: str) -> Array:
    """The activations stay floats."""
    return x @ quantize.dequantize(blocks, name).T


def int8_truncated(x: Array) -> tuple[Array, Array]:
    """Codes are cut off, not rounded to the nearest, ties to even."""
    _, scales = quantize.quantize_int8(x)
    return np.trunc(x / np.repeat(scales, 32, axis=1)), scales


def philox_7_rounds(counter: Array, key: Array) -> Array:
    """Seven rounds instead of ten."""
    return rng.philox(counter, key, rounds=7)


def philox_words_swapped(counter: Array, key: Array) -> Array:
    """The key's two words change places."""
    return rng.philox(counter, key[..., ::-1])


def uniform_of_24_bits(seed: int, request: int, position: int) -> float:
    """A number rounded to float32, which is 1.0 once in 2^25 draws."""
    return float(np.float32(rng.uniform(seed, request, position)))
