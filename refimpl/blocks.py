"""Weights in blocks of small integers, as GGUF files hold them.

Every format says the same thing: a weight is a small code times a scale, plus an offset,

    w = d q + m        d and m shared by a group of 16 or 32 neighbours in a row.

The formats differ only in where the bits of q, d and m lie. LAYOUTS shows the bytes of a block,
``read_codes`` finds q in them and ``read_scales`` d and m; ``write_codes`` and ``write_scales`` put them there.

In mxfp4, q is a float of four bits (e2m1), twice as large, which makes it a whole number; d is half a power of two.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from refimpl.contract import Array, host

__all__ = [
    "FORMATS", "LAYOUTS", "BlockFormat", "pack_fields", "read_codes", "read_scales", "unpack_fields", "write_codes",
    "write_scales",
]  # fmt: skip

_HALF = "<f2"  # GGUF is little-endian, whatever the machine

LAYOUTS: Mapping[str, np.dtype[np.void]] = {
    "q8_0": np.dtype([("d", _HALF), ("q", "i1", 32)]),
    "q4_0": np.dtype([("d", _HALF), ("low", "u1", 16)]),
    "q4_1": np.dtype([("d", _HALF), ("m", _HALF), ("low", "u1", 16)]),
    "q5_0": np.dtype([("d", _HALF), ("high", "u1", 4), ("low", "u1", 16)]),
    "q5_1": np.dtype([("d", _HALF), ("m", _HALF), ("high", "u1", 4), ("low", "u1", 16)]),
    "q2_k": np.dtype([("scales", "u1", 16), ("low", "u1", 64), ("d", _HALF), ("m", _HALF)]),
    "q3_k": np.dtype([("high", "u1", 32), ("low", "u1", 64), ("scales", "u1", 12), ("d", _HALF)]),
    "q4_k": np.dtype([("d", _HALF), ("m", _HALF), ("scales", "u1", 12), ("low", "u1", 128)]),
    "q5_k": np.dtype([("d", _HALF), ("m", _HALF), ("scales", "u1", 12), ("high", "u1", 32), ("low", "u1", 128)]),
    "q6_k": np.dtype([("low", "u1", 128), ("high", "u1", 64), ("scales", "i1", 16), ("d", _HALF)]),
    "mxfp4": np.dtype([("exponent", "u1"), ("low", "u1", 16)]),
}


class BlockFormat(NamedTuple):
    """The number of elements that a block holds, and the number of bytes it takes."""

    elements: int
    bytes: int


FORMATS: Mapping[str, BlockFormat] = {
    name: BlockFormat(256 if name.endswith("_k") else 32, layout.itemsize) for name, layout in LAYOUTS.items()
}

# what is added to q, so that it is not negative; bits and run of the field ``low``; those of ``high``, if any
_CODES: Mapping[str, tuple[int, int, int, tuple[int, int] | None]] = {
    "q4_0": (8, 4, 16, None), "q4_1": (0, 4, 16, None), "q5_0": (16, 4, 16, (1, 1)), "q5_1": (0, 4, 16, (1, 1)),
    "q2_k": (0, 2, 32, None), "q3_k": (4, 2, 32, (1, 32)), "q4_k": (0, 4, 32, None), "q5_k": (0, 4, 32, (1, 32)),
    "q6_k": (32, 4, 64, (2, 32)), "mxfp4": (0, 4, 16, None),
}  # fmt: skip

_TWICE_E2M1 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int8)
"""Twice the floats of four bits, by their bits; -0 becomes 0."""


def _shifts(bits: int) -> Array:
    return np.arange(0, 8, bits, dtype=np.uint8)[:, None]


@host
def unpack_fields(packed: Array, bits: int, run: int) -> Array:
    """Split bytes into fields of ``bits`` bits, the lowest first, and put the elements in order.

    ``run`` bytes side by side hold ``run`` neighbours in their lowest fields, the next ``run`` above them, and so on.

    >>> unpack_fields(np.uint8([0x21, 0x43]), 4, run=1), unpack_fields(np.uint8([0x21, 0x43]), 4, run=2)
    (array([1, 2, 3, 4], dtype=int8), array([1, 3, 2, 4], dtype=int8))
    """
    *outer, size = packed.shape
    fields = packed.reshape(*outer, size // run, 1, run) >> _shifts(bits) & np.uint8(2**bits - 1)
    return fields.reshape(*outer, size * 8 // bits).astype(np.int8)


@host
def pack_fields(fields: Array, bits: int, run: int) -> Array:
    """Put fields into bytes, as ``unpack_fields`` finds them there."""
    *outer, size = fields.shape
    placed = fields.astype(np.uint8).reshape(*outer, size * bits // (8 * run), 8 // bits, run) << _shifts(bits)
    return np.bitwise_or.reduce(placed, axis=-2).reshape(*outer, size * bits // 8)


@host
def read_codes(block: Array, format: str) -> Array:
    """Read q from blocks of a layout: int8 [O, B, I].

    >>> block = np.zeros((1, 1), LAYOUTS["q4_0"])
    >>> block["low"] = 0x98    # element 0 in the low half of the first byte, element 16 in its high half
    >>> read_codes(block, "q4_0")[0, 0, [0, 16]]
    array([0, 1], dtype=int8)
    """
    if format == "q8_0":
        return block["q"]
    offset, bits, run, high = _CODES[format]
    codes = unpack_fields(block["low"], bits, run)
    if format == "mxfp4":
        return _TWICE_E2M1[codes]
    return (codes if high is None else codes | unpack_fields(block["high"], *high) << bits) - offset


@host
def write_codes(block: Array, format: str, q: Array) -> None:
    """Write q [O, B, I] into blocks of a layout, where ``read_codes`` finds it."""
    if format == "q8_0":
        block["q"] = q
        return
    offset, bits, run, high = _CODES[format]
    if format == "mxfp4":
        q = np.searchsorted(_TWICE_E2M1[:8], np.abs(q)) + 8 * (q < 0)
    codes = (q + offset).astype(np.uint8)
    block["low"] = pack_fields(codes & (2**bits - 1), bits, run)
    if high is not None:
        block["high"] = pack_fields(codes >> bits, *high)


def _half(block: Array, field: str) -> Array:
    return block[field].astype(np.float32)[..., None]


@host
def read_scales(block: Array, format: str) -> tuple[Array, Array | None]:
    """Read d and m from blocks of a layout: float32 [O, B, groups]; m is None where the format has none.

    >>> block = np.zeros((1, 1), LAYOUTS["q4_0"])
    >>> block["d"] = 0.5
    >>> read_scales(block, "q4_0")
    (array([[[0.5]]], dtype=float32), None)
    """
    match format:
        case "q4_1" | "q5_1":
            return _half(block, "d"), _half(block, "m")
        case "q2_k":
            return _half(block, "d") * (block["scales"] & 15), -_half(block, "m") * (block["scales"] >> 4)
        case "q3_k":
            low, high = block["scales"][..., :8], block["scales"][..., 8:]
            return _half(block, "d") * ((unpack_fields(low, 4, 8) | unpack_fields(high, 2, 4) << 4) - 32), None
        case "q4_k" | "q5_k":
            # groups 0-3 keep six bits in a byte of their own; groups 4-7 keep four in ``rest`` and two above those six
            own_d, own_m, rest = np.split(block["scales"], 3, axis=-1)
            d, m = (own_d & 63, rest & 15 | (own_d >> 6) << 4), (own_m & 63, rest >> 4 | (own_m >> 6) << 4)
            return _half(block, "d") * np.concatenate(d, axis=-1), -_half(block, "m") * np.concatenate(m, axis=-1)
        case "q6_k":
            return _half(block, "d") * block["scales"], None
        case "mxfp4":
            d = np.ldexp(np.float32(1), block["exponent"].astype(np.int32) - 128)
            return np.where(block["exponent"] == 255, np.float32(np.nan), d)[..., None], None
        case _:
            return _half(block, "d"), None


@host
def write_scales(block: Array, format: str, scale: Array, least: Array) -> None:
    """Write the groups' scales and minima [O, B, groups], whole numbers that d and m multiply, into _k blocks."""
    match format:
        case "q2_k":
            block["scales"] = scale | least << 4
        case "q3_k":
            block["scales"][..., :8] = pack_fields(scale + 32 & 15, 4, 8)
            block["scales"][..., 8:] = pack_fields(scale + 32 >> 4, 2, 4)
        case "q4_k" | "q5_k":
            (first_d, last_d), (first_m, last_m) = np.split(scale, 2, axis=-1), np.split(least, 2, axis=-1)
            own_d, own_m = first_d | (last_d >> 4) << 6, first_m | (last_m >> 4) << 6
            block["scales"] = np.concatenate([own_d, own_m, last_d & 15 | (last_m & 15) << 4], axis=-1)
        case _:
            block["scales"] = scale
