"""Weights rounded into blocks: a lane an element of 32, or a group of 256, whose scale it searches by itself."""

import numpy as np

from gpu import device
from gpu.grid import blocks_for
from gpu.llm.blocks import FORMATS
from gpu.llm.writer_groups import WARPS
from gpu.llm.writer_kernels import blocks_of_warp, quantize_kernel
from gpu.number import DTYPES, named
from gpu.registry import Variant
from refimpl.blocks import LAYOUTS
from refimpl.contract import Array, Float, UInt8, kernel, op, require

__all__ = ["VARIANTS", "quantize", "quantize_into"]


@op
def quantize(w: Float[Array, "O D"], format: str) -> UInt8[Array, "O row_bytes"]:
    """A warp a block of 32, whose ends it finds by shuffles; or two or four blocks of 256, a lane a group.

    That lane searches the group's scale; the scales of a block meet in shared memory, and all lanes pack the codes.
    """
    require(format in FORMATS, "C1", f"block formats are {', '.join(FORMATS)}, got {format!r}")
    elements, size = FORMATS[format]
    fits = w.ndim == 2 and w.shape[1] % elements == 0
    require(fits, "C2", f"rows of {format} are multiples of {elements} elements, got shape {w.shape}")
    blocks = device.empty((len(w), w.shape[1] // elements * size), np.uint8)
    quantize_into(blocks, device.array(w), format)
    block = device.to_host(blocks).view(LAYOUTS[format])
    scales = [block[name] for name in ("d", "m") if name in (LAYOUTS[format].names or ())]
    fits = (block["exponent"] < 255).all() if format == "mxfp4" else np.isfinite(scales).all()
    require(bool(fits), "C3", f"w and its scales in {format} are finite")
    return blocks


@kernel
def quantize_into(blocks: UInt8[Array, "O row_bytes"], w: Float[Array, "O D"], format: str) -> None:
    """Write rows of blocks; one that is not finite, or whose scale float16 does not hold, has a d that is not."""
    each = blocks_of_warp(format) * WARPS
    grid = blocks_for(blocks.size // FORMATS[format].bytes, each)
    device.launch(quantize_kernel(format, named(w)), grid, 32 * WARPS, blocks.reshape(-1), w.reshape(-1))


VARIANTS = (
    Variant("numba", "quantize", quantize, lambda w, format: str(w.dtype) in DTYPES,
            lambda: {"w": np.random.default_rng(0).standard_normal((8, 1024)).astype(np.float32), "format": "q4_k"}),
)
