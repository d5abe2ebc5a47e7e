"""Numbers of few bits, one by one: every code's number by its sign, exponent and mantissa; the nearest by looking."""

import math

import numpy as np

from golden.bits import FLOATS, INTEGERS, largest, nearest, numbers, pack, unpack
from golden.values import Array

__all__ = [
    "dequantize_linear", "dequantize_mxfp4", "dequantize_nvfp4", "quantize_absmax", "quantize_linear",
    "quantize_mxfp4", "quantize_nvfp4",
]  # fmt: skip

def _of(part: Array, index: tuple[int, ...], block: tuple[int, ...]) -> float:
    """Return the entry of a block that an element is in."""
    part = np.asarray(part)
    sizes = (1,) * (len(index) - len(block)) + tuple(block)
    shape = (1,) * (len(index) - part.ndim) + part.shape
    at = tuple(0 if n == 1 else i // size for i, size, n in zip(index, sizes, shape, strict=True))
    return float(part.reshape(shape)[at])


def quantize_linear(
    x: Array, scale: Array, zero_point: Array | None = None, format: str = "int8", block: tuple[int, ...] = ()
) -> Array:
    codes = np.zeros(x.shape, np.int64)
    for index in np.ndindex(*x.shape):
        step, zero = _of(scale, index, block), 0.0 if zero_point is None else _of(zero_point, index, block)
        ratio = float(np.float32(x[index]) / np.float32(step)) if step else 0.0
        if format in FLOATS:
            codes[index] = nearest(ratio, format)
        else:
            least, most = INTEGERS[format]
            codes[index] = 0 if math.isnan(ratio) else min(max(round(min(max(ratio, -1e9), 1e9)) + zero, least), most)
    return codes


def dequantize_linear(
    q: Array, scale: Array, zero_point: Array | None = None, format: str = "int8", block: tuple[int, ...] = ()
) -> Array:
    x = np.zeros(q.shape)
    for index in np.ndindex(*q.shape):
        zero = 0.0 if zero_point is None else _of(zero_point, index, block)
        number = numbers(format)[int(q[index])] if format in FLOATS else float(q[index])
        x[index] = (number - zero) * _of(scale, index, block)
    return x


def quantize_absmax(x: Array, format: str = "int8", block: tuple[int, int] | None = None) -> tuple[Array, Array]:
    rows, columns = block or (1, max(1, x.shape[1]))
    scale = np.zeros((-(-x.shape[0] // rows), -(-x.shape[1] // columns)))
    for i, j in np.ndindex(*scale.shape):
        part = x[i * rows : (i + 1) * rows, j * columns : (j + 1) * columns]
        scale[i, j] = np.float32(np.abs(part).max()) / np.float32(largest(format))
    return quantize_linear(x, scale, format=format, block=(rows, columns)), scale


def quantize_mxfp4(x: Array, run: int = 1) -> tuple[Array, Array]:
    packed, scales = [], []
    for row in x:
        codes, scale = [], []
        for at in range(0, len(row), 32):
            most = max(abs(float(value)) for value in row[at : at + 32])
            exponent = max(math.frexp(most)[1] - 3, -127) if most else -127
            scale.append(exponent + 127)
            codes += [nearest(float(value) / 2.0**exponent, "e2m1") for value in row[at : at + 32]]
        packed.append(pack(codes, run))
        scales.append(scale)
    return np.array(packed), np.array(scales)


def dequantize_mxfp4(packed: Array, scale: Array, run: int = 1) -> Array:
    rows = []
    for row, scales in zip(packed, scale, strict=True):
        rows.append([
            numbers("e2m1")[code] * 2.0 ** (int(scales[i // 32]) - 127) for i, code in enumerate(unpack(row, run))
        ])
    return np.array(rows)


def quantize_nvfp4(x: Array, run: int = 1) -> tuple[Array, Array, Array]:
    tensor = np.float32(np.abs(x).max()) / np.float32(448 * 6)
    packed, scales = [], []
    for row in x.astype(np.float32):
        codes, scale = [], []
        for at in range(0, len(row), 16):
            most = np.abs(row[at : at + 16]).max()
            code = nearest(float(most / (np.float32(6) * tensor)), "e4m3") if tensor else 0
            step = np.float32(numbers("e4m3")[code]) * tensor
            scale.append(code)
            codes += [nearest(float(value / step) if step else 0.0, "e2m1") for value in row[at : at + 16]]
        packed.append(pack(codes, run))
        scales.append(scale)
    return np.array(packed), np.array(scales), np.array(float(tensor))


def dequantize_nvfp4(packed: Array, scale: Array, tensor: Array, run: int = 1) -> Array:
    rows = []
    for row, scales in zip(packed, scale, strict=True):
        rows.append([
            numbers("e2m1")[code] * numbers("e4m3")[int(scales[i // 16])] * float(tensor)
            for i, code in enumerate(unpack(row, run))
        ])
    return np.array(rows)
