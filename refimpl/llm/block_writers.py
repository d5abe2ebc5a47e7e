"""Weights rounded into blocks, to the bytes that ggml writes.

Formats of 32 elements take scale and minimum from the ends of a block. Those of 256 search them, group by group, for
the least error: each trial is a rounding of the group to codes, and the line through (code, weight) that fits them
best. Then the groups' scales are rounded in their turn, and the codes taken anew.
"""

import numpy as np

from refimpl.blocks import FORMATS, LAYOUTS, read_scales, write_codes, write_scales
from refimpl.contract import Array, Float, UInt8, op, require, widen

__all__ = ["quantize"]

_LARGEST = {"q8_0": 127, "q4_0": 8, "q4_1": 15, "q5_0": 16, "q5_1": 31}

# elements of a group, the largest code, the largest whole number of a scale: where these have a sign, as above but for
# q8_0, that is the magnitude of the least, and the largest is one less
_GROUPS = {
    "q2_k": (16, 3, 15), "q3_k": (16, 4, 32), "q4_k": (32, 15, 63), "q5_k": (32, 31, 63), "q6_k": (16, 32, 128),
}  # fmt: skip

# how far beyond the largest code the first trial puts the largest weight, and how often 0.1 is added to that
_LINES = {"q2_k": (-0.5, 15), "q4_k": (-1.0, 20), "q5_k": (-0.5, 15)}

def _sum(terms: Array) -> Array:
    return np.cumsum(terms, axis=-1)[..., -1:]  # from left to right, as ggml adds


def _peak(x: Array) -> Array:
    """Return the number of the largest magnitude, the first of several."""
    return np.take_along_axis(x, np.abs(x).argmax(-1, keepdims=True), -1)


def _over(x: float, divisor: Array) -> Array:
    """Divide; by 0, and by what is too small for an inverse, to 0."""
    return np.where(np.abs(divisor) < np.finfo(np.float32).tiny, 0, x / divisor)


def _round(x: Array, largest: int) -> Array:
    return np.clip(np.rint(x), -largest, largest - 1)


def _fit(x: Array, q: Array) -> tuple[Array, Array]:
    """Return the sums of w x q and of w q q, w = x x, whose quotient is the best scale of codes."""
    return _sum(x * x * x * q), _sum(x * x * q * q)


def _keep(better: Array, new: tuple[Array, ...], old: tuple[Array, ...]) -> tuple[Array, ...]:
    return tuple(np.where(better, *pair) for pair in zip(new, old, strict=True))


def _scale_by_trial(x: Array, largest: int) -> tuple[Array, ...]:
    """Return scale and codes of groups: of 19 roundings, the one whose line leaves the least error."""
    number, best = x.dtype.type, (np.zeros_like(x[..., :1]), np.full_like(x, -largest), np.zeros_like(x[..., :1]))
    for i in (0, *range(-9, 0), *range(1, 10)):
        q = _round(-(largest + number(0.1) * number(i)) / _peak(x) * x, largest)
        xq, qq = _fit(x, q)
        better = (np.abs(_peak(x)) >= 1e-15) & (qq > 0) & ((i == 0) | (xq * xq > best[2] * qq))
        best = _keep(better, (xq / qq, q, xq / qq * xq), best)
    return best[:2]


def _scale_by_descent(x: Array, largest: int) -> tuple[Array, ...]:
    """Return scale and codes of groups: five times over, each code moves to where the line of all others has it.

    As in ggml none moves where that line falls: where the largest weight is positive, and so the scale negative.
    """
    q = _round(-largest / _peak(x) * x, largest)
    xq, qq = _fit(x, q)
    for i in list(range(x.shape[-1])) * 5:
        at = x[..., i : i + 1], q[..., i : i + 1]
        others = xq - _fit(*at)[0], qq - _fit(*at)[1]
        code = _round(at[0] * others[1] / others[0], largest)
        new = others[0] + _fit(at[0], code)[0], others[1] + _fit(at[0], code)[1]
        better = (others[0] > 0) & (code != at[1]) & (new[1] > 0) & (new[0] * new[0] * qq > xq * xq * new[1])
        q[..., i : i + 1], xq, qq = _keep(better, (code, *new), (at[1], xq, qq))
    return _keep((np.abs(_peak(x)) >= 1e-15) & (qq > 0), (xq / qq, q), (np.zeros_like(xq), np.full_like(q, -largest)))


