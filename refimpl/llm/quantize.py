"""Quantised weights: how they are read, and multiplied with int8 activations."""

import numpy as np

from refimpl.blocks import FORMATS, LAYOUTS, read_codes, read_scales
from refimpl.contract import Array, Float, Int, UInt8, op, require, widen

__all__ = ["dequantize", "linear_int8", "quantize_int8"]


def _unpack(blocks: Array, format: str) -> tuple[Array, Array, Array | None]:
    """Read q, d and m by group: q int8 [O, groups, elements of a group], d and m float32 [O, groups]."""
    require(format in FORMATS, "C1", f"block formats are {', '.join(FORMATS)}, got {format!r}")
    size = FORMATS[format].bytes
    require(blocks.ndim == 2 and blocks.dtype == np.uint8, "C2", f"rows of bytes, got {blocks.dtype} {blocks.shape}")
    row_bytes = blocks.shape[1]
    require(row_bytes % size == 0, "C2", f"a row of {format} is a multiple of {size} bytes, got {row_bytes}")
    block = np.ascontiguousarray(blocks).view(LAYOUTS[format])
    with np.errstate(invalid="ignore"):  # a damaged file may hold an infinite scale: 0 inf is NaN, without a warning
        d, m = read_scales(block, format)
    rows, count, groups = d.shape
    q = read_codes(block, format).reshape(rows, count * groups, FORMATS[format].elements // groups)
    return q, d.reshape(rows, count * groups), None if m is None else m.reshape(rows, count * groups)


@op
def dequantize(blocks: UInt8[Array, "O row_bytes"], format: str) -> Float[Array, "O D"]:
    """Turn rows of quantised blocks into float32.

    Math: w = d q + m, without the addition where the format has no m.
    Cost: 2 O D flop; reads O row_bytes (2.6 to 8.5 bits an element), writes 4 O D. Memory is the bottleneck.
    Numerics: d and m are float16 widened to float32, times an integer scale in the _k formats (rounded once);
        product and sum are rounded once each. What is not finite in the file is not finite in the result. In mxfp4
        all is exact; a scale of 255 is NaN, as in the OCP standard (ggml takes it for 2^128), and -0 is 0.
    Constraints:
        (C1) format is in FORMATS.
        (C2) blocks are rows of bytes, row_bytes a multiple of the bytes of a block.
    Source: ggml-quants.c (dequantize_row_*), github.com/ggml-org/ggml; OCP Microscaling Formats (MX) specification 1.0,
        2023.

    >>> row = np.frombuffer(np.float16([0.5, -1]).tobytes() + bytes([0x21] * 16), np.uint8)   # q4_1: d, m, codes
    >>> dequantize(row[None], "q4_1")[0, [0, 15, 16, 31]]
    array([-0.5, -0.5,  0. ,  0. ], dtype=float32)
    """
    q, d, m = _unpack(blocks, format)
    with np.errstate(invalid="ignore", over="ignore"):
        w = d[..., None] * q
        if m is not None:
            w += m[..., None]
    return w.reshape(len(w), w.shape[1] * w.shape[2])


@op
def quantize_int8(x: Float[Array, "T D"]) -> tuple[Int[Array, "T D"], Float[Array, "T B"]]:
    """Round activations to int8, with one scale for every 32 neighbours.

    Math: scale = max |x| / 127 over the block;  q = round half even(x / scale).
    Cost: 3 T D flop; reads T D, writes T D bytes and T D / 32 scales.
    Numerics: float32 (float64 stays). A block whose scale rounds to 0 has q = 0; q is clipped to 127, which only a
        subnormal scale can exceed.
    Constraints:
        (C1) x is rows, their width D a multiple of 32.
        (C2) x is finite.
    Source: the q8_0 quantisation of ggml-quants.c, with a float32 scale and ties to even.

    >>> q, scale = quantize_int8(np.float32([[127, -63.5, 0.5, 1.5] + [0] * 28]))
    >>> q[0, :4], scale
    (array([127, -64,   0,   2], dtype=int8), array([[1.]], dtype=float32))
    """
    x_TD = widen(x)
    require(x_TD.ndim == 2, "C1", f"activations are rows, got shape {x_TD.shape}")
    tokens, width = x_TD.shape
    require(width % 32 == 0, "C1", f"a row is blocks of 32 elements, got {width}")
    require(bool(np.isfinite(x_TD).all()), "C2", "activations are finite")
    x_TBI = x_TD.reshape(tokens, width // 32, 32)
    scale_TB = np.abs(x_TBI).max(axis=-1) / x_TD.dtype.type(127)
    divisor_TB = np.where(scale_TB > 0, scale_TB, np.inf)
    q_TBI = np.clip(np.rint(x_TBI / divisor_TB[..., None]), -127, 127)
    return q_TBI.reshape(tokens, width).astype(np.int8), scale_TB


@op
def linear_int8(
    x: Float[Array, "T D"], blocks: UInt8[Array, "O row_bytes"], format: str
) -> Float[Array, "T O"]:
    """Apply quantised weights to activations rounded to int8: the arithmetic of ``--activations int8``.

    Math: y[t,o] = sum over blocks b in order of  dx[t,b] (d[o,b] sum_i q[o,b,i] qx[t,b,i] + m[o,b] sum_i qx[t,b,i]).
    Cost: 2 T O D integer operations and 6 T O D / 32 flop; for few tokens the bytes of the weights are the bottleneck.
    Numerics: both inner sums are exact integers; each product and sum around them is rounded once to float32
        (no fused multiply-add), blocks added from left to right, so the result is one definite bit pattern.
    Constraints:
        (C1) format has blocks of 32 elements: q8_0, q4_0, q4_1, q5_0, q5_1, mxfp4.
        (C2) blocks are rows of bytes, row_bytes a multiple of the bytes of a block.
        (C3) x is as wide as the weights; beyond that, x is what quantize_int8 takes.
    Source: ggml_vec_dot_q4_1_q8_1 and its kin in ggml-cpu/quants.c.

    >>> row = np.frombuffer(np.float16([0.5]).tobytes() + bytes([0x98] * 16), np.uint8)   # q4_0: 16 zeros, 16 times 0.5
    >>> linear_int8(np.ones((1, 32), np.float32), row[None], "q4_0")
    array([[8.]], dtype=float32)
    """
    narrow = [known for known, form in FORMATS.items() if form.elements == 32]
    require(format in narrow, "C1", f"int8 activations need one of {', '.join(narrow)}, got {format!r}")
    q_OBI, d_OB, m_OB = _unpack(blocks, format)
    width = d_OB.shape[1] * 32
    require(x.shape[1:] == (width,), "C3", f"x is rows as wide as the weights, {width}, got shape {x.shape}")
    q_TD, dx_TB = quantize_int8(x)
    q_TBI = q_TD.reshape(*dx_TB.shape, 32).astype(np.int32)
    y_TO = np.zeros((len(x), len(blocks)), dx_TB.dtype)
    with np.errstate(invalid="ignore", over="ignore"):
        for b in range(d_OB.shape[1]):
            dots_TO = q_TBI[:, b] @ q_OBI[:, b].astype(np.int32).T
            term_TO = d_OB[:, b] * dots_TO.astype(y_TO.dtype)
            if m_OB is not None:
                sums_T = q_TBI[:, b].sum(axis=-1)
                term_TO = term_TO + m_OB[:, b] * sums_T[:, None].astype(y_TO.dtype)
            y_TO += dx_TB[:, b, None] * term_TO
    return y_TO.astype(x.dtype)
