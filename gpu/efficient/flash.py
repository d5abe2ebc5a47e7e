"""Attention in parts: one step of the running softmax, two parts joined, and the whole."""

import math
from functools import cache
from typing import Any

import numpy as np

from gpu import device
from gpu.compile import Kernel, numba_kernel
from gpu.grid import blocks_for
from gpu.llm.attention import attention_into, kind_of, mask_of
from gpu.llm.attention_tiles import LANES, ROWS, THREADS, sums_of, tile_of, walker
from gpu.llm.attention_weights import sinks_of
from gpu.number import named, need_floats, read, storage, write
from gpu.registry import Variant
from refimpl.contract import Array, Bool, Float, kernel, op, require, whole

__all__ = [
    "VARIANTS", "flash_attention", "flash_attention_into", "flash_step", "flash_step_into", "merge_states",
    "merge_states_into",
]  # fmt: skip


@op
def flash_step(
    sums: Float[Array, "T N H2"], top: Float[Array, "T N"], total: Float[Array, "T N"],
    q: Float[Array, "T N H"], k: Float[Array, "S K H"], v: Float[Array, "S K H2"], *,
    scale: float | None = None, mask: Bool[Array, "..."] | Float[Array, "..."] | None = None,
    softcap: float | None = None,
) -> tuple[Float[Array, "T N H2"], Float[Array, "T N"], Float[Array, "T N"]]:
    """A block takes 16 rows as attention's kernel does, from a given state and not from the first.

    The state is float32. More keys than shared memory holds are taken in several tiles.
    """
    _check(q, k, v, mask, softcap)
    (T, N, _), H2 = q.shape, v.shape[-1]
    fits = sums.shape == (T, N, H2) and top.shape == total.shape == (T, N)
    require(fits, "C4", f"the state {sums.shape}, {top.shape}, {total.shape} is not [{T} {N} {H2}], [{T} {N}] twice")
    need_floats(sums, top, total)
    state = tuple(device.array(part, np.float32) for part in (sums, top, total))
    after = tuple(device.empty(part.shape, np.float32) for part in state)
    flash_step_into(
        after, state, device.array(q), device.array(k), device.array(v), scale=scale, mask=mask_of(mask),
        softcap=softcap)
    return after


