"""Weights in blocks of small integers, as GGUF files hold them.

Every format says the same thing: a weight is a small code times a scale, plus an offset,

    w = d q + m        d and m shared by a group of 16 or 32 neighbours in a row.

The formats differ only in where the bits of q, d and m lie. LAYOUTS shows the bytes of a block,
``read_codes`` finds q in them and ``read_scales`` d and m.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from refimpl.contract import Array, host

__all__ = ["FORMATS", "LAYOUTS", "BlockFormat", "read_codes", "read_scales"]

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
}


class BlockFormat(NamedTuple):
    """The number of elements that a block holds, and the number of bytes it takes."""

    elements: int
    bytes: int


FORMATS: Mapping[str, BlockFormat] = {
    name: BlockFormat(256 if name.endswith("_k") else 32, layout.itemsize) for name, layout in LAYOUTS.items()
}


def _fields(packed: Array, bits: int, run: int) -> Array:
    """Split bytes into fields of ``bits`` bits, the lowest first, and put the elements in order.

    ``run`` bytes side by side hold ``run`` neighbours in their lowest fields, the next ``run`` above them, and so on.
    """
    *outer, size = packed.shape
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    fields = packed.reshape(*outer, size // run, 1, run) >> shifts & np.uint8(2**bits - 1)
    return fields.reshape(*outer, size * 8 // bits).astype(np.int8)


@host
def read_codes(block: Array, format: str) -> Array:
    """Read q from blocks of a layout: int8 [O, B, I].

    >>> block = np.zeros((1, 1), LAYOUTS["q4_0"])
    >>> block["low"] = 0x98    # element 0 in the low half of the first byte, element 16 in its high half
    >>> read_codes(block, "q4_0")[0, 0, [0, 16]]
    array([0, 1], dtype=int8)
    """
    match format:
        case "q4_0":
            return _fields(block["low"], 4, 16) - 8
        case "q4_1":
            return _fields(block["low"], 4, 16)
        case "q5_0":
            return (_fields(block["low"], 4, 16) | _fields(block["high"], 1, 1) << 4) - 16
        case "q5_1":
            return _fields(block["low"], 4, 16) | _fields(block["high"], 1, 1) << 4
        case "q2_k":
            return _fields(block["low"], 2, 32)
        case "q3_k":
            return (_fields(block["low"], 2, 32) | _fields(block["high"], 1, 32) << 2) - 4
        case "q4_k":
            return _fields(block["low"], 4, 32)
        case "q5_k":
            return _fields(block["low"], 4, 32) | _fields(block["high"], 1, 32) << 4
        case "q6_k":
            return (_fields(block["low"], 4, 64) | _fields(block["high"], 2, 32) << 4) - 32
        case _:
            return block["q"]


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
            return _half(block, "d") * ((_fields(low, 4, 8) | _fields(high, 2, 4) << 4) - 32), None
        case "q4_k" | "q5_k":
            # groups 0-3 keep six bits in a byte of their own; groups 4-7 keep four in ``rest`` and two above those six
            first_d, first_m, rest = np.split(block["scales"], 3, axis=-1)
            scales_d = np.concatenate([first_d & 63, (rest & 15) | (first_d >> 6) << 4], axis=-1)
            scales_m = np.concatenate([first_m & 63, (rest >> 4) | (first_m >> 6) << 4], axis=-1)
            return _half(block, "d") * scales_d, -_half(block, "m") * scales_m
        case "q6_k":
            return _half(block, "d") * block["scales"], None
        case _:
            return _half(block, "d"), None
