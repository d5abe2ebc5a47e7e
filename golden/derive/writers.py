"""Weights into blocks, number by number in float32: the scales of 32 by their ends, those of groups by search."""

import numpy as np

from golden.bits import (
    SIGNED,
    TOPS,
    bytes_of_32,
    bytes_of_256,
    bytes_of_mxfp4,
    codes_of_32,
    nearest_of_mxfp4,
    rows_of_blocks,
)  # fmt: skip
from golden.values import Array

__all__ = ["quantize"]

_F = np.float32


def quantize(w: Array, format: str) -> Array:
    if format == "mxfp4":
        return rows_of_blocks(w, 32, lambda part: bytes_of_mxfp4(part, nearest_of_mxfp4))
    if format not in TOPS:
        return rows_of_blocks(w, 32, lambda part: bytes_of_32(*codes_of_32(part, format), format))
    with np.errstate(all="ignore"):
        return rows_of_blocks(w, 256, lambda part: bytes_of_256(part + 0.0, format, _search))


def _search(group: Array, format: str) -> tuple[np.float32, np.float32, list[int]]:
    """Return scale, minimum and codes of a group."""
    if format not in SIGNED:
        return _line(list(group), format)
    most = TOPS[format][1]
    peak = max(group, key=abs)
    if abs(peak) < _F(1e-15):
        return _F(0), _F(0), [-most] * len(group)
    d, codes = (_moved if format == "q3_k" else _tried)(list(group), peak, most)
    return d, _F(0), codes


def _round(x: np.float32, least: int, most: int) -> int:
    return min(max(int(np.rint(x)), least), most)


def _sums(group: list[np.float32], codes: list[int]) -> tuple[np.float32, np.float32]:
    """Return the sums of w x q and w q q, w = x x, in order."""
    xq, qq = _F(0), _F(0)
    for x, code in zip(group, codes, strict=True):
        xq, qq = xq + x * x * x * _F(code), qq + x * x * _F(code) * _F(code)
    return xq, qq


def _tried(group: list[np.float32], peak: np.float32, most: int) -> tuple[np.float32, list[int]]:
    """Try 19 scales around that of the largest weight; the error falls as xq xq / qq grows."""
    best, kept, gain = _F(0), [-most] * len(group), _F(0)
    for i in [0, *range(-9, 0), *range(1, 10)]:
        inverse = -(_F(most) + _F(0.1) * _F(i)) / peak
        codes = [_round(inverse * x, -most, most - 1) for x in group]
        xq, qq = _sums(group, codes)
        if qq > 0 and (i == 0 or xq * xq > gain * qq):
            best, kept, gain = xq / qq, codes, xq / qq * xq
    return best, kept


def _moved(group: list[np.float32], peak: np.float32, most: int) -> tuple[np.float32, list[int]]:
    """Move one code after the other to where the scale of the others has it, where the error falls; five rounds."""
    codes = [_round(_F(-most) / peak * x, -most, most - 1) for x in group]
    xq, qq = _sums(group, codes)
    for _ in range(5):
        for i, x in enumerate(group):
            w, old = x * x, _F(codes[i])
            rest_xq, rest_qq = xq - w * x * old, qq - w * old * old
            if rest_xq > 0:
                code = _round(x * rest_qq / rest_xq, -most, most - 1)
                new_xq, new_qq = rest_xq + w * x * _F(code), rest_qq + w * _F(code) * _F(code)
                if code != codes[i] and new_qq > 0 and new_xq * new_xq * qq > xq * xq * new_qq:
                    codes[i], xq, qq = code, new_xq, new_qq
    return (xq / qq, codes) if qq > 0 else (_F(0), [-most] * len(group))


def _line(group: list[np.float32], format: str) -> tuple[np.float32, np.float32, list[int]]:
    """Fit lines through (code, weight) for several roundings to codes; keep the one whose weighted error is least."""
    most, first, steps = TOPS[format][1], -1.0 if format == "q4_k" else -0.5, 20 if format == "q4_k" else 15
    square = _F(0)
    for x in group:
        square = square + x * x
    rms = _F(0) if format == "q2_k" else np.sqrt(square / _F(32))
    weights, top, m = [rms + abs(x) for x in group], max(group), min([_F(0), *group])
    w, wx = _F(0), _F(0)
    for weight, x in zip(weights, group, strict=True):
        w, wx = w + weight, wx + weight * x
    if top - m < 2.0**-100:
        return _F(0), m, [0] * len(group)
    d, kept, least = _F(0), [0] * len(group), _F(np.inf)
    for i in range(-1, steps + 1):
        beyond = _F(first) + _F(0.1) * _F(i) if i >= 0 else _F(0)
        inverse = (beyond + _F(most)) / (top - m)
        codes = [_round(inverse * (x - m), 0, most) for x in group]
        new_d, new_m, is_line = _through(group, weights, codes, w, wx) if i >= 0 else (_F(1) / inverse, m, True)
        off = _F(0)
        for weight, x, code in zip(weights, group, codes, strict=True):
            distance = abs(new_d * _F(code) + new_m - x)
            off = off + weight * (distance if format == "q2_k" else distance * distance)
        if i < 0 or (is_line and off < least):
            d, m, kept, least = new_d, new_m, codes, off
    return d, m, kept


def _through(
    group: list[np.float32], weights: list[np.float32], codes: list[int], w: np.float32, wx: np.float32
) -> tuple[np.float32, np.float32, bool]:
    """Return the line of least weighted squares, its minimum not above 0, and whether there is one."""
    wq, wqq, wxq = _F(0), _F(0), _F(0)
    for weight, x, code in zip(weights, group, codes, strict=True):
        part = weight * _F(code)
        wq, wqq, wxq = wq + part, wqq + part * _F(code), wxq + part * x
    spread = w * wqq - wq * wq
    if not spread > 0:
        return _F(0), _F(0), False
    d, m = (w * wxq - wx * wq) / spread, (wqq * wx - wq * wxq) / spread
    return (wxq / wqq, _F(0), True) if m > 0 else (d, m, True)
