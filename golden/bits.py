"""Numbers of few bits, one by one, and where each code and scale lies in a block: what derivations and faults share."""

import math
import struct
from collections.abc import Callable
from functools import cache
from typing import TypeAlias

import numpy as np

from golden.values import Array

__all__ = [
    "FLOATS", "INTEGERS", "SIGNED", "TOPS", "Search", "bytes_of_256", "bytes_of_32", "bytes_of_mxfp4", "codes_of_32",
    "largest", "nearest", "nearest_of_mxfp4", "numbers", "pack", "rows_of_blocks", "unpack",
]  # fmt: skip

Search: TypeAlias = Callable[[Array, str], tuple[np.float32, np.float32, list[int]]]

FLOATS = {"e4m3": (4, 3), "e5m2": (5, 2), "e2m1": (2, 1)}
INTEGERS = {
    "int2": (-2, 1), "uint2": (0, 3), "int4": (-8, 7), "uint4": (0, 15), "int8": (-128, 127), "uint8": (0, 255),
    "int16": (-32768, 32767), "uint16": (0, 65535),
}  # fmt: skip
_LARGEST = {"q4_0": 8, "q4_1": 15, "q5_0": 16, "q5_1": 31, "q8_0": 127}
_BYTES = {"q2_k": 84, "q3_k": 110, "q4_k": 144, "q5_k": 176, "q6_k": 210}
TOPS = {"q2_k": (16, 3, 15), "q3_k": (16, 4, 32), "q4_k": (32, 15, 63), "q5_k": (32, 31, 63), "q6_k": (16, 32, 128)}
SIGNED = ("q3_k", "q6_k")
_D_AT = {"q2_k": 80, "q3_k": 108, "q4_k": 0, "q5_k": 0, "q6_k": 208}


@cache
def numbers(format: str) -> tuple[float, ...]:
    """Return the number of every code."""
    exponents, mantissas = FLOATS[format]
    found = []
    for code in range(2 ** (1 + exponents + mantissas)):
        sign, size = divmod(code, 2 ** (exponents + mantissas))
        exponent, mantissa = divmod(size, 2**mantissas)
        bias = 2 ** (exponents - 1) - 1
        whole = mantissa / 2**mantissas + (exponent > 0)
        number = whole * 2.0 ** (max(exponent, 1) - bias)
        if format == "e4m3" and size == 127:
            number = math.nan
        if format == "e5m2" and exponent == 31:
            number = math.nan if mantissa else math.inf
        found.append(-number if sign else number)
    return tuple(found)


def nearest(x: float, format: str) -> int:
    """Return the code of the nearest number, of two the even one; beyond the last, the last."""
    if math.isnan(x):
        sign = 128 if math.copysign(1, x) < 0 else 0
        return {"e4m3": 127 + sign, "e5m2": 126 + sign, "e2m1": 0}[format]
    codes = [code for code, number in enumerate(numbers(format)) if math.isfinite(number)]
    codes = [code for code in codes if math.copysign(1, numbers(format)[code]) == math.copysign(1, x)]
    largest = max(abs(numbers(format)[code]) for code in codes)
    x = math.copysign(min(abs(x), largest), x)
    return min(codes, key=lambda code: (abs(numbers(format)[code] - x), code % 2))


def largest(format: str) -> float:
    """Return the largest number of a format."""
    return float(max(n for n in numbers(format) if math.isfinite(n)) if format in FLOATS else INTEGERS[format][1])


def pack(codes: list[int], run: int) -> list[int]:
    """Put codes of four bits into bytes: ``run`` of them low, the next ``run`` high."""
    packed = []
    for at in range(0, len(codes), 2 * run):
        packed += [codes[at + i] | codes[at + run + i] << 4 for i in range(run)]
    return packed


def unpack(packed: Array, run: int) -> list[int]:
    """Return the codes of bytes."""
    codes: list[int] = []
    for at in range(0, len(packed), run):
        some = [int(byte) for byte in packed[at : at + run]]
        codes += [byte & 15 for byte in some] + [byte >> 4 for byte in some]
    return codes


def _half(number: float) -> bytes:
    return struct.pack("<e", number)


def codes_of_32(
    w: Array, format: str, *, rounded_scale: bool = False, half: float = 0.5
) -> tuple[float, float, list[int]]:
    """Return d, m and the codes of a block, a code by adding a half and cutting off."""
    w, most = [np.float32(value) for value in w], _LARGEST[format]
    m = min(w) if format.endswith("_1") else np.float32(0)
    if format.endswith("_1"):
        d = (max(w) - m) / np.float32(most)
    else:
        peak = max(w, key=abs)
        d = abs(peak) / np.float32(most) if format == "q8_0" else peak / np.float32(-most)
    step = np.float32(np.float16(d)) if rounded_scale else d
    inverse, codes = np.float32(1) / step if abs(step) >= 2.0**-126 else np.float32(0), []
    for value in w:
        ratio = (value - m) * inverse
        if format == "q8_0":
            codes.append(int(np.copysign(np.floor(abs(float(ratio)) + half), ratio)))
        elif format.endswith("_1"):
            codes.append(min(int(ratio + np.float32(half)), most))
        else:
            codes.append(min(int(ratio + np.float32(most + half)), 2 * most - 1))
    return float(d), float(m), codes


def bytes_of_32(d: float, m: float, codes: list[int], format: str, apart: int = 16) -> bytes:
    """Return a block: elements i and i + 16 share a byte."""
    if format == "q8_0":
        return _half(d) + struct.pack("32b", *codes)
    head = _half(d) + (_half(m) if format.endswith("_1") else b"")
    if format.startswith("q5"):
        head += sum((code >> 4) << i for i, code in enumerate(codes)).to_bytes(4, "little")
    pairs = [(i, i + 16) for i in range(16)] if apart == 16 else [(2 * i, 2 * i + 1) for i in range(16)]
    return head + bytes(codes[low] & 15 | (codes[high] & 15) << 4 for low, high in pairs)