def _scale_and_minimum(x: Array, format: str) -> tuple[Array, ...]:
    """Return scale, minimum (0 or less) and codes of groups: the best of several roundings and their lines."""
    largest, (first, steps), is_plain, number = _GROUPS[format][1], _LINES[format], format == "q2_k", x.dtype.type
    weight = np.abs(x) + (0 if is_plain else np.sqrt(_sum(x * x) / 32))
    most, m = x.max(-1, keepdims=True), np.minimum(x.min(-1, keepdims=True), 0)
    w, wx, flat = _sum(weight), _sum(weight * x), most - m < 2.0**-100
    best: tuple[Array, ...] = np.zeros_like(m), m, np.zeros_like(x), np.zeros_like(m)
    for i in range(-1, steps + 1):
        m, beyond = best[1], number(first) + number(0.1) * number(i) if i >= 0 else 0
        q = np.clip(np.rint((beyond + largest) / (most - m) * (x - m)), 0, largest)
        wq, wqq, wxq = _sum(weight * q), _sum(weight * q * q), _sum(weight * q * x)
        spread = w * wqq - wq * wq
        line = (w * wxq - wx * wq) / spread, (wqq * wx - wq * wxq) / spread
        line = np.where(line[1] > 0, wxq / wqq, line[0]), np.minimum(line[1], 0)
        if i < 0:  # from end to end
            line = 1 / (largest / (most - m)), m
        off = np.abs(line[0] * q + line[1] - x)
        error = _sum(weight * (off if is_plain else off * off))
        best = _keep(~flat & ((i < 0) | (spread > 0) & (error < best[3])), (*line, q, error), best)
    return best[:3]


def _write_mxfp4(block: Array, x: Array) -> None:
    """Round blocks to floats of four bits: the largest has the largest exponent, ties go towards 0."""
    largest = np.abs(x).max(-1)
    exponent = np.frexp(largest)[1] - 1 - 2  # floor(log2) less the largest exponent of e2m1
    block["exponent"] = np.where(largest > 0, np.clip(exponent + 127, 0, 254), 0)
    ratio = np.abs(x) / read_scales(block, "mxfp4")[0]
    steps, sizes = x.dtype.type([0.5, 1.5, 2.5, 3.5, 5, 7, 10]), np.array([0, 1, 2, 3, 4, 6, 8, 12])
    write_codes(block, "mxfp4", np.where(x < 0, -1, 1) * sizes[np.searchsorted(steps, ratio)])


def _write_32(block: Array, x: Array, format: str) -> None:
    """Round blocks whose scale, and minimum, are those of their ends."""
    largest, m = _LARGEST[format], x.min(-1, keepdims=True)
    if format == "q8_0":
        d = np.abs(_peak(x)) / largest
        ratio = x * _over(1, d)
        q = np.copysign(np.floor(np.abs(ratio) + np.float64(0.5)), ratio)  # ties away from 0
    elif format.endswith("_0"):
        d = _peak(x) / -largest
        q = np.minimum(np.trunc(x * _over(1, d) + (largest + 0.5)) - largest, largest - 1)
    else:
        d, block["m"] = (x.max(-1, keepdims=True) - m) / largest, m[..., 0]
        q = np.minimum(np.trunc((x - m) * _over(1, d) + 0.5), largest)
    block["d"] = d[..., 0]
    write_codes(block, format, q)


def _whole(scales: Array, most: int) -> tuple[Array, Array]:
    """Return the groups' scales as whole numbers up to ``most``, and what they multiply."""
    largest = np.maximum(scales.max(-1, keepdims=True), 0)
    return np.clip(np.rint(_over(most, largest) * scales), 0, most), largest[..., 0] / most


