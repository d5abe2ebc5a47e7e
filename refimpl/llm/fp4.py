"""Weights in four bits as floats: MXFP4 and NVFP4, fp4 numbers (e2m1) in small blocks that share a scale."""

import numpy as np

from refimpl.blocks import pack_fields, unpack_fields
from refimpl.contract import Array, Float, UInt8, op, require, whole, widen
from refimpl.llm.narrow_floats import decode, encode

__all__ = ["dequantize_mxfp4", "dequantize_nvfp4", "quantize_mxfp4", "quantize_nvfp4"]


def _check(fits: bool, size: int, run: int, *seen: tuple[int, ...]) -> None:
    require(fits, "C1", f"rows are blocks of {size} elements, their bytes with a byte of scale each, got {seen}")
    require(whole("run", run) > 0 and size // 2 % run == 0, "C2", f"run divides {size // 2}, got {run}")


def _groups(x: Array, size: int, run: int) -> tuple[Array, Array]:
    """Return rows in groups of neighbours [O, B, size], and the largest magnitude of each."""
    _check(x.ndim == 2 and x.shape[-1] % size == 0, size, run, x.shape)
    x_OBI = widen(x).reshape(len(x), x.shape[1] // size, size)
    require(bool(np.isfinite(x_OBI).all()), "C3", "what is quantised is finite")
    return x_OBI, np.abs(x_OBI).max(axis=-1)


def _pack(x_OBI: Array, step: Array, run: int) -> Array:
    """Return groups in steps as bytes of two codes; a step of 0 gives codes 0."""
    with np.errstate(all="ignore"):
        codes = encode(np.where(step[..., None] == 0, 0, x_OBI / step[..., None]), "e2m1")
    return pack_fields(codes.reshape(len(codes), codes.shape[1] * codes.shape[2]), 4, int(run))


def _unpack(packed: Array, scale: Array, step: Array, size: int, run: int) -> Array:
    """Return the numbers of packed rows."""
    fits = packed.dtype == scale.dtype == np.uint8 and packed.ndim == 2
    fits = fits and scale.shape == (len(packed), packed.shape[1] * 2 / size)
    _check(fits, size, run, packed.shape, scale.shape)
    codes = unpack_fields(packed, 4, int(run)).view(np.uint8)
    return (decode(codes, "e2m1").reshape(*scale.shape, size) * step[..., None]).reshape(codes.shape)


@op
def quantize_mxfp4(x: Float[Array, "O D"], *, run: int = 1) -> tuple[UInt8[Array, "O row_bytes"], UInt8[Array, "O B"]]:
    """Round rows to MXFP4: fp4 numbers (e2m1), two a byte, and a power of two (e8m0) for each 32 (gpt-oss).

    Math: e = max(floor(log2 max |x|) - 2, -127) over the block;  q = e2m1(x / 2^e), ties to even;  scale = e + 127.
        ``run`` neighbours stand in the low halves of as many bytes, the next ``run`` in the high halves: 1 in gpt-oss,
        16 in GGUF.
    Cost: 4 O D flop; reads O D, writes 17/32 O D bytes: bound by memory.
    Numerics: scale and quotient are exact. Above 6 2^e numbers become 6 2^e, a loss of a quarter at most. ggml rounds
        ties towards 0.
    Constraints:
        (C1) x is a matrix, its width D a multiple of 32.
        (C2) run divides 16.
        (C3) x is finite.
    Source: OCP Microscaling Formats (MX) specification 1.0, 2023.

    >>> packed, scale = quantize_mxfp4(np.float32([[6, 1, -3] + [0] * 29]))
    >>> packed[0, :2], scale
    (array([39, 13], dtype=uint8), array([[127]], dtype=uint8))
    """
    x_OBI, largest = _groups(x, 32, run)
    exponent = np.frexp(largest)[1] - 1  # floor(log2), exactly
    scale = np.where(largest > 0, np.clip(exponent - 2 + 127, 0, 254), 0).astype(np.uint8)
    return _pack(x_OBI, decode(scale, "e8m0"), run), scale


@op
def dequantize_mxfp4(
    packed: UInt8[Array, "O row_bytes"], scale: UInt8[Array, "O B"], *, run: int = 1
) -> Float[Array, "O D"]:
    """Turn rows of MXFP4 into float32.

    Math: x = e2m1(q) 2^(scale - 127), two codes a byte as in quantize_mxfp4.
    Cost: 1 flop an element; reads 17/32 byte, writes 4: bound by memory.
    Numerics: exact, except below 2^-126. A scale of 255 is NaN.
    Constraints:
        (C1) packed is rows of bytes, scale a byte for each 16 of them.
        (C2) run divides 16.
    Source: OCP Microscaling Formats (MX) specification 1.0, 2023.

    >>> packed, scale = np.full((1, 16), 0x21, np.uint8), np.uint8([[128]])
    >>> dequantize_mxfp4(packed, scale)[0, :4], dequantize_mxfp4(packed, scale, run=16)[0, ::16]
    (array([1., 2., 1., 2.], dtype=float32), array([1., 2.], dtype=float32))
    """
    return _unpack(packed, scale, decode(scale, "e8m0"), 32, run)


@op
def quantize_nvfp4(
    x: Float[Array, "O D"], *, run: int = 1
) -> tuple[UInt8[Array, "O row_bytes"], UInt8[Array, "O B"], Float[Array, ""]]:
    """Round rows to NVFP4: fp4 numbers (e2m1), two a byte, an e4m3 scale for each 16, one float32 scale for all.

    Math: tensor = max |x| / (448 6) over all;  scale = e4m3(max |x| / (6 tensor)) over the block;
        q = e2m1(x / (scale tensor)).
    Cost: 5 O D flop; reads O D twice, writes 9/16 O D bytes: bound by memory.
    Numerics: float32, each operation rounded once (float64 stays). Where a scale is 0, so are the codes.
    Constraints:
        (C1) x is a matrix, its width D a multiple of 16.
        (C2) run divides 8: 1 as NVIDIA's tools store it, 8 in GGUF.
        (C3) x is finite.
    Source: NVIDIA, Pretraining large language models with NVFP4, 2025.

    >>> packed, scale, tensor = quantize_nvfp4(np.float32([[2688, 448] + [0] * 14, [-6, 3] + [0] * 14]))
    >>> scale.tolist(), tensor, dequantize_nvfp4(packed, scale, tensor)[:, :2].tolist()
    ([[126], [56]], array(1., dtype=float32), [[2688.0, 448.0], [-6.0, 3.0]])
    """
    x_OBI, largest = _groups(x, 16, run)
    tensor = np.asarray(largest.max(initial=0) / largest.dtype.type(448 * 6))
    with np.errstate(all="ignore"):
        scale = encode(np.where(tensor == 0, 0, largest / (6 * tensor)), "e4m3")
    return _pack(x_OBI, decode(scale, "e4m3") * tensor, run), scale, tensor


@op
def dequantize_nvfp4(
    packed: UInt8[Array, "O row_bytes"], scale: UInt8[Array, "O B"], tensor: Float[Array, ""], *, run: int = 1
) -> Float[Array, "O D"]:
    """Turn rows of NVFP4 into numbers of the dtype of the tensor's scale.

    Math: x = e2m1(q) (e4m3(scale) tensor), two codes a byte as in quantize_nvfp4.
    Cost: 1 flop an element, 1 a block; reads 9/16 byte, writes 4: bound by memory.
    Numerics: both products in float32 (float64 stays), rounded one by one.
    Constraints:
        (C1) packed is rows of bytes, scale a byte for each 8 of them.
        (C2) run divides 8.
    Source: NVIDIA, Pretraining large language models with NVFP4, 2025.

    >>> dequantize_nvfp4(np.full((1, 8), 0x21, np.uint8), np.uint8([[0x40]]), np.float32(10))[0, :2]
    array([10., 20.], dtype=float32)
    """
    return _unpack(packed, scale, decode(scale, "e4m3") * widen(tensor), 16, run).astype(tensor.dtype)
