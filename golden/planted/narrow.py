"""Faults of numbers of few bits: whose scale is whose, how a code is rounded, what its bits mean."""

import numpy as np

from golden import bits
from golden.derive import narrow
from golden.values import Array

__all__ = [
    "bias_of_ieee", "blocks_along_rows_only", "blocks_of_half", "exponent_rounded_up", "halves_swapped",
    "one_scale_for_all", "one_scale_too_large", "scale_not_rounded", "tensor_scale_forgotten", "ties_away",
    "wraps_around", "zero_point_forgotten",
]  # fmt: skip


def zero_point_forgotten(
    q: Array, scale: Array, zero_point: Array | None = None, format: str = "int8", block: tuple[int, ...] = ()
) -> Array:
    """Codes are taken as they are."""
    return narrow.dequantize_linear(q, scale, None, format, block)


def one_scale_for_all(
    q: Array, scale: Array, zero_point: Array | None = None, format: str = "int8", block: tuple[int, ...] = ()
) -> Array:
    """The first scale is everyone's."""
    first = None if zero_point is None else np.asarray(zero_point).ravel()[:1]
    return narrow.dequantize_linear(q, np.asarray(scale).ravel()[:1], first, format)


def bias_of_ieee(
    q: Array, scale: Array, zero_point: Array | None = None, format: str = "int8", block: tuple[int, ...] = ()
) -> Array:
    """The exponent is biased by one more, as in the formats without infinities and negative zero."""
    return narrow.dequantize_linear(q, scale, zero_point, format, block) / 2


def ties_away(
    x: Array, scale: Array, zero_point: Array | None = None, format: str = "int8", block: tuple[int, ...] = ()
) -> Array:
    """Ties go away from zero."""
    beyond = np.asarray(x, np.float64) * (1 + 1e-6)
    return narrow.quantize_linear(beyond, scale, zero_point, format, block)


def wraps_around(
    x: Array, scale: Array, zero_point: Array | None = None, format: str = "int8", block: tuple[int, ...] = ()
) -> Array:
    """What is too large keeps its lowest bits."""
    whole = np.rint(np.nan_to_num(x / np.where(scale == 0, 1, scale), posinf=0, neginf=0)).astype(np.int64)
    return whole + (0 if zero_point is None else zero_point)


def blocks_along_rows_only(x: Array, format: str = "int8", block: tuple[int, int] | None = None) -> tuple[Array, Array]:
    """A block has one row."""
    q, scale = narrow.quantize_absmax(x, format, (1, block[1]) if block else (1, 32))
    return q, scale[:: block[0]] if block else scale


def blocks_of_half(x: Array, format: str = "int8", block: tuple[int, int] | None = None) -> tuple[Array, Array]:
    """A block has half as many columns, and only every other scale is kept."""
    rows, columns = block or (1, x.shape[1])
    q, scale = narrow.quantize_absmax(x, format, (rows, max(1, columns // 2)))
    return q, scale[:, ::2]


def halves_swapped(packed: Array, scale: Array, tensor: Array | None = None, run: int = 1) -> Array:
    """The first number of a byte is its high half."""
    swapped = (packed.astype(np.int64) & 15) << 4 | packed.astype(np.int64) >> 4
    if tensor is None:
        return narrow.dequantize_mxfp4(swapped, scale, run)
    return narrow.dequantize_nvfp4(swapped, scale, tensor, run)


def tensor_scale_forgotten(packed: Array, scale: Array, tensor: Array, run: int = 1) -> Array:
    """The scale of the tensor is left out."""
    return narrow.dequantize_nvfp4(packed, scale, np.array(1.0), run)


def exponent_rounded_up(x: Array, run: int = 1) -> tuple[Array, Array]:
    """The power of two is the one above, so that no number is cut off."""
    _, scale = narrow.quantize_mxfp4(x, run)
    rows = []
    for row, powers in zip(x, scale + 1.0 - 127, strict=True):
        codes = [bits.nearest(float(value) / 2.0 ** powers[i // 32], "e2m1") for i, value in enumerate(row)]
        rows.append(bits.pack(codes, run))
    return np.array(rows), scale + 1


def scale_not_rounded(x: Array, run: int = 1) -> tuple[Array, Array, Array]:
    """Codes are taken with the scale of a block as it is, not as e4m3 has it."""
    _, scale, tensor = narrow.quantize_nvfp4(x, run)
    rows = []
    for row in x:
        steps = [max(abs(row[at : at + 16])) / 6 or 1.0 for at in range(0, len(row), 16)]
        codes = [bits.nearest(value / steps[i // 16], "e2m1") for i, value in enumerate(row)]
        rows.append(bits.pack(codes, run))
    return np.array(rows), scale, tensor


def one_scale_too_large(x: Array, run: int = 1) -> tuple[Array, Array, Array]:
    """The tensor's scale leaves the largest number of e4m3 unused, as if it were 256."""
    packed, scale, tensor = narrow.quantize_nvfp4(x, run)
    return packed, scale, tensor * 448 / 256
