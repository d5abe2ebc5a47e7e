"""Flash attention on tensor cores (flash_mma.cu): a variant of ``attention`` for bfloat16 and float16.

What tensor cores cost in accuracy: they multiply 16-bit numbers, so the weights p = exp(score - max) are rounded to the
dtype of v before they meet it, as in every flash attention. Each errs by eps / 2 of itself at most, and independently,
so o errs by about eps / 4 of the root of sum_s (p_s v_s)^2, and never by more than eps / 2 sum_s p_s |v_s|. Scores,
sums and the lse are float32. The golden rule allows 4 ulp at the scale of the row of o, at least 2 eps max |o|, and o
is cast once: so it needs no allowance for p unless v cancels until max |o| is a small part of sum_s p_s |v_s|.
"""

import math
from functools import cache
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from gpu import device
from gpu.compile import Kernel, cuda_kernel
from gpu.grid import blocks_for
from gpu.llm.attention_weights import sinks_of
from gpu.registry import Variant
from refimpl.contract import Array, Float, kernel

__all__ = ["VARIANTS", "flash_mma_into"]

_FORMATS = {"bfloat16": "bf16", "float16": "f16"}
_WARPS = 4
_KV_BYTES = 8192  # of a tile of k or v in shared memory; two stages of each


@kernel
def flash_mma_into(
    o: Float[Array, "T N H"], lse: Float[Array, "T N"], q: Float[Array, "T N H"], k: Float[Array, "S K H"],
    v: Float[Array, "S K H"], *, scale: float | None = None, causal: bool = True, window: int | None = None,
    sinks: Float[Array, " N"] | None = None,
) -> None:
    """Write attention into ``o`` and ``lse`` (float32): a block has 4 warps and 64 or 128 queries of one head.

    Sinks are float32.
    """
    (T, N, H), (S, K, _) = q.shape, k.shape
    row_tiles = 1 if T <= 64 else 2
    rows = 16 * _WARPS * row_tiles
    behind = S if window is None else min(window - 1, S)
    ahead = 0 if causal else T
    scale, sinks = (H**-0.5 if scale is None else scale) * math.log2(math.e), sinks_of(sinks)
    device.launch(_kernel(str(q.dtype), H, row_tiles), (blocks_for(T, rows), N), 32 * _WARPS,
                  o, lse, q, k, v, T, S, K, behind, ahead, scale, sinks, len(sinks))  # fmt: skip


@cache
def _kernel(dtype: str, head_dim: int, row_tiles: int) -> Kernel:
    arrays = [("o", "uint16*"), ("lse", "float32*"), ("q", "uint16*"), ("k", "uint16*"), ("v", "uint16*")]
    last = [("sinks", "float32*"), ("num_sinks", "int32")]
    numbers = [(name, "int32") for name in ("T", "S", "num_kv_heads", "behind", "ahead")]
    return cuda_kernel(
        Path(__file__).with_suffix(".cu"), "flash_mma", [*arrays, *numbers, ("scale", "float32"), *last],
        options=(f"-DINPUT={_FORMATS[dtype]}", f"-DHEAD_DIM={head_dim}", f"-DROW_TILES={row_tiles}"),
        shared=16 * _WARPS * row_tiles * 2 * head_dim + 4 * _KV_BYTES,
        name=f"flash_mma[{dtype}, {head_dim}, {16 * row_tiles} rows a warp]",
    )


def _takes(
    q: Array, k: Array, v: Array, *, scale: float | None = None, causal: bool = True, mask: Array | None = None,
    window: int | None = None, softcap: float | None = None, return_lse: bool = False,
    sinks: Array | None = None, prefix: int = 0, chunk: int | None = None,
) -> bool:
    (T, _, H), S = q.shape, len(k)
    fits = str(q.dtype) in _FORMATS and q.dtype == k.dtype == v.dtype and v.shape[-1] == H
    fits = fits and T > 0 and S > 0 and mask is None and softcap is None and (scale is None or 0 < scale < math.inf)
    return fits and prefix == 0 and chunk is None and all(device.is_aligned(each) for each in (q, k, v))


def _attention(
    q: Array, k: Array, v: Array, *, scale: float | None = None, causal: bool = True, mask: Array | None = None,
    window: int | None = None, softcap: float | None = None, return_lse: bool = False,
    sinks: Array | None = None, prefix: int = 0, chunk: int | None = None,
) -> Array | tuple[Array, Array]:
    q, k, v = device.array(q), device.array(k), device.array(v)
    o, lse = device.empty(q.shape, q.dtype), device.empty(q.shape[:2], np.float32)
    flash_mma_into(o, lse, q, k, v, scale=scale, causal=causal, window=window, sinks=sinks_of(sinks))
    return (o, lse) if return_lse else o


def _workload(dtype: Any, head_dim: int) -> dict[str, Array]:
    draw = np.random.default_rng(0).standard_normal
    return {name: draw((256, heads, head_dim)).astype(dtype) for name, heads in (("q", 4), ("k", 2), ("v", 2))}


def _variant(head_dim: int, dtype: Any) -> Variant:
    return Variant(
        f"mma {head_dim}", "attention", _attention,
        lambda q, k, v, **rules: q.shape[-1] == head_dim and _takes(q, k, v, **rules),
        lambda: _workload(dtype, head_dim),
    )


VARIANTS = (_variant(64, np.float16), _variant(128, ml_dtypes.bfloat16))
