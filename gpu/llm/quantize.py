"""Quantised weights: a warp reads its part of a row into shared memory, word by word, and decodes it there."""

from functools import cache

import numpy as np

from gpu import device
from gpu.compile import Kernel, numba_kernel
from gpu.grid import blocks_for
from gpu.llm.block_kernels import CHUNK, WARPS, dequantize_kernel, linear_blocks_kernel, linear_int8_kernel
from gpu.llm.blocks import FORMATS, words_of
from gpu.llm.gemv_blocks import GEMV_FORMATS, gemv_blocks_into
from gpu.number import DTYPES, named, read, storage
from gpu.registry import Variant
from refimpl.blocks import LAYOUTS
from refimpl.contract import Array, Float, Int, UInt8, kernel, op, require

__all__ = [
    "FUSED", "VARIANTS", "dequantize", "dequantize_into", "linear_blocks_into", "linear_int8", "linear_int8_into",
    "quantize_int8", "quantize_int8_into",
]

_TOKENS = 32
"""Tokens of a tile: a lane keeps the sum of one."""


@op
def dequantize(blocks: UInt8[Array, "O row_bytes"], format: str) -> Float[Array, "O D"]:
    """A warp to 512 columns of a row, 8 warps a block: their words in shared memory, a lane every 32nd column."""
    outputs, width = _check_blocks(blocks, format)
    out = device.empty((outputs, width), np.float32)
    dequantize_into(out, device.array(blocks), format)
    return out


@kernel
def dequantize_into(
    out: Float[Array, "T D"], blocks: UInt8[Array, "O row_bytes"], format: str, ids: Int[Array, " T"] | None = None
) -> None:
    """Write rows of weights as float32: those of the ids, int32 and within the weights, or all."""
    tokens, width = out.shape
    grid = blocks_for(width, CHUNK), blocks_for(tokens, WARPS)
    ids = device.empty(0, np.int32) if ids is None else ids
    device.launch(dequantize_kernel(format), grid, 32 * WARPS, out, words_of(blocks), ids)


