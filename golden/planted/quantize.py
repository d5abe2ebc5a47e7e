"""Faults of block formats: which bits belong together, and whose scale is whose."""

import numpy as np

from golden.derive import quantize
from golden.values import Array

__all__ = [
    "block_neighbour", "codes_in_order", "codes_twice", "int8_truncated", "minimum_forgotten", "nibbles_side_by_side",
    "one_scale_a_row", "x_not_quantised",
]  # fmt: skip


def nibbles_side_by_side(blocks: Array, format: str) -> Array:
    """Nibbles side by side instead of low halves first: elements 2j and 2j + 1 of a byte."""
    w = quantize.dequantize(blocks, format)
    run = 16 if format in ("q4_0", "q4_1", "q5_0", "q5_1", "mxfp4") else 32
    return w.reshape(len(w), -1, 2, run).swapaxes(-1, -2).reshape(w.shape)


def block_neighbour(blocks: Array, format: str) -> Array:
    """Each group takes the scale of its neighbour: elements move by 16."""
    return np.roll(quantize.dequantize(blocks, format), 16, axis=1)


def minimum_forgotten(blocks: Array, format: str) -> Array:
    """The minimum of a block is not added: codes start at zero."""
    w = quantize.dequantize(blocks, format)
    group = 16 if format == "q2_k" else 32
    groups = w.reshape(len(w), -1, group)
    return (groups - groups.min(-1, keepdims=True)).reshape(w.shape)


def codes_twice(blocks: Array, format: str) -> Array:
    """Twice the floats of four bits, as integers, are multiplied by the whole power of two."""
    return 2 * quantize.dequantize(blocks, format)


def codes_in_order(blocks: Array, format: str) -> Array:
    """The codes of mxfp4 are read as whole numbers with a sign bit, not as floats."""
    size, rows = 17, []
    for row in np.asarray(blocks, np.uint8).reshape(len(blocks), -1, size):
        codes = np.concatenate([row[:, 1:] & 15, row[:, 1:] >> 4], axis=-1).astype(np.float64)
        rows.append(np.where(codes > 7, 8 - codes, codes) * 2.0 ** (row[:, :1].astype(np.float64) - 127))
    return np.array(rows).reshape(len(blocks), -1)


def x_not_quantised(x: Array, blocks: Array, format: str) -> Array:
    """The activations stay floats."""
    return x @ quantize.dequantize(blocks, format).T


def one_scale_a_row(x: Array, blocks: Array, format: str) -> Array:
    """One scale for all activations of a token: small blocks beside a large one lose their digits."""
    scales = np.abs(x).max(-1, keepdims=True).astype(np.float64) / 127
    return np.rint(x / scales) * scales @ quantize.dequantize(blocks, format).T


def int8_truncated(x: Array) -> tuple[Array, Array]:
    """Codes are cut off, not rounded to the nearest, ties to even."""
    _, scales = quantize.quantize_int8(x)
    return np.trunc(x / np.repeat(scales, 32, axis=1)), scales
