"""Tokens sorted by expert, and linear maps over a stack of matrices: the parts of a mixture."""

from typing import Any

import ml_dtypes
import numpy as np

from gpu import device
from gpu.basics.linear_kernels import COLUMNS, ROWS, TILE_THREADS
from gpu.grid import blocks_for, threads_for
from gpu.llm import expert_block_kernels as stacked
from gpu.llm.block_kernels import WARPS as BLOCK_WARPS
from gpu.llm.blocks import words_of
from gpu.llm.expert_kernels import CHUNK, WARPS, count_choices, grouped, indexed, place_choices, sum_counts
from gpu.number import named
from gpu.registry import Variant
from refimpl.contract import Array, Float, Int, UInt8, kernel, op, require, whole, within

__all__ = [
    "FUSED", "VARIANTS", "expert_permutation", "expert_permutation_into", "grouped_blocks_into", "grouped_linear",
    "grouped_linear_into", "indexed_linear", "indexed_linear_into",
]  # fmt: skip

_FEW_CHOICES = 64  # of which most have an expert of their own: a warp that took several would read one after the other


@op
def expert_permutation(ids: Int[Array, "T A"], num_experts: int) -> tuple[Int[Array, " rows"], Int[Array, " bounds"]]:
    """Three launches: chunks of 256 choices counted, the counts summed by one block, the choices placed."""
    num_experts = whole("num_experts", num_experts)
    require(ids.ndim == 2 and within(ids, num_experts), "C1", f"ids are a matrix of integers in 0..{num_experts - 1}")
    order, offsets = device.empty(ids.size, np.int32), device.empty(num_experts + 1, np.int32)
    expert_permutation_into(order, offsets, device.array(ids, np.int32))
    return order, offsets


@kernel
def expert_permutation_into(
    order: Int[Array, " rows"], offsets: Int[Array, " bounds"], ids: Int[Array, "T A"],
    places: Int[Array, " rows"] | None = None, counts: Int[Array, "chunks E"] | None = None,
) -> None:
    """Write the choices sorted by expert, where each expert's begin and, in ``places``, their rows; all int32.

    ``counts`` is room for a row of every 256 choices, begun or full, and one more.
    """
    flat, chunks, E = ids.reshape(-1), blocks_for(ids.size, CHUNK), len(offsets) - 1
    counts = device.empty((chunks + 1, E), np.int32) if counts is None else counts
    counts, totals = counts[:chunks], counts[chunks]
    places = order[:0] if places is None else places
    device.launch(count_choices(), chunks, threads_for(E, 1), counts, flat)
    device.launch(sum_counts(), 1, threads_for(E + 1, 1), offsets, totals, counts)
    device.launch(place_choices(), chunks, CHUNK, order, places, counts, flat)


@op
def grouped_linear(
    x: Float[Array, "rows D"], w: Float[Array, "E O D"], offsets: Int[Array, " bounds"],
    b: Float[Array, "E O"] | None = None,
) -> Float[Array, "rows O"]:
    """Tiles of 16 rows by 32 columns, as linear's; a tile in which groups meet is summed once for each of them.

    The offsets are checked on the host.
    """
    _check_stack(x, w, b)
    ends = device.to_host(offsets)
    fits = ends.shape == (len(w) + 1,) and within(ends, len(x) + 1) and bool((ends[1:] >= ends[:-1]).all())
    fits = fits and (ends[0], ends[-1]) == (0, len(x))
    require(fits, "C2", f"offsets never fall, from 0 to {len(x)} in {len(w)} steps, got {ends}")
    y = device.empty((len(x), w.shape[1]), x.dtype)
    there = None if b is None else device.array(b)
    grouped_linear_into(y, device.array(x), device.array(w), device.array(offsets, np.int32), there)
    return y


@kernel
def grouped_linear_into(
    y: Float[Array, "rows O"], x: Float[Array, "rows D"], w: Float[Array, "E O D"], offsets: Int[Array, " bounds"],
    b: Float[Array, "E O"] | None = None,
) -> None:
    """Write what each group's matrix makes of its rows; the offsets are int32."""
    b = w.reshape(-1)[:0].reshape(0, 0) if b is None else b
    grid = blocks_for(y.shape[1], COLUMNS), blocks_for(len(y), ROWS)
    made = grouped(named(y), named(x), named(w), named(b))
    device.launch(made, grid, TILE_THREADS, y, x, w, offsets, b, y[:0])


