"""Positions: rotary embedding, alone or with the append to the paged cache, and the learned table of GPT-2."""

from functools import cache
from typing import Any

import ml_dtypes
import numpy as np

from gpu import device
from gpu.compile import Kernel, numba_kernel
from gpu.grid import threads_for
from gpu.llm.position_kernels import rotate, rotate_and_append
from gpu.number import named, read, storage, write
from gpu.registry import Variant
from refimpl.contract import Array, Float, Int, kernel, op, require, rows, within

__all__ = ["VARIANTS", "learned_position", "learned_position_into", "rope", "rope_append_into", "rope_into"]


@op
def learned_position(
    x: Float[Array, "T D"], positions: Int[Array, " T"], table: Float[Array, "max_positions D"]
) -> Float[Array, "T D"]:
    """One block a token, its threads along the row. The positions are checked on the host."""
    require(within(positions, rows(table)), "C1", f"positions are integers in the table 0..{rows(table) - 1}")
    fits = positions.ndim == 1 and table.ndim == 2 and x.shape == (len(positions), table.shape[1])
    require(fits, "C2", f"x {x.shape} is not {positions.shape} rows of the width of the table {table.shape}")
    out = device.empty(x.shape, x.dtype)
    learned_position_into(out, device.array(x), device.array(positions, np.int32), device.array(table))
    return out


@kernel
def learned_position_into(
    out: Float[Array, "T D"], x: Float[Array, "T D"], positions: Int[Array, " T"],
    table: Float[Array, "max_positions D"],
) -> None:
    """Write x + table[positions] into ``out``, which may be ``x``; positions are int32 and within the table."""
    made = _learned_position(named(x), named(table))
    if out.size:
        device.launch(made, len(x), threads_for(x.shape[1]), out, x, positions, table)


@op
def rope(
    x: Float[Array, "T N H"], cos: Float[Array, "T J"], sin: Float[Array, "T J"], *, interleaved: bool = False,
    trailing: bool = False,
) -> Float[Array, "T N H"]:
    """One block a token, one warp a head; a lane turns pairs, and copies what no pair holds. A float32 table."""
    fits = x.ndim == 3 and cos.ndim == 2 and cos.shape == sin.shape and len(cos) == len(x)
    require(fits, "C3", f"cos {cos.shape} and sin {sin.shape} do not fit x {x.shape}")
    J = cos.shape[-1]
    require(x.shape[-1] >= 2 * J, "C1", f"{J} pairs do not fit into a head of width {x.shape[-1]}")
    narrow = [str(t.dtype) for t in (cos, sin) if t.dtype not in (np.float32, np.float64)]
    require(not narrow, "C2", f"a rope table in {', '.join(narrow)}, not float32 or float64")
    out = device.empty(x.shape, x.dtype)
    table = device.array(cos, np.float32), device.array(sin, np.float32)
    rope_into(out, device.array(x), *table, interleaved=interleaved, trailing=trailing)
    return out


@kernel
def rope_into(
    out: Float[Array, "T N H"], x: Float[Array, "T N H"], cos: Float[Array, "T J"], sin: Float[Array, "T J"], *,
    interleaved: bool = False, trailing: bool = False,
) -> None:
    """Write the turned heads of ``x`` into ``out``, which may be ``x``; the table is float32."""
    made = rotate(named(x), interleaved, trailing)
    if out.size:
        device.launch(made, len(x), 32 * min(x.shape[1], _WARPS), out, x, cos, sin, cos.reshape(-1)[:0])


@kernel
def rope_append_into(
    q_out: Float[Array, "T N H"], k_cache: Float[Array, "num_blocks block_size K H"],
    v_cache: Float[Array, "num_blocks block_size K H2"], q: Float[Array, "T N H"], k: Float[Array, "T K H"],
    v: Float[Array, "T K H2"], cos: Float[Array, "T J"], sin: Float[Array, "T J"], slot_mapping: Int[Array, " T"], *,
    interleaved: bool = False, trailing: bool = False, q_gain: Float[Array, " H"] | None = None,
    k_gain: Float[Array, " H"] | None = None, eps: float = 1e-6,
) -> None:
    """Turn the heads of ``q`` into ``q_out`` and those of ``k`` into the paged cache, and copy ``v`` there.

    With gains, heads are first brought to a root mean square of 1 and scaled (Qwen3). A slot of -1 writes nothing.
    ``q_out`` may be ``q``, and q, k, v may be parts of one projection; the table is float32, the slots are int32.
    """
    gain = cos.reshape(-1)[:0] if q_gain is None else q_gain
    made = rotate_and_append(named(q), named(k_cache), named(gain), interleaved, trailing)
    if q.size:
        T, N, _ = q.shape
        pages = (x.reshape(-1, *x.shape[2:]) for x in (k_cache, v_cache))
        gains = gain, gain if k_gain is None else k_gain
        warps = min(N + 2 * k.shape[1], _WARPS)
        device.launch(made, T, 32 * warps, q_out, *pages, q, k, v, cos, sin, slot_mapping, *gains, eps)


@cache
def _learned_position(dtype: str, table_dtype: str) -> Kernel:
    from numba import uint64

    from gpu.warp import block, thread, threads

    wide, wide_table, narrow = read(dtype), read(table_dtype), write(dtype)
    array = f"{storage(dtype)}[:, ::1]"

    @numba_kernel(
        array, array, "int32[::1]", f"{storage(table_dtype)}[:, ::1]", name=f"learned_position[{dtype}, {table_dtype}]"
    )
    def learned_position(out, x, positions, table):
        t, d = block(), thread()
        row = uint64(positions[t])
        while d < uint64(x.shape[1]):
            out[t, d] = narrow(wide(x[t, d]) + wide_table(table[row, d]))
            d += threads()

    return learned_position


_WARPS = 8  # of a block, at most


def _by_append(x: Array, cos: Array, sin: Array, *, interleaved: bool = False, trailing: bool = False) -> Array:
    """Turn ``x`` as the queries of tokens, and append it as their keys and values."""
    x, out, table = device.array(x), device.empty(x.shape, x.dtype), (device.array(t, np.float32) for t in (cos, sin))
    k_cache, v_cache = (device.empty((1, *x.shape), x.dtype) for _ in "kv")
    slots = device.array(np.arange(len(x)), np.int32)
    rope_append_into(out, k_cache, v_cache, x, x, x, *table, slots, interleaved=interleaved, trailing=trailing)
    return out


def _tokens_and_table() -> dict[str, Any]:
    draw = np.random.default_rng(0).standard_normal
    x, table = draw((16, 1024), np.float32), draw((64, 1024), np.float32).astype(ml_dtypes.bfloat16)
    return {"x": x, "positions": np.arange(16), "table": table}


def _heads() -> dict[str, Any]:
    draw = np.random.default_rng(0).standard_normal
    cos, sin = draw((2, 16, 64), np.float32)
    return {"x": draw((16, 32, 128), np.float32), "cos": cos, "sin": sin}


VARIANTS = (
    Variant("numba", "learned_position", learned_position, lambda *_, **__: True, _tokens_and_table),
    Variant("numba", "rope", rope, lambda *_, **__: True, _heads),
    Variant("append", "rope", _by_append, lambda *_, **__: True, _heads),
)