@op
def quantize_int8(x: Float[Array, "T D"]) -> tuple[Int[Array, "T D"], Float[Array, "T B"]]:
    """A lane an element, a warp a block of 32: the largest magnitude by shuffles."""
    require(x.ndim == 2, "C1", f"activations are rows, got shape {x.shape}")
    tokens, width = x.shape
    require(width % 32 == 0, "C1", f"a row is blocks of 32 elements, got {width}")
    q, scale = device.empty((tokens, width), np.int8), device.empty((tokens, width // 32), np.float32)
    quantize_int8_into(q, scale, device.array(x))
    require(bool(np.isfinite(device.to_host(scale)).all()), "C2", "activations are finite")
    return q, scale


@kernel
def quantize_int8_into(q: Int[Array, "T D"], scale: Float[Array, "T B"], x: Float[Array, "T D"]) -> None:
    """Write codes and scales; a block that is not finite has a scale that is not."""
    made = _quantize_int8(named(x))
    device.launch(made, blocks_for(scale.size, WARPS), 32 * WARPS, q.reshape(-1), scale.reshape(-1), x.reshape(-1))


@op
def linear_int8(
    x: Float[Array, "T D"], blocks: UInt8[Array, "O row_bytes"], format: str
) -> Float[Array, "T O"]:
    """A warp an output, 8 warps a block: a lane a block of 32 columns, whose terms all lanes add in order.

    The words of 32 blocks lie in shared memory; a lane keeps the sum of one of up to 32 tokens.
    """
    narrow = [known for known, form in FORMATS.items() if form.elements == 32]
    require(format in narrow, "C1", f"int8 activations need one of {', '.join(narrow)}, got {format!r}")
    outputs, width = _check_blocks(blocks, format)
    require(x.shape[1:] == (width,), "C3", f"x is rows as wide as the weights, {width}, got shape {x.shape}")
    q, scale = quantize_int8(x)
    y = device.empty((len(x), outputs), x.dtype)
    linear_int8_into(y, q, scale, device.array(blocks), format)
    return y


@kernel
def linear_int8_into(
    y: Float[Array, "T O"], q: Int[Array, "T D"], scale: Float[Array, "T B"], blocks: UInt8[Array, "O row_bytes"],
    format: str,
) -> None:
    """Apply quantised weights to activations that ``quantize_int8_into`` rounded."""
    tokens, outputs = y.shape
    grid = blocks_for(outputs, WARPS), blocks_for(tokens, _TOKENS)
    device.launch(linear_int8_kernel(named(y), format), grid, 32 * WARPS, y, q, scale, words_of(blocks))


@kernel
def linear_blocks_into(
    y: Float[Array, "T O"], x: Float[Array, "T D"], blocks: UInt8[Array, "O row_bytes"], format: str,
    b: Float[Array, " O"] | None = None, residual: Float[Array, "T O"] | None = None,
) -> None:
    """Write ``linear(x, dequantize(blocks, format), b) + residual``, in float32, into ``y``; it may be ``residual``.

    gemv_blocks.cu has q8_0, q4_1 and mxfp4. For the others, a warp an output, 8 warps a block: 512 weights at a time in
    shared memory, a lane every 32nd column, the lanes' sums by shuffles; a lane keeps the sum of one of up to 32
    tokens. The order of a sum depends on its width alone.
    """
    if format in GEMV_FORMATS and device.is_aligned(x) and device.is_aligned(blocks):
        gemv_blocks_into(y, x, blocks, format, b, residual)
        return
    tokens, outputs = y.shape
    grid = blocks_for(outputs, WARPS), blocks_for(tokens, _TOKENS)
    b, residual = x.reshape(-1)[:0] if b is None else b, y[:0] if residual is None else residual
    device.launch(linear_blocks_kernel(format), grid, 32 * WARPS, y, x, words_of(blocks), b, residual)


def _check_blocks(blocks: Array, format: str) -> tuple[int, int]:
    """Return rows and columns of a weight."""
    require(format in FORMATS, "C1", f"block formats are {', '.join(FORMATS)}, got {format!r}")
    rows = blocks.ndim == 2 and blocks.dtype == np.uint8
    require(rows, "C2", f"rows of bytes, got {blocks.dtype} {blocks.shape}")
    outputs, row_bytes = blocks.shape
    elements, size = FORMATS[format]
    require(row_bytes % size == 0, "C2", f"a row of {format} is a multiple of {size} bytes, got {row_bytes}")
    return outputs, row_bytes // size * elements


@cache
def _quantize_int8(dtype: str) -> Kernel:
    from numba import cuda, float32, int8, uint64

    from gpu.warp import block, lane, warp

    held, wide = storage(dtype), read(dtype)

    @numba_kernel("int8[::1]", "float32[::1]", f"{held}[::1]", name=f"quantize_int8[{dtype}]")
    def quantize_int8(q, scale, x):
        group = block() * uint64(WARPS) + warp()
        if group < uint64(scale.size):
            value = wide(x[group * uint64(32) + lane()])
            largest, offset = cuda.libdevice.float_as_int(abs(value)), 16  # as integers, NaN is above all numbers
            while offset:
                largest = max(largest, cuda.shfl_xor_sync(0xFFFFFFFF, largest, offset))
                offset >>= 1
            step = cuda.libdevice.fdiv_rn(cuda.libdevice.int_as_float(largest), float32(127))
            code = cuda.libdevice.rintf(cuda.libdevice.fdiv_rn(value, step)) if step > float32(0) else float32(0)
            q[group * uint64(32) + lane()] = int8(min(max(code, float32(-127)), float32(127)))
            if lane() == uint64(0):
                scale[group] = step

    return quantize_int8


def _rows(format: str, rows: int, width: int) -> Array:
    """Return random blocks, their scales and minima the float16 of 0.0137, or a power of two near it."""
    elements, size = FORMATS[format]
    blocks = np.random.default_rng(0).integers(0, 256, (rows, width // elements, size), np.uint8)
    for name in ("d", "m"):
        if name in (LAYOUTS[format].names or ()):
            at = (LAYOUTS[format].fields or {})[name][1]
            blocks[..., at : at + 2] = 0x03, 0x23
    if format == "mxfp4":
        blocks[..., 0] = 121
    return blocks.reshape(rows, -1)


def _linear_blocks(x: Array, blocks: Array, format: str) -> Array:
    y = device.empty((len(x), len(blocks)), np.float32)
    linear_blocks_into(y, device.array(x), device.array(blocks), format)
    return y


def _gemv_blocks(x: Array, blocks: Array, format: str) -> Array:
    y = device.empty((len(x), len(blocks)), np.float32)
    gemv_blocks_into(y, device.array(x), device.array(blocks), format)
    return y


def _activations() -> Array:
    return np.random.default_rng(1).standard_normal((1, 2048)).astype(np.float32)


VARIANTS = (
    Variant("numba", "dequantize", dequantize, lambda blocks, format: True,
            lambda: {"blocks": _rows("q4_k", 64, 2048), "format": "q4_k"}),
    Variant("numba", "quantize_int8", quantize_int8, lambda x: str(x.dtype) in DTYPES, lambda: {"x": _activations()}),
    Variant("numba", "linear_int8", linear_int8, lambda x, blocks, format: str(x.dtype) in DTYPES,
            lambda: {"x": _activations(), "blocks": _rows("q4_0", 64, 2048), "format": "q4_0"}),
)

FUSED = (
    Variant("numba", "linear_blocks", _linear_blocks, lambda x, blocks, format: True,
            lambda: {"x": _activations(), "blocks": _rows("q4_k", 64, 2048), "format": "q4_k"}),
    *(Variant(f"gemv, {name}", "linear_blocks", _gemv_blocks, lambda x, blocks, format, name=name: format == name,
              lambda name=name: {"x": _activations(), "blocks": _rows(name, 256, 2048), "format": name})
      for name in GEMV_FORMATS),
)
