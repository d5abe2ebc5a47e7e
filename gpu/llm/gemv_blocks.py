"""Quantised weights by 16-byte copies (gemv_blocks.cu): q8_0, q4_1, mxfp4 as they are stored, times float32."""

from functools import cache
from pathlib import Path

from gpu import device
from gpu.compile import Kernel, cuda_kernel
from gpu.grid import blocks_for
from refimpl.contract import Array, Float, UInt8, kernel

__all__ = ["GEMV_FORMATS", "gemv_blocks_into"]

GEMV_FORMATS = {"q8_0": 34, "q4_1": 20, "mxfp4": 17}
"""Formats that the kernel reads, and the bytes of their blocks of 32 weights."""

_WARPS, _ROWS = 4, 4  # of a block, and rows of weights that a warp takes at once


@kernel
def gemv_blocks_into(
    y: Float[Array, "T O"], x: Float[Array, "T D"], blocks: UInt8[Array, "O row_bytes"], format: str,
    b: Float[Array, " O"] | None = None, residual: Float[Array, "T O"] | None = None,
) -> None:
    """Write x w^T + b + residual, all float32, into ``y``, which may be ``residual``: 4 rows of weights a warp.

    A stage of 32 blocks of each row is copied while the one before is used; up to 4 rows of x share them.
    """
    T, outputs = y.shape
    tokens = 1 if T == 1 else 4
    grid = blocks_for(outputs, _WARPS * _ROWS), blocks_for(T, tokens)
    count = blocks.shape[1] // GEMV_FORMATS[format]
    device.launch(_kernel(format, tokens), grid, 32 * _WARPS, y, x, blocks, b, residual, T, outputs, count)


@cache
def _kernel(format: str, tokens: int) -> Kernel:
    arrays = [(name, "uint8*" if name == "w" else "float32*") for name in ("y", "x", "w", "b", "residual")]
    return cuda_kernel(
        Path(__file__).with_suffix(".cu"), "gemv_blocks", [*arrays, ("T", "int32"), ("O", "int32"), ("B", "int32")],
        options=(f"-DFORMAT={format}", f"-DTOKENS={tokens}"), name=f"gemv_blocks[{format}] {tokens} rows",
    )
