"""Numbers of few bits with their scales beside them: int8 by rows, fp8 by blocks, whatever ONNX has.

    x = scale (q - zero_point)        one scale for a block of neighbours, along any axes

A code of a float, e4m3 and e5m2 (fp8) or e2m1 (fp4), is held in a byte: sign, exponent, mantissa. Codes of integers are
those integers.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from ml_dtypes import float4_e2m1fn, float8_e4m3fn, float8_e5m2, float8_e8m0fnu

from refimpl.contract import Array, Float, host, op, require, widen

__all__ = ["NUMBERS", "decode", "dequantize_linear", "encode", "quantize_absmax", "quantize_linear"]

# the least and the largest number of a format, and the dtype that holds its codes
NUMBERS: Mapping[str, tuple[float, float, Any]] = {
    "int8": (-128, 127, np.int8), "uint8": (0, 255, np.uint8), "int4": (-8, 7, np.int8), "uint4": (0, 15, np.uint8),
    "int2": (-2, 1, np.int8), "uint2": (0, 3, np.uint8), "int16": (-(2**15), 2**15 - 1, np.int16),
    "uint16": (0, 2**16 - 1, np.uint16), "e4m3": (-448, 448, np.uint8), "e5m2": (-57344, 57344, np.uint8),
    "e2m1": (-6, 6, np.uint8),
}  # fmt: skip
_FLOATS = {"e4m3": float8_e4m3fn, "e5m2": float8_e5m2, "e2m1": float4_e2m1fn, "e8m0": float8_e8m0fnu}


@host
def encode(x: Array, format: str) -> Array:
    """Round numbers to codes: the nearest, ties to even; what is beyond an end becomes that end.

    NaN becomes 0 where the format has none.

    >>> encode(np.float32([0.75, 7, -0.5]), "e2m1"), encode(np.float32([2.5, 300]), "int8")
    (array([2, 7, 9], dtype=uint8), array([  2, 127], dtype=int8))
    """
    least, largest, held = NUMBERS[format]
    clipped = np.clip(x if format in ("e4m3", "e5m2") else np.where(np.isnan(x), 0, x), least, largest)
    return clipped.astype(_FLOATS[format]).view(held) if format in _FLOATS else np.rint(clipped).astype(held)


@host
def decode(q: Array, format: str) -> Array:
    """Return the numbers of codes, exactly: float32. e8m0 has powers of two, from 2**-127 on, and NaN.

    >>> decode(np.uint8([0x7E, 0x01]), "e4m3"), decode(np.uint8([127, 130]), "e8m0")
    (array([4.480000e+02, 1.953125e-03], dtype=float32), array([1., 8.], dtype=float32))
    """
    codes = q & 15 if format == "e2m1" else q
    return (codes.view(_FLOATS[format]) if format in _FLOATS else codes).astype(np.float32)


def _spread(scale: Array, zero_point: Array | None, format: str, shape: Any, block: Any) -> tuple[Array, Array]:
    """Return the scale and the zero point of every element."""
    require(format in NUMBERS, "C1", f"formats are {', '.join(NUMBERS)}, got {format!r}")
    counts, sizes = ((1,) * (len(shape) - len(part)) + tuple(part) for part in (scale.shape, block))
    axes = list(zip(shape, counts, sizes, strict=False))
    fits = all(size > 0 and count in (1, -(-length // size)) for length, count, size in axes)
    fits = fits and len(counts) == len(sizes) == len(shape)
    require(fits, "C2", f"scale of {shape} in blocks of {block} has a number a block or one an axis, got {scale.shape}")
    fits = zero_point is None or (format not in _FLOATS and zero_point.shape == scale.shape)
    require(fits, "C3", f"zero_point has the shape {scale.shape} of scale, and none is there for {', '.join(_FLOATS)}")
    at, step = np.ix_(*(np.arange(length) // size % count for length, count, size in axes)), widen(scale)
    zero = np.zeros_like(step) if zero_point is None else zero_point.astype(step.dtype)
    return step.reshape(counts)[at], zero.reshape(counts)[at]


@op
def quantize_linear(
    x: Float[Array, "..."], scale: Float[Array, "..."], zero_point: Array | None = None, *, format: str = "int8",
    block: tuple[int, ...] = (),
) -> Array:
    """Round numbers to codes, the scales given (ONNX QuantizeLinear).

    Math: q[i] = clip(round half even(x[i] / scale[b]) + zero_point[b]),  b = i // block along each axis.
        ``block`` are sizes along the last axes, 1 where none is given; a scale with one entry along an axis is for all
        of it. So [] is a scale for the tensor, [O 1] one a row, [O D/128] with block (128,) one for 128 neighbours.
    Cost: 3 flop an element; reads x, writes 1 byte a code: bound by memory.
    Numerics: the quotient in float32 (float64 stays), rounded once more to the code; too large becomes the largest.
        A quotient by 0 is 0. NaN becomes NaN in e4m3 and e5m2, else code 0.
    Constraints:
        (C1) format is in NUMBERS.
        (C2) scale has an entry for each block of an axis, or one.
        (C3) zero_point has the shape of scale; floats have none.
    Source: ONNX operators, QuantizeLinear.

    >>> quantize_linear(np.float32([[1, 2.5, -9]]), np.float32(0.5), np.uint8(4), format="uint8")
    array([[6, 9, 0]], dtype=uint8)
    """
    step, zero = _spread(scale, zero_point, format, x.shape, block)
    with np.errstate(all="ignore"):
        ratio = np.where(step == 0, 0, widen(x) / step)
    return encode(ratio if format in _FLOATS else np.rint(ratio) + zero, format)


@op
def dequantize_linear(
    q: Array, scale: Float[Array, "..."], zero_point: Array | None = None, *, format: str = "int8",
    block: tuple[int, ...] = (),
) -> Float[Array, "..."]:
    """Turn codes back into numbers, of the dtype of the scales (ONNX DequantizeLinear).

    Math: x[i] = (q[i] - zero_point[b]) scale[b],  b = i // block along each axis, as in quantize_linear.
    Cost: 2 flop an element; reads 1 byte, writes an element: bound by memory.
    Numerics: the difference is exact, the product in float32 (float64 stays), one cast at the end.
    Constraints:
        (C1) format is in NUMBERS.
        (C2) scale has an entry for each block of an axis, or one.
        (C3) zero_point has the shape of scale; floats have none.
        (C4) q has the dtype that holds the codes of the format.
    Source: ONNX operators, DequantizeLinear; DeepSeek-AI, DeepSeek-V3 technical report, 2024 (fp8 in blocks).

    >>> dequantize_linear(np.int8([[1, 2], [3, 4]]), np.float32([[1], [10]]))    # int8, a scale a row
    array([[ 1.,  2.],
           [30., 40.]], dtype=float32)
    >>> dequantize_linear(np.uint8([[0x38, 0x40, 0x40]]), np.float32([[1, 3]]), format="e4m3", block=(2,))
    array([[1., 2., 6.]], dtype=float32)
    """
    step, zero = _spread(scale, zero_point, format, q.shape, block)
    require(q.dtype == NUMBERS[format][2], "C4", f"codes of {format} are {NUMBERS[format][2].__name__}, got {q.dtype}")
    with np.errstate(all="ignore"):
        return ((decode(q, format) - zero) * step).astype(scale.dtype)


@op
def quantize_absmax(
    x: Float[Array, "O D"], *, format: str = "int8", block: tuple[int, int] | None = None
) -> tuple[Array, Float[Array, "rows columns"]]:
    """Round a matrix to codes, the largest magnitude of a block to the largest code: int8 by rows, fp8 by blocks.

    Math: scale = max |x| over the block / largest(format);  q = code(x / scale).
    Cost: 4 O D flop; reads O D, writes O D bytes and a scale a block: bound by memory.
    Numerics: float32 (float64 stays). Without ``block`` a row has one scale, as in LLM.int8(). DeepSeek-V3 has fp8
        blocks of (1, 128) for activations, (128, 128) for weights; the last block of an axis may be partly full.
        A block of zeros has scale 0 and codes 0.
    Constraints:
        (C1) format is in NUMBERS.
        (C2) x is a matrix, the sizes of a block positive.
        (C3) x is finite.
    Source: Dettmers, LLM.int8(): 8-bit matrix multiplication for transformers at scale, 2022; DeepSeek-AI, DeepSeek-V3
        technical report, 2024.

    >>> quantize_absmax(np.float32([[127, 2.5, -1.5]]))
    (array([[127,   2,  -2]], dtype=int8), array([[1.]], dtype=float32))
    >>> q, scale = quantize_absmax(np.float32([[448, 1, -7, 3.5]]), format="e4m3", block=(1, 2))
    >>> scale, dequantize_linear(q, scale, format="e4m3", block=(1, 2))
    (array([[1.      , 0.015625]], dtype=float32), array([[448. ,   1. ,  -7. ,   3.5]], dtype=float32))
    """
    require(format in NUMBERS, "C1", f"formats are {', '.join(NUMBERS)}, got {format!r}")
    rows, columns = block or (1, max((1, *x.shape[1:])))
    require(x.ndim == 2 and min(rows, columns) > 0, "C2", f"a matrix in blocks, got {x.shape} in blocks of {block}")
    wide, starts = widen(x), (np.arange(0, x.shape[0], rows), np.arange(0, x.shape[1], columns))
    require(bool(np.isfinite(wide).all()), "C3", "what is quantised is finite")
    largest = np.maximum.reduceat(np.maximum.reduceat(np.abs(wide), starts[0], axis=0), starts[1], axis=1)
    scale = largest / wide.dtype.type(NUMBERS[format][1])
    return quantize_linear(wide, scale, format=format, block=(rows, columns)), scale
