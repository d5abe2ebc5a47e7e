"""The paged cache: slots, appending, and attention through the block tables.

Attention splits the keys of a sequence at every 256th, so that one long sequence occupies the whole GPU: a first
kernel attends to one split, a second joins the parts of a row in order. The splits are those of the row's own
position, whatever else is in the batch, so no bit of a result depends on the others, on the blocks, or on how a prompt
was cut into chunks.
"""

from functools import cache
from math import prod
from typing import Any

import numpy as np

from gpu import device
from gpu.compile import Kernel, numba_kernel
from gpu.efficient.paged_kernels import SPLIT, combine_kernel, slot_mapping_kernel, split_kernel
from gpu.grid import blocks_for, threads_for
from gpu.llm.attention_tiles import ROWS, THREADS, tile_of
from gpu.llm.attention_weights import rules_of, sinks_of
from gpu.number import named, read, storage, write
from gpu.registry import Variant
from refimpl.contract import Array, Float, Int, host, kernel, op, require, whole

__all__ = [
    "VARIANTS", "paged_append", "paged_append_into", "paged_attention", "paged_attention_into", "parts_for",
    "slot_mapping", "slot_mapping_into",
]  # fmt: skip

_MOST = 1 << 26  # floats of parts that are held at once


@op
def slot_mapping(block_table: Int[Array, " M"], positions: Int[Array, " T"], block_size: int) -> Int[Array, " T"]:
    """A thread finds the slot of one token."""
    block_size = whole("block_size", block_size)
    require(1 <= block_size < 2**31, "C1", f"blocks of {block_size} slots")
    ranks = block_table.ndim, positions.ndim
    kinds = {block_table.dtype.kind, positions.dtype.kind}
    require(ranks == (1, 1) and kinds <= {*"iu"}, "C2", f"table and positions are rows of integers, got {ranks} axes")
    table, at = (device.to_host(x).astype(np.int64) for x in (block_table, positions))
    inside = (at >= 0) & (at < len(table) * block_size)
    require(bool(inside.all()), "C2", f"positions {at[~inside]} in {len(table)} blocks of {block_size}")
    blocks = table[at // block_size]
    there = (blocks >= 0) & (blocks < 2**31 // block_size)
    require(bool(there.all()), "C3", f"positions {at[~there]} lie in no block, or in slots beyond int32")
    slots = device.empty(at.shape, np.int32)
    slot_mapping_into(slots, device.array(table, np.int32), device.array(at, np.int32), block_size)
    return slots


@kernel
def slot_mapping_into(
    slots: Int[Array, " T"], block_table: Int[Array, " M"], positions: Int[Array, " T"], block_size: int
) -> None:
    """Write the slots of tokens into ``slots``."""
    grid = blocks_for(slots.size, THREADS)
    device.launch(slot_mapping_kernel(), grid, THREADS, slots, block_table, positions, block_size)


@op
def paged_append(
    k_cache: Float[Array, "num_blocks block_size K H"], v_cache: Float[Array, "num_blocks block_size K H2"],
    k: Float[Array, "T K H"], v: Float[Array, "T K H2"], slots: Int[Array, " T"],
) -> tuple[Float[Array, "num_blocks block_size K H"], Float[Array, "num_blocks block_size K H2"]]:
    """A block copies the keys and values of one token. Caches of the current device are written in place."""
    ranks = k_cache.ndim, v_cache.ndim, slots.ndim
    require(ranks == (4, 4, 1), "C1", f"caches have 4 axes, slots 1, got {ranks}")
    T, pools, capacity = len(slots), (k_cache.shape[2:], v_cache.shape[2:]), k_cache.shape[0] * k_cache.shape[1]
    fits = (k.shape, v.shape) == ((T, *pools[0]), (T, *pools[1])) and k_cache.shape[:2] == v_cache.shape[:2]
    require(fits, "C1", f"k {k.shape}, v {v.shape} and {T} slots for caches {k_cache.shape} and {v_cache.shape}")
    wanted = device.to_host(slots)
    require(wanted.dtype.kind in "iu", "C2", f"slots are integers, got {wanted.dtype}")
    inside = (wanted >= -1) & (wanted < capacity)
    require(bool(inside.all()), "C2", f"slots {wanted[~inside]} in a cache of {capacity}")
    used = wanted[wanted >= 0]
    require(len(np.unique(used)) == len(used), "C3", f"slots {wanted} hold one twice")
    k_cache, v_cache = device.array(k_cache), device.array(v_cache)
    paged_append_into(k_cache, v_cache, device.array(k), device.array(v), device.array(wanted, np.int32))
    return k_cache, v_cache


@kernel
def paged_append_into(
    k_cache: Float[Array, "num_blocks block_size K H"], v_cache: Float[Array, "num_blocks block_size K H2"],
    k: Float[Array, "T K H"], v: Float[Array, "T K H2"], slots: Int[Array, " T"],
) -> None:
    """Write tokens into their slots of the caches."""
    T, slots_of_cache = len(slots), prod(k_cache.shape[:2])
    made = _paged_append(named(k_cache), named(k))
    named(v), named(v_cache)
    if k.size or v.size:
        pools = (x.reshape(slots_of_cache, prod(x.shape[2:])) for x in (k_cache, v_cache))
        new = (x.reshape(T, prod(x.shape[1:])) for x in (k, v))
        device.launch(made, T, threads_for(prod(k.shape[1:])), *pools, *new, slots)


@op
def paged_attention(
    q: Float[Array, "T N H"],
    k_cache: Float[Array, "num_blocks block_size K H"], v_cache: Float[Array, "num_blocks block_size K H2"],
    block_tables: Int[Array, "R M"], context_lens: Int[Array, " R"], cu_seqlens: Int[Array, " bounds"], *,
    scale: float | None = None, window: int | None = None, softcap: float | None = None, return_lse: bool = False,
    sinks: Float[Array, " N"] | None = None, prefix: int = 0, chunk: int | None = None,
) -> Float[Array, "T N H2"] | tuple[Float[Array, "T N H2"], Float[Array, "T N"]]:
    """A block takes 16 rows of one sequence and key/value head, and one split of its keys; then one joins the splits.

    paged_kernels.py says which rows a block has.
    """
    _check_heads(q, k_cache, v_cache, window, softcap)
    tables, lengths, bounds = (device.to_host(x) for x in (block_tables, context_lens, cu_seqlens))
    _check_tables(len(q), k_cache.shape, tables, lengths, bounds)
    (T, N, _), (_, size, K, H2), (R, M) = q.shape, v_cache.shape, tables.shape
    require(sinks is None or sinks.shape == (N,), "C8", f"sinks {getattr(sinks, 'shape', None)} for {N} query heads")
    require(whole("prefix", prefix) == 0 or (prefix > 0 and bool(window)), "C9", f"prefix {prefix}, window {window}")
    require(chunk is None or whole("chunk", chunk) >= 1, "C10", f"chunk {chunk}")
    out, lse = device.empty((T, N, H2), q.dtype), device.empty((T, N), np.float32)
    on_device = [device.array(x) for x in (q, k_cache, v_cache)]
    on_device += [device.array(x, np.int32) for x in (tables, lengths, bounds)]
    if lse.size:
        paged_attention_into(
            out, *on_device, parts=parts_for(T, R, N, K, H2, M * size), lse=lse, scale=scale, window=window,
            softcap=softcap, sinks=sinks_of(sinks), prefix=prefix, chunk=chunk)
    return (out, lse) if return_lse else out


@host
def parts_for(T: int, R: int, N: int, K: int, H2: int, longest: int) -> tuple[Array, Array]:
    """Return room for the parts of ``paged_attention_into``: for T tokens of R sequences of at most ``longest`` tokens.

    Where it would be too much, it is for some of the rows, and these are attended to some after the others.
    """
    splits = max(1, blocks_for(longest, SPLIT))
    tiles = min(T * (N // K) // ROWS + R, max(1, _MOST // (splits * K * ROWS * (H2 + 2))))
    shape = (splits, tiles, K, ROWS)
    return device.empty((*shape, H2), np.float32), device.empty((*shape, 2), np.float32)


@kernel
def paged_attention_into(
    out: Float[Array, "T N H2"], q: Float[Array, "T N H"],
    k_cache: Float[Array, "num_blocks block_size K H"], v_cache: Float[Array, "num_blocks block_size K H2"],
    block_tables: Int[Array, "R M"], context_lens: Int[Array, " R"], cu_seqlens: Int[Array, " bounds"], *,
    parts: tuple[Array, Array], lse: Float[Array, "T N"] | None = None, scale: float | None = None,
    window: int | None = None, softcap: float | None = None, sinks: Float[Array, " N"] | None = None, prefix: int = 0,
    chunk: int | None = None,
) -> None:
    """Write paged attention into ``out``, its lse into ``lse`` if that is given. Tables are int32, sinks float32."""
    (T, N, H), (pool, size, K, H2), (sums, weights) = q.shape, v_cache.shape, parts
    k, v = k_cache.reshape(pool * size, K, H), v_cache.reshape(pool * size, K, H2)
    attend = split_kernel((named(q), named(k), named(v)), H, H2)
    combine = combine_kernel(named(q), H2)
    lse = device.empty((0, 0), np.float32) if lse is None else lse
    rules, sinks = rules_of(window, prefix, chunk), sinks_of(sinks)
    tiles, at_once = T * (N // K) // ROWS + len(context_lens), sums.shape[1]
    for first in range(0, tiles, max(1, at_once)):
        count = min(at_once, tiles - first)
        device.launch(
            attend, (count, K, sums.shape[0]), THREADS, sums, weights, q, k, v, block_tables, context_lens, cu_seqlens,
            H**-0.5 if scale is None else scale, softcap or 0.0, *rules, size, tile_of(H, H2)[0], first)
        device.launch(
            combine, (count, K), THREADS, out, lse, sums, weights, context_lens, cu_seqlens, sinks, *rules, first)


@cache
def _paged_append(dtype: str, new_dtype: str) -> Kernel:
    from numba import uint64

    from gpu.warp import block, thread, threads

    wide, narrow = read(new_dtype), write(dtype)
    held, new = f"{storage(dtype)}[:, ::1]", f"{storage(new_dtype)}[:, ::1]"

    @numba_kernel(held, held, new, new, "int32[::1]", name=f"paged_append[{dtype}, {new_dtype}]")
    def paged_append(k_cache, v_cache, k, v, slots):
        t = block()
        if slots[t] < 0:
            return
        slot, i = uint64(slots[t]), thread()
        while i < uint64(k.shape[1]):
            k_cache[slot, i] = narrow(wide(k[t, i]))
            i += threads()
        i = thread()
        while i < uint64(v.shape[1]):
            v_cache[slot, i] = narrow(wide(v[t, i]))
            i += threads()

    return paged_append


def _check_heads(q: Array, k_cache: Array, v_cache: Array, window: int | None, softcap: float | None) -> None:
    ranks = q.ndim, k_cache.ndim, v_cache.ndim
    require(ranks == (3, 4, 4), "C2", f"q and the caches have 3, 4 and 4 axes, got {ranks}")
    (N, H), K = q.shape[1:], k_cache.shape[2]
    require(K > 0 and N % K == 0, "C1", f"{K} key/value heads do not divide {N} query heads")
    fits = k_cache.shape[-1] == H and k_cache.shape[:-1] == v_cache.shape[:-1]
    require(fits, "C2", f"q {q.shape}, caches {k_cache.shape} and {v_cache.shape} do not fit")
    require(window is None or whole("window", window) >= 1, "C6", f"window {window}")
    require(softcap is None or softcap > 0, "C7", f"softcap {softcap} is not positive")


def _check_tables(T: int, shape: tuple[int, ...], tables: Array, lengths: Array, bounds: Array) -> None:
    ranks = tables.ndim, lengths.ndim, bounds.ndim
    require(ranks == (2, 1, 1), "C3", f"tables, lengths and bounds have 2, 1 and 1 axes, got {ranks}")
    kinds = "".join(x.dtype.kind for x in (tables, lengths, bounds))
    require(set(kinds) <= {*"iu"}, "C3", f"tables, lengths and bounds are integers, got kinds {kinds}")
    (R, M), (num_blocks, block_size) = tables.shape, shape[:2]
    fits = len(lengths) == R and len(bounds) == R + 1 and bounds[0] == 0 and bounds[-1] == T
    rising = bool(fits and (bounds[1:] >= bounds[:-1]).all())
    require(rising, "C3", f"bounds {bounds} of {T} queries, {len(lengths)} lengths, {R} tables")
    inside = (lengths >= 0) & (lengths <= M * block_size)
    require(bool(inside.all()), "C4", f"lengths {lengths[~inside]} in {M} blocks of {block_size}")
    holding = np.arange(M) * block_size < lengths[:, None]
    known = (tables >= 0) & (tables < num_blocks)
    require(bool((known | ~holding).all()), "C5", f"blocks {tables[holding & ~known]} of {num_blocks}")


def _cache(seed: int, *pool: int) -> dict[str, Any]:
    k, v = np.random.default_rng(seed).standard_normal((2, *pool), np.float32)
    return {"k_cache": k, "v_cache": v}


def _slots_workload() -> dict[str, Any]:
    table, positions = np.random.default_rng(0).permutation(128).astype(np.int32), np.arange(2048, dtype=np.int32)
    return {"block_table": table, "positions": positions, "block_size": 16}


def _append_workload() -> dict[str, Any]:
    k, v = np.random.default_rng(1).standard_normal((2, 64, 8, 128), np.float32)
    return _cache(0, 16, 16, 8, 128) | {"k": k, "v": v, "slots": np.arange(100, 164, dtype=np.int32)}


def _decode_workload() -> dict[str, Any]:
    """Decoding four sequences of 300 to 600 tokens."""
    tables = np.random.default_rng(1).permutation(160).reshape(4, 40).astype(np.int32)
    q = np.random.default_rng(2).standard_normal((4, 8, 64)).astype(np.float32)
    lengths, bounds = np.array([300, 400, 500, 600], np.int32), np.arange(5, dtype=np.int32)
    return {"q": q} | _cache(0, 160, 16, 2, 64) | {
        "block_tables": tables, "context_lens": lengths, "cu_seqlens": bounds}


VARIANTS = (
    Variant("numba", "slot_mapping", slot_mapping, lambda *_, **__: True, _slots_workload),
    Variant("numba", "paged_append", paged_append, lambda *_, **__: True, _append_workload),
    Variant("numba", "paged_attention", paged_attention, lambda *_, **__: True, _decode_workload),
)
