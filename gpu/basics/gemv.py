"""The linear map by 16-byte loads (gemv.cu): a variant of ``linear`` that is bound by the bytes of w."""

from functools import cache
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from gpu import device
from gpu.compile import Kernel, cuda_kernel
from gpu.grid import blocks_for
from gpu.number import DTYPES, storage
from gpu.registry import Variant
from refimpl.contract import Array, Float, host, kernel

__all__ = ["VARIANTS", "gemv_into", "gemv_takes"]

_WARPS, _ROWS = 4, 2  # of a block, and rows of w that a warp takes at once
_SHORT = dict(zip(DTYPES, ("f32", "bf16", "f16"), strict=True))


@kernel
def gemv_into(
    y: Float[Array, "T O"], x: Float[Array, "T D"], w: Float[Array, "O D"], b: Float[Array, " O"] | None = None,
    residual: Float[Array, "T O"] | None = None,
) -> None:
    """Write x w^T + b + residual into ``y``, which may be ``residual``: a warp takes 2 rows of w, and 1 or 4 of x."""
    (T, D), outputs = x.shape, len(w)
    tokens = 1 if T == 1 else 4
    made = _kernel(str(x.dtype), str(w.dtype), str(w.dtype if b is None else b.dtype), tokens)
    grid = blocks_for(outputs, _WARPS * _ROWS), blocks_for(T, tokens)
    device.launch(made, grid, 32 * _WARPS, y, x, w, b, residual, T, outputs, D)


@host
def gemv_takes(x: Array, w: Array, b: Array | None = None) -> bool:
    """Say whether x and w are rows of whole 16-byte words, and x is float32 or of w's dtype."""
    known = all(str(each.dtype) in DTYPES for each in (x, w, w if b is None else b))
    fits = known and x.dtype in (np.float32, w.dtype) and w.shape[1] * w.dtype.itemsize % 16 == 0
    return fits and device.is_aligned(x) and device.is_aligned(w)


@cache
def _kernel(x: str, w: str, b: str, tokens: int) -> Kernel:
    arrays = [("y", x), ("x", x), ("w", w), ("b", b), ("residual", x)]
    return cuda_kernel(
        Path(__file__).with_suffix(".cu"), "gemv",
        [*((name, storage(dtype) + "*") for name, dtype in arrays), ("T", "int32"), ("O", "int32"), ("D", "int32")],
        options=(f"-DX={_SHORT[x]}", f"-DW={_SHORT[w]}", f"-DB={_SHORT[b]}", f"-DTOKENS={tokens}"),
        name=f"gemv[{x}, {w}] {tokens} rows",
    )


def _linear(x: Array, w: Array, b: Array | None = None) -> Array:
    y = device.empty((len(x), len(w)), x.dtype)
    gemv_into(y, device.array(x), device.array(w), None if b is None else device.array(b))
    return y


def _workload() -> dict[str, Any]:
    draw = np.random.default_rng(0).standard_normal
    return {"x": draw((1, 4096), np.float32), "w": draw((512, 4096)).astype(ml_dtypes.bfloat16)}


VARIANTS = (Variant("gemv", "linear", _linear, gemv_takes, _workload),)