def nearest_of_mxfp4(x: float) -> int:
    """Return the code of the nearest float of four bits, of two the first: ties go towards 0, and 0 has no sign."""
    return min(range(16), key=lambda code: (abs(numbers("e2m1")[code] - x), code))


def bytes_of_mxfp4(w: Array, code: Callable[[float], int]) -> bytes:
    """Return a block: the exponent of the largest, less that of 4, then codes in units of that power."""
    largest_ = float(max(abs(w)))
    exponent = max(math.frexp(largest_)[1] - 1 - 2, -127) if largest_ else -127
    return bytes([exponent + 127, *pack([code(math.ldexp(float(x), -exponent)) for x in w], 16)])


def rows_of_blocks(w: Array, size: int, write: Callable[[Array], bytes]) -> Array:
    """Return rows of bytes, block by block."""
    wide = np.asarray(w, np.float64)
    rows = [b"".join(write(row[at : at + size]) for at in range(0, len(row), size)) for row in wide]
    return np.array([list(row) for row in rows], np.int64)


def _fields(format: str, i: int) -> list[tuple[int, int, int]]:
    """Return where the bits of code i lie, the lowest first: byte, shift, bits."""
    half, j = divmod(i, 128)
    two = (32 * half + j % 32, 2 * (j // 32), 2)
    if format == "q2_k":
        return [(16 + two[0], two[1], 2)]
    if format == "q3_k":
        return [(32 + two[0], two[1], 2), (i % 32, i // 32, 1)]
    if format == "q6_k":
        return [(64 * half + j % 64, 4 * (j // 64), 4), (128 + two[0], two[1], 2)]
    four = (i // 64 * 32 + i % 32, 4 * (i // 32 % 2), 4)
    if format == "q4_k":
        return [(16 + four[0], four[1], 4)]
    return [(48 + four[0], four[1], 4), (16 + i % 32, i // 32, 1)]


def _scale_fields(format: str, g: int) -> list[list[tuple[int, int, int]]]:
    """Return where the bits of scale g lie, and those of its minimum."""
    if format == "q2_k":
        return [[(g, 0, 4)], [(g, 4, 4)]]
    if format == "q3_k":
        return [[(96 + g % 8, 4 * (g // 8), 4), (104 + g % 4, 2 * (g // 4), 2)]]
    if format == "q6_k":
        return [[(192 + g, 0, 8)]]
    if g < 4:
        return [[(4 + g, 0, 6)], [(8 + g, 0, 6)]]
    return [[(8 + g, 0, 4), (g, 6, 2)], [(8 + g, 4, 4), (4 + g, 6, 2)]]


def _put(block: bytearray, fields: list[tuple[int, int, int]], number: int) -> None:
    for byte, shift, bits in fields:
        block[byte] |= (number & 2**bits - 1) << shift
        number >>= bits


def _whole(numbers_: list[np.float32], top: int) -> tuple[list[int], np.float32]:
    """Return scales as whole numbers up to ``top``, and their unit."""
    largest_, unit = max([np.float32(0), *numbers_]), np.float32(0)
    ratio = np.float32(top) / largest_ if largest_ >= 2.0**-126 else np.float32(0)
    unit = largest_ / np.float32(top)
    return [min(max(int(np.rint(ratio * number)), 0), top) for number in numbers_], unit


def _whole_signed(numbers_: list[np.float32], top: int, nothing: int) -> tuple[list[int], np.float32]:
    """Return scales as whole numbers, that of the largest magnitude the least, and their unit."""
    peak = max(numbers_, key=abs)
    if abs(peak) < np.float32(1e-15):
        return [nothing] * len(numbers_), np.float32(0)
    ratio = np.float32(-top) / peak
    return [min(max(int(np.rint(ratio * number)), -top), top - 1) for number in numbers_], np.float32(1) / ratio


def bytes_of_256(w: Array, format: str, search: Search) -> bytes:
    """Return a block: ``search`` gives scale, minimum and codes of a group; then scales are rounded, and codes anew."""
    size, most, top = TOPS[format]
    groups, block, is_signed = w.astype(np.float32).reshape(-1, size), bytearray(_BYTES[format]), format in SIGNED
    found = [search(group, format) for group in groups]
    scales, minima = [d for d, _, _ in found], [-m for _, m, _ in found]
    if is_signed:
        whole, unit = _whole_signed(scales, top, -32 if format == "q3_k" else 0)
        least, unit_m = [0] * len(groups), np.float32(0)
    else:
        (whole, unit), (least, unit_m) = _whole(scales, top), _whole(minima, top)
    stored, stored_m = np.float32(np.float16(unit)), np.float32(np.float16(unit_m))
    for g, group in enumerate(groups):
        step, offset = stored * np.float32(whole[g]), stored_m * np.float32(least[g])
        numbers_ = [whole[g] + (32 if format == "q3_k" else 0), least[g]]
        for fields, number in zip(_scale_fields(format, g), numbers_, strict=False):
            _put(block, fields, number)
        for i, value in enumerate(group):
            code = int(np.rint((value + offset) / step)) if step else found[g][2][i]
            code = min(max(code, -most), most - 1) + most if is_signed else min(max(code, 0), most)
            _put(block, _fields(format, size * g + i), code)
    block[_D_AT[format] : _D_AT[format] + 2] = _half(float(unit))
    if not is_signed:
        block[_D_AT[format] + 2 : _D_AT[format] + 4] = _half(float(unit_m))
    return bytes(block)