def _write_256(block: Array, x: Array, format: str) -> None:
    """Round blocks whose groups have scales of their own, and round those."""
    size, largest, most = _GROUPS[format]
    x = x.reshape(*x.shape[:-1], 256 // size, size)
    if format in _LINES:
        d, m, q = _scale_and_minimum(x, format)
        (scale, block["d"]), (least, block["m"]) = _whole(d[..., 0], most), _whole(-m[..., 0], most)
        x = x + block["m"].astype(x.dtype)[..., None, None] * least[..., None]
    else:
        d, q = (_scale_by_descent if format == "q3_k" else _scale_by_trial)(x, largest)
        inverse, nothing = -most / _peak(d[..., 0]), np.abs(_peak(d[..., 0])) < 1e-15
        scale = least = np.where(nothing, -32 if format == "q3_k" else 0, _round(inverse * d[..., 0], most))
        block["d"] = _over(1, inverse)[..., 0] + 0
    step = block["d"].astype(x.dtype)[..., None, None] * scale[..., None]
    codes = np.clip(np.rint(x / step), 0, largest) if format in _LINES else _round(x / step, largest)
    write_scales(block, format, scale.astype(np.int8), least.astype(np.int8))
    write_codes(block, format, np.where(step == 0, q, codes).reshape(*x.shape[:-2], 256))


@op
def quantize(w: Float[Array, "O D"], format: str) -> UInt8[Array, "O row_bytes"]:
    """Round weights into rows of quantised blocks, as ``dequantize`` reads them.

    Math: w ~ d q + m.  q8_0: d = max |w| / 127;  q4_0, q5_0: d = -(the w of max |w|) / 8, 16;  q4_1, q5_1: m = min w,
        d = (max w - min w) / 15, 31;  q = round((w - m) / d). With _k, d and m of a group of 16 or 32 are those of the
        least error among several roundings: weighted by w^2 for q3_k and q6_k, by |w| for q2_k (|error|), by
        |w| + rms(w) for q4_k and q5_k; then d and m become whole numbers of 4 to 8 bits times a float16.
        mxfp4: d = 2^(floor(log2 max |w|) - 3), q the nearest of 0, 1, 2, 3, 4, 6, 8, 12, of two the smaller.
    Cost: 3 O D flop with 32 elements, about 200 O D with _k; reads O D, writes O row_bytes (2.6 to 8.5 bits an
        element).
    Numerics: float32, each operation rounded once, sums from left to right: the bytes of ggml. Scales are rounded to
        float16 after the codes were taken where a block has one scale, before where it has several. The logarithm of
        mxfp4 is exact here; in ggml it is rounded, which can double the d of a number just below a power of two.
    Constraints:
        (C1) format is in FORMATS.
        (C2) w is a matrix, its width D a multiple of the elements of a block.
        (C3) w is finite, and the scales fit float16.
    Source: quantize_row_*_ref and make_q*_quants of ggml-quants.c, github.com/ggml-org/ggml.

    >>> blocks = quantize(np.float32([[-8, 7, 3, -1] + [0] * 28]), "q4_0")    # d = 1, codes from -8 to 7
    >>> blocks[0, :6]
    array([  0,  60, 128, 143, 139, 135], dtype=uint8)
    """
    require(format in FORMATS, "C1", f"block formats are {', '.join(FORMATS)}, got {format!r}")
    elements, size = FORMATS[format]
    require(w.ndim == 2 and w.shape[1] % elements == 0, "C2", f"rows are blocks of {elements}, got shape {w.shape}")
    x = widen(w).reshape(len(w), w.shape[1] // elements, elements) + 0  # a 0 of either sign is 0
    block = np.zeros(x.shape[:2], LAYOUTS[format])
    with np.errstate(all="ignore"):
        if format == "mxfp4":
            _write_mxfp4(block, x)
        else:
            (_write_256 if format in _GROUPS else _write_32)(block, x, format)
    scales = [block[name] for name in ("d", "m") if name in (LAYOUTS[format].names or ())]
    require(bool(np.isfinite(w).all() and np.isfinite(scales).all()), "C3", f"w and its scales in {format} are finite")
    return block.view(np.uint8).reshape(len(w), w.shape[1] // elements * size)
