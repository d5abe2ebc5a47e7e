"""ONNX's QuantizeLinear and DequantizeLinear as calls of refimpl: formats by dtype, axes and blocks as shapes."""

import numpy as np
from onnx import helper

from refimpl.llm.narrow_floats import NUMBERS, dequantize_linear, quantize_linear

__all__ = ["dequantize_node", "quantize_node"]

FLOATS = {"float8_e4m3fn": "e4m3", "float8_e5m2": "e5m2", "float4_e2m1fn": "e2m1"}


def quantize_node(
    x: np.ndarray, scale: np.ndarray, zero_point: np.ndarray | None = None, *, axis: int = 1, block_size: int = 0,
    output_dtype: int = 0,
) -> np.ndarray:  # fmt: skip
    """Return numbers of few bits; their dtype is that of the zero point, or stated."""
    asked = np.dtype(helper.tensor_dtype_to_np_dtype(output_dtype)) if output_dtype else np.dtype(np.uint8)
    dtype = asked if zero_point is None else zero_point.dtype
    scale, zero_point, keywords = _arranged(x.shape, scale, zero_point, axis, block_size, dtype)
    codes = quantize_linear(x, scale, zero_point, **keywords)
    return codes.view(dtype) if dtype.name in FLOATS else codes.astype(dtype)


def dequantize_node(
    q: np.ndarray, scale: np.ndarray, zero_point: np.ndarray | None = None, *, axis: int = 1, block_size: int = 0
) -> np.ndarray:
    """Return numbers of the dtype of their scales."""
    scale, zero_point, keywords = _arranged(q.shape, scale, zero_point, axis, block_size, q.dtype)
    held = NUMBERS[keywords["format"]][2]
    return dequantize_linear(q.view(held) if q.dtype.name in FLOATS else q.astype(held), scale, zero_point, **keywords)


def _arranged(
    shape: tuple[int, ...], scale: np.ndarray, zero_point: np.ndarray | None, axis: int, block_size: int,
    dtype: np.dtype,
) -> tuple[np.ndarray, np.ndarray | None, dict[str, object]]:  # fmt: skip
    """Return scales that stand along their axis, zero points beside them as codes are held, format and block."""
    format = FLOATS.get(dtype.name, dtype.name)
    along = tuple(-1 if i == axis % len(shape) else 1 for i in range(len(shape)))
    if dtype.name in FLOATS:
        assert zero_point is None or not zero_point.astype(np.float32).any()
        zero_point = None
    if scale.ndim == 1:
        scale = scale.reshape(along)
    if zero_point is not None:
        zero_point = zero_point.astype(NUMBERS[format][2]).reshape(scale.shape)
    block = tuple(block_size if i == -1 else 1 for i in along) if block_size else ()
    return scale, zero_point, {"format": format, "block": block}
