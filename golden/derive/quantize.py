"""Block formats, element by element: where its bits lie, and which scale is its own (ggml-quants.c, ggml-common.h)."""

import math
import struct

import numpy as np

from golden.bits import numbers
from golden.values import Array

__all__ = ["dequantize", "linear_int8", "quantize_int8"]


def _half(block: bytes, at: int) -> float:
    return float(struct.unpack_from("<e", block, at)[0])


def _int8(block: bytes, at: int) -> int:
    return int(struct.unpack_from("b", block, at)[0])


def _nibble(block: bytes, at: int, i: int, run: int) -> int:
    """Element i of nibbles: ``run`` elements in the low halves of as many bytes, the next ``run`` in the high ones."""
    group, j = divmod(i, 2 * run)
    byte = block[at + group * run + j % run]
    return byte >> 4 if j >= run else byte & 15


def _of_32(block: bytes, format: str, i: int) -> float:
    if format == "mxfp4":
        return math.nan if block[0] == 255 else numbers("e2m1")[_nibble(block, 1, i, 16)] * 2.0 ** (block[0] - 127)
    d = _half(block, 0)
    if format == "q8_0":
        return d * _int8(block, 2 + i)
    m = _half(block, 2) if format.endswith("_1") else None
    at = 2 if m is None else 4
    if format.startswith("q4"):
        q = _nibble(block, at, i, 16)
        return d * q + m if m is not None else d * (q - 8)
    high = block[at + i // 8] >> i % 8 & 1
    q = _nibble(block, at + 4, i, 16) | high << 4
    return d * q + m if m is not None else d * (q - 16)


def _six_bits(packed: bytes, j: int) -> tuple[int, int]:
    """Scale and minimum j of 8, six bits each, in 12 bytes."""
    if j < 4:
        return packed[j] & 63, packed[j + 4] & 63
    return packed[j + 4] & 15 | packed[j - 4] >> 6 << 4, packed[j + 4] >> 4 | packed[j] >> 6 << 4


def _q2_k(block: bytes, i: int) -> float:
    half, j = divmod(i, 128)
    q = block[16 + 32 * half + j % 32] >> 2 * (j // 32) & 3
    scale = block[i // 16]
    return _half(block, 80) * (scale & 15) * q - _half(block, 82) * (scale >> 4)


def _q3_k(block: bytes, i: int) -> float:
    half, j = divmod(i, 128)
    q = block[32 + 32 * half + j % 32] >> 2 * (j // 32) & 3
    q |= (block[i % 32] >> (i // 32) & 1) << 2
    packed, g = block[96:108], i // 16
    low = packed[g] & 15 if g < 8 else packed[g - 8] >> 4
    scale = low | (packed[8 + g % 4] >> 2 * (g // 4) & 3) << 4
    return _half(block, 108) * (scale - 32) * (q - 4)


def _q4_k(block: bytes, i: int) -> float:
    scale, least = _six_bits(block[4:16], i // 32)
    return _half(block, 0) * scale * _nibble(block, 16, i, 32) - _half(block, 2) * least


def _q5_k(block: bytes, i: int) -> float:
    scale, least = _six_bits(block[4:16], i // 32)
    q = _nibble(block, 48, i, 32) | (block[16 + i % 32] >> (i // 32) & 1) << 4
    return _half(block, 0) * scale * q - _half(block, 2) * least


def _q6_k(block: bytes, i: int) -> float:
    half, j = divmod(i, 128)
    low = block[64 * half + j % 64] >> (4 if j >= 64 else 0) & 15
    high = block[128 + 32 * half + j % 32] >> 2 * (j // 32) & 3
    return _half(block, 208) * _int8(block, 192 + i // 16) * ((low | high << 4) - 32)


_OF_256 = {"q2_k": (84, _q2_k), "q3_k": (110, _q3_k), "q4_k": (144, _q4_k), "q5_k": (176, _q5_k), "q6_k": (210, _q6_k)}
_BYTES_OF_32 = {"q8_0": 34, "q4_0": 18, "q4_1": 20, "q5_0": 22, "q5_1": 24, "mxfp4": 17}


def dequantize(blocks: Array, format: str) -> Array:
    size = _BYTES_OF_32[format] if format in _BYTES_OF_32 else _OF_256[format][0]
    rows = []
    for row in np.asarray(blocks, np.uint8):
        parts = [row[at : at + size].tobytes() for at in range(0, len(row), size)]
        if format in _OF_256:
            rows.append([_OF_256[format][1](part, i) for part in parts for i in range(256)])
        else:
            rows.append([_of_32(part, format, i) for part in parts for i in range(32)])
    return np.array(rows)


def quantize_int8(x: Array) -> tuple[Array, Array]:
    codes, scales = [], []
    for row in x:
        largest = [np.float32(np.abs(row[b : b + 32]).max()) for b in range(0, len(row), 32)]
        scales.append([float(value / np.float32(127)) for value in largest])
        codes.append([round(value / s) if (s := scales[-1][i // 32]) else 0 for i, value in enumerate(row.tolist())])
    return np.array(codes), np.array(scales)


def linear_int8(x: Array, blocks: Array, format: str) -> Array:
    codes, scales = quantize_int8(x)
    return codes * np.repeat(scales, 32, axis=1) @ dequantize(blocks, format).T