@kernel
def flash_step_into(
    after: tuple[Array, ...], state: tuple[Array, ...], q: Float[Array, "T N H"], k: Float[Array, "S K H"],
    v: Float[Array, "S K H2"], *, scale: float | None = None, mask: Array | None = None, softcap: float | None = None,
) -> None:
    """Write the state (sums, top, total) after the tile into ``after``. The mask is ``mask_of``'s."""
    (T, N, H), (_, K, H2), (kind, hiding) = q.shape, v.shape, kind_of(mask)
    made = _flash_step((named(q), named(k), named(v)), H, H2, kind)
    device.launch(
        made, (blocks_for(N // K * T, ROWS), K), THREADS, *after, *state, q, k, v, hiding,
        H**-0.5 if scale is None else scale, softcap or 0.0, tile_of(H, H2)[0])


@op
def merge_states(
    o_a: Float[Array, "T N H2"], lse_a: Float[Array, "T N"], o_b: Float[Array, "T N H2"], lse_b: Float[Array, "T N"],
) -> tuple[Float[Array, "T N H2"], Float[Array, "T N"]]:
    """A thread joins one element, and the first of a row its log-sum-exps; nothing is shared."""
    fits = o_a.shape == o_b.shape and lse_a.shape == lse_b.shape == o_a.shape[:-1]
    require(fits, "C1", f"parts {o_a.shape}, {lse_a.shape} and {o_b.shape}, {lse_b.shape}")
    named(lse_a), named(lse_b)
    o, lse = device.empty(o_a.shape, o_a.dtype), device.empty(lse_a.shape, np.float32)
    a, b = ((device.array(o_x), device.array(lse_x, np.float32)) for o_x, lse_x in ((o_a, lse_a), (o_b, lse_b)))
    merge_states_into(o, lse, *a, *b)
    return o, lse


@kernel
def merge_states_into(
    o: Float[Array, "T N H2"], lse: Float[Array, "T N"], o_a: Float[Array, "T N H2"], lse_a: Float[Array, "T N"],
    o_b: Float[Array, "T N H2"], lse_b: Float[Array, "T N"],
) -> None:
    """Write two parts joined into ``o`` and ``lse``."""
    rows, width = lse.size, o.shape[-1]
    o, o_a, o_b = (part.reshape(rows, width) for part in (o, o_a, o_b))
    lse, lse_a, lse_b = (part.reshape(rows) for part in (lse, lse_a, lse_b))
    made, blocks = _merge(named(o_a), named(o_b)), blocks_for(rows * max(1, width), THREADS)
    device.launch(made, blocks, THREADS, o, lse, o_a, lse_a, o_b, lse_b)


@op
def flash_attention(
    q: Float[Array, "T N H"], k: Float[Array, "S K H"], v: Float[Array, "S K H2"], *,
    tile: int = 32, scale: float | None = None, causal: bool = True,
    mask: Bool[Array, "..."] | Float[Array, "..."] | None = None,
    window: int | None = None, softcap: float | None = None, return_lse: bool = False,
    sinks: Float[Array, " N"] | None = None, prefix: int = 0, chunk: int | None = None,
) -> Float[Array, "T N H2"] | tuple[Float[Array, "T N H2"], Float[Array, "T N"]]:
    """Attention's kernel, in tiles of ``tile`` keys, or of as many as shared memory holds if these are fewer."""
    _check(q, k, v, mask, softcap)
    require(window is None or (whole("window", window) >= 1 and causal), "C4", f"window {window}, causal {causal}")
    require(whole("tile", tile) >= 1, "C6", f"a tile of {tile} keys")
    T, N, H2 = *q.shape[:2], v.shape[-1]
    require(sinks is None or sinks.shape == (N,), "C7", f"sinks {getattr(sinks, 'shape', None)} for {N} query heads")
    require(whole("prefix", prefix) == 0 or (prefix > 0 and bool(window)), "C8", f"prefix {prefix}, window {window}")
    require(chunk is None or (whole("chunk", chunk) >= 1 and causal), "C9", f"chunk {chunk}, causal {causal}")
    out, lse = device.empty((T, N, H2), q.dtype), device.empty((T, N) if return_lse else (0, 0), np.float32)
    flash_attention_into(
        out, device.array(q), device.array(k), device.array(v), lse=lse, tile=tile, scale=scale, causal=causal,
        mask=mask_of(mask), window=window, softcap=softcap, sinks=sinks_of(sinks), prefix=prefix, chunk=chunk)
    return (out, lse) if return_lse else out


@kernel
def flash_attention_into(
    out: Float[Array, "T N H2"], q: Float[Array, "T N H"], k: Float[Array, "S K H"], v: Float[Array, "S K H2"], *,
    lse: Float[Array, "T N"] | None = None, tile: int = 32, scale: float | None = None, causal: bool = True,
    mask: Array | None = None, window: int | None = None, softcap: float | None = None,
    sinks: Float[Array, " N"] | None = None, prefix: int = 0, chunk: int | None = None,
) -> None:
    """Write attention into ``out`` and ``lse``, in tiles of ``tile`` keys."""
    attention_into(
        out, q, k, v, lse=lse, scale=scale, causal=causal, mask=mask, window=window, softcap=softcap, tile=tile,
        sinks=sinks, prefix=prefix, chunk=chunk)


@cache
def _flash_step(dtypes: tuple[str, str, str], head_dim: int, value_dim: int, mask: str) -> Kernel:
    from numba import cuda, float32, uint64

    from gpu.warp import block, thread

    stored = (*map(storage, dtypes), "uint8" if mask == "bool" else "float32")
    held, state = [f"{each}[:, :, ::1]" for each in stored], ("float32[:, :, ::1]", *["float32[:, ::1]"] * 2)
    walk, own = walker(dtypes, head_dim, value_dim, mask, False), sums_of(value_dim)
    rows, lanes, H2, zero = uint64(ROWS), uint64(LANES), uint64(value_dim), uint64(0)

    @numba_kernel(
        *state, *state, *held, "float32", "float32", "uint64",
        name=f"flash_step[{dtypes[0]}, {head_dim}, mask {mask}]", launch_bounds=THREADS)
    def flash_step(sums_after, top_after, total_after, sums, top, total, q, k, v, mask, scale, softcap, tile):
        S, group, head = uint64(k.shape[0]), uint64(q.shape[1]) // uint64(k.shape[1]), uint64(cuda.blockIdx.y)
        i, lane = block() * rows + thread() // lanes, thread() % lanes
        t, n, real = i // group, head * group + i % group, i < uint64(q.shape[0]) * group
        held = cuda.local.array(own, float32)
        for j in range(uint64(own)):
            held[j] = sums[t, n, lane + lanes * j] if real and lane + lanes * j < H2 else float32(0)
        before, weight = (top[t, n], total[t, n]) if real else (float32(-math.inf), float32(0))
        highest, weight = walk(
            (held, before, weight), q, k, v, mask, q, (t, n, zero, S if real else zero, zero, zero),
            (head, zero, S, tile, zero, zero, zero), scale, softcap)
        if real:
            for j in range(uint64(own)):
                if lane + lanes * j < H2:
                    sums_after[t, n, lane + lanes * j] = held[j]
            if lane == zero:
                top_after[t, n], total_after[t, n] = highest, weight

    return flash_step


@cache
def _merge(dtype_a: str, dtype_b: str) -> Kernel:
    from numba import cuda, float32, uint64

    from gpu.warp import block, thread, threads

    (held_a, held_b), lses = (f"{storage(dtype)}[:, ::1]" for dtype in (dtype_a, dtype_b)), "float32[::1]"
    wide_a, wide_b, narrow, none = read(dtype_a), read(dtype_b), write(dtype_a), float32(-math.inf)

    @numba_kernel(held_a, lses, held_a, lses, held_b, lses, name=f"merge_states[{dtype_a}]")
    def merge_states(o, lse, o_a, lse_a, o_b, lse_b):
        H2 = uint64(o.shape[1])
        i = block() * threads() + thread()
        row, h = i // max(H2, uint64(1)), i % max(H2, uint64(1))
        if row < uint64(lse.size):
            a, b = lse_a[row], lse_b[row]
            top = cuda.libdevice.fmaxf(a, b)
            if top == none:
                top = float32(0)
            weight_a, weight_b = math.exp(a - top), math.exp(b - top)
            total = weight_a + weight_b
            if h == uint64(0):
                lse[row] = top + math.log(total)
            if h < H2:
                y = float32(0)
                if a != none:
                    y += wide_a(o_a[row, h]) * (weight_a / total)
                if b != none:
                    y += wide_b(o_b[row, h]) * (weight_b / total)
                o[row, h] = narrow(y)

    return merge_states


def _check(q: Array, k: Array, v: Array, mask: Array | None, softcap: float | None) -> None:
    require(q.ndim == k.ndim == v.ndim == 3, "C2", f"q {q.shape}, k {k.shape}, v {v.shape} are not three axes each")
    (T, N, H), (S, K, _) = q.shape, k.shape
    require(K > 0 and N % K == 0, "C1", f"{K} key/value heads do not divide {N} query heads")
    require(k.shape[-1] == H and v.shape[:-1] == (S, K), "C2", f"q {q.shape}, k {k.shape}, v {v.shape} do not fit")
    require(mask is None or mask.shape in ((T, S), (N, T, S)), "C3", f"mask is not [{T} {S}] or [{N} {T} {S}]")
    require(softcap is None or softcap > 0, "C5", f"softcap {softcap} is not positive")


def _workload(step: bool) -> dict[str, Any]:
    draw = np.random.default_rng(0)
    q, k, v = (draw.standard_normal((256, heads, 64)).astype(np.float32) for heads in (4, 2, 2))
    none = np.zeros((256, 4), np.float32)
    return ({"sums": np.zeros_like(q), "top": none - np.inf, "total": none} if step else {}) | {"q": q, "k": k, "v": v}


def _merge_workload() -> dict[str, Any]:
    draw = np.random.default_rng(0)
    o, lse = (draw.standard_normal(shape).astype(np.float32) for shape in ((256, 8, 128), (256, 8)))
    return {"o_a": o, "lse_a": lse, "o_b": o[::-1].copy(), "lse_b": lse[::-1].copy()}


VARIANTS = (
    Variant("numba", "flash_step", flash_step, lambda **_: True, lambda: _workload(True)),
    Variant("numba", "merge_states", merge_states, lambda **_: True, _merge_workload),
    Variant("numba", "flash_attention", flash_attention, lambda **_: True, lambda: _workload(False)),
)