@kernel
def grouped_blocks_into(
    y: Float[Array, "rows O"], x: Float[Array, "rows D"], blocks: UInt8[Array, "E O row_bytes"], format: str,
    offsets: Int[Array, " bounds"], b: Float[Array, "E O"] | None = None,
) -> None:
    """Write what each group's quantised matrix makes of its rows; the offsets are int32, all numbers float32.

    A warp reads a row of weights once for up to 32 rows of x, or, where these are few, once for each; 8 warps a block.
    """
    b = x.reshape(-1)[:0].reshape(0, 0) if b is None else b
    tall = 1 if len(y) <= _FEW_CHOICES else stacked.ROWS
    grid, made = (blocks_for(y.shape[1], BLOCK_WARPS), blocks_for(len(y), tall)), stacked.grouped_blocks(format)
    device.launch(made, grid, 32 * BLOCK_WARPS, y, x, words_of(blocks), offsets, b, tall)


@op
def indexed_linear(
    x: Float[Array, "T D"], w: Float[Array, "E O D"], ids: Int[Array, "T A"], b: Float[Array, "E O"] | None = None
) -> Float[Array, "T A O"]:
    """One warp an output of a choice, eight a block; the ids are checked on the host."""
    _check_stack(x, w, b)
    fits = ids.ndim == 2 and len(ids) == len(x) and within(ids, len(w))
    require(fits, "C2", f"ids are integers in 0..{len(w) - 1}, a row for each of {len(x)} tokens")
    y = device.empty((*ids.shape, w.shape[1]), x.dtype)
    there = None if b is None else device.array(b)
    indexed_linear_into(y, device.array(x), device.array(w), device.array(ids, np.int32), there)
    return y


@kernel
def indexed_linear_into(
    y: Float[Array, "T A O"], x: Float[Array, "T D"], w: Float[Array, "E O D"], ids: Int[Array, "T A"],
    b: Float[Array, "E O"] | None = None,
) -> None:
    """Write what each token's own matrices make of it; the ids are int32 and within the stack."""
    b = w.reshape(-1)[:0].reshape(0, 0) if b is None else b
    made, rows = indexed(named(y), named(x), named(w), named(b)), y.reshape(ids.size, w.shape[1])
    grid = blocks_for(rows.size, WARPS)
    device.launch(made, grid, 32 * WARPS, rows, x, w, ids.reshape(-1), b, rows[:0], ids.shape[1])


def _check_stack(x: Array, w: Array, b: Array | None) -> None:
    fits = x.ndim == 2 and w.ndim == 3 and len(w) > 0 and x.shape[1] == w.shape[2]
    require(fits, "C1", f"x is a matrix, w a stack of matrices of its width, got shapes {x.shape} and {w.shape}")
    require(b is None or b.shape == w.shape[:2], "C3", f"b has shape {b is not None and b.shape}, not {w.shape[:2]}")


def _choices() -> dict[str, Any]:
    return {"ids": np.random.default_rng(0).integers(0, 64, (256, 4)), "num_experts": 64}


def _stack(T: int) -> dict[str, Any]:
    draw = np.random.default_rng(0).standard_normal
    return {"x": draw((T, 512)).astype(ml_dtypes.bfloat16), "w": draw((8, 256, 512)).astype(ml_dtypes.bfloat16)}


def _grouped_blocks(x: Array, blocks: Array, format: str, offsets: Array, b: Array | None = None) -> Array:
    y = device.empty((len(x), blocks.shape[1]), np.float32)
    there = None if b is None else device.array(b)
    grouped_blocks_into(y, device.array(x), device.array(blocks), format, device.array(offsets, np.int32), there)
    return y


def _blocks() -> dict[str, Any]:
    """Return tokens and q8_0 matrices of four experts, the float16 of 0.0137 their scales."""
    draw = np.random.default_rng(0)
    blocks = draw.integers(0, 256, (4, 64, 16, 34), np.uint8)
    blocks[..., :2] = 0x03, 0x23
    x = draw.standard_normal((4, 512)).astype(np.float32)
    return {"x": x, "blocks": blocks.reshape(4, 64, -1), "format": "q8_0", "offsets": np.array([0, 1, 1, 3, 4])}


VARIANTS = (
    Variant("numba", "expert_permutation", expert_permutation, lambda *_, **__: True, _choices),
    Variant("tiled", "grouped_linear", grouped_linear, lambda *_, **__: True,
            lambda: _stack(64) | {"offsets": np.array([0, 16, 16, 24, 32, 33, 48, 60, 64])}),
    Variant("numba", "indexed_linear", indexed_linear, lambda *_, **__: True,
            lambda: _stack(1) | {"ids": np.array([[6, 1]])}),
)  # fmt: skip

FUSED = (Variant("numba", "grouped_blocks", _grouped_blocks, lambda *_, **__: True, _blocks),)
