"""The kernels of paged attention, and of slots.

The rows of a sequence are its tokens' query heads of one key/value head, and a tile is 16 of them. Sequence r begins
with tile cu_seqlens[r] G // 16 + r: so tiles are numbered by the packed tokens alone, each sequence has enough of them,
and a launch has T G // 16 + R, which the host knows without reading the bounds. A tile that no row needs ends at once.
"""

import math
from functools import cache
from typing import Any

from gpu.compile import Kernel, device_function, numba_kernel
from gpu.llm.attention_tiles import LANES, ROWS, THREADS, placer, sums_of, walker
from gpu.llm.attention_weights import sight
from gpu.number import storage, write
from refimpl.contract import host

__all__ = ["SPLIT", "combine_kernel", "slot_mapping_kernel", "split_kernel"]

SPLIT = 256
"""Keys in a split."""


@cache
def _locate() -> Any:
    """Which sequence has a tile: its number, its first token, its tokens, its length, and its first row in the tile."""
    from numba import uint64

    rows = uint64(ROWS)

    @device_function
    def locate(tile, group, bounds, lengths):
        low, high = uint64(0), uint64(lengths.size)
        while low + uint64(1) < high:
            middle = (low + high) // uint64(2)
            if uint64(bounds[middle]) * group // rows + middle <= tile:
                low = middle
            else:
                high = middle
        token = uint64(bounds[low])
        first = (tile - token * group // rows - low) * rows
        return low, token, uint64(bounds[low + uint64(1)]) - token, uint64(lengths[low]), first

    return locate


@host
@cache
def split_kernel(dtypes: tuple[str, str, str], head_dim: int, value_dim: int) -> Kernel:
    """Return the kernel that attends to one split of the keys; its result is a part: sums, top, total."""
    from numba import cuda, float32, uint64

    from gpu.warp import block, thread

    held_q, held_k, held_v = (f"{storage(dtype)}[:, :, ::1]" for dtype in dtypes)
    walk, place, locate = walker(dtypes, head_dim, value_dim, "none", True), placer(), _locate()
    own, lanes, H2, split = sums_of(value_dim), uint64(LANES), uint64(value_dim), uint64(SPLIT)

    @numba_kernel(
        *["float32[:, :, :, :, ::1]"] * 2, held_q, held_k, held_v, "int32[:, ::1]", "int32[::1]", "int32[::1]",
        "float32", "float32", *["uint64"] * 6, name=f"paged_attention[{dtypes[1]}, {head_dim}]", launch_bounds=THREADS)
    def paged_attention(
        sums, weights, q, k, v, tables, lengths, bounds, scale, softcap, window, prefix, chunk, block_size, tile,
        first_tile,
    ):
        group, head, part = uint64(q.shape[1]) // uint64(k.shape[1]), uint64(cuda.blockIdx.y), uint64(cuda.blockIdx.z)
        r, token, T, S, begin = locate(first_tile + block(), group, bounds, lengths)
        if begin >= T * group:
            return
        t, n, sees, start, end, gap, again = place(begin, group, T, S, (uint64(1), window, prefix, chunk))
        n += head * group
        start, end = max(start // tile * tile, part * split), min(end, part * split + split)
        start = max(start, again // tile * tile) if start >= gap else start
        if start >= end:
            return
        held = cuda.local.array(own, float32)
        for j in range(own):
            held[j] = float32(0)
        top, total = walk(
            (held, float32(-math.inf), float32(0)), q, k, v, q, tables[r], (token + t, n, *sees),
            (head, start, end, tile, block_size, gap, again), scale, softcap)
        row, lane = thread() // lanes, thread() % lanes
        if t < T:
            for j in range(uint64(own)):
                if lane + lanes * j < H2:
                    sums[part, block(), head, row, lane + lanes * j] = held[j]
            if lane == uint64(0):
                weights[part, block(), head, row, uint64(0)] = top
                weights[part, block(), head, row, uint64(1)] = total

    return paged_attention


@host
@cache
def combine_kernel(dtype: str, value_dim: int) -> Kernel:
    """Return the kernel that joins the parts of each row, in order, and its sink at the end.

    A split in which a row sees nothing is not read: those before its first key, behind its last, or in its gap.
    """
    from numba import cuda, float32, uint64

    from gpu.warp import block, thread

    narrow, seen, locate, never = write(dtype), sight(), _locate(), float32(-math.inf)
    own, lanes, H2, split = sums_of(value_dim), uint64(LANES), uint64(value_dim), uint64(SPLIT)
    held_out, parts = f"{storage(dtype)}[:, :, ::1]", ["float32[:, :, :, :, ::1]"] * 2

    @numba_kernel(
        held_out, "float32[:, ::1]", *parts, "int32[::1]", "int32[::1]", "float32[::1]", *["uint64"] * 4,
        name=f"paged_combine[{dtype}, {value_dim}]", launch_bounds=THREADS)
    def paged_combine(out, lse, sums, weights, lengths, bounds, sinks, window, prefix, chunk, first_tile):
        group, head = uint64(out.shape[1]) // uint64(sums.shape[2]), uint64(cuda.blockIdx.y)
        _, token, T, S, begin = locate(first_tile + block(), group, bounds, lengths)
        row, lane = thread() // lanes, thread() % lanes
        t, n = (begin + row) // group, head * group + (begin + row) % group
        if t >= T:
            return
        first, last, gap, again = seen(t, T, S, (uint64(1), window, prefix, chunk))
        start, end, none = first // split, (last + split - uint64(1)) // split, (gap + split - uint64(1)) // split
        skipped = max(again // split, none) - none
        top, total = never, float32(0)
        for i in range(start, end - skipped):
            part = i if i < none else i + skipped
            top = cuda.libdevice.fmaxf(top, weights[part, block(), head, row, uint64(0)])
        held = cuda.local.array(own, float32)
        for j in range(own):
            held[j] = float32(0)
        for i in range(start, end - skipped):
            part = i if i < none else i + skipped
            weight = math.exp(weights[part, block(), head, row, uint64(0)] - top)
            total += weight * weights[part, block(), head, row, uint64(1)]
            for j in range(uint64(own)):
                if lane + lanes * j < H2:
                    held[j] += weight * sums[part, block(), head, row, lane + lanes * j]
        shared = total + math.exp(sinks[n] - top) if sinks.size > 0 and total != float32(0) else total
        for j in range(uint64(own)):
            if lane + lanes * j < H2:
                out[token + t, n, lane + lanes * j] = narrow(held[j] / shared if total != float32(0) else float32(0))
        if lane == uint64(0) and lse.size > 0:
            lse[token + t, n] = top + math.log(total)

    return paged_combine


@host
@cache
def slot_mapping_kernel() -> Kernel:
    """Return the kernel that finds the slot of a token, a thread each."""
    from numba import int32, uint64

    from gpu.warp import block, thread, threads

    @numba_kernel("int32[::1]", "int32[::1]", "int32[::1]", "uint64")
    def slot_mapping(slots, block_table, positions, block_size):
        t = block() * threads() + thread()
        if t < uint64(slots.size):
            position = uint64(positions[t])
            place = uint64(block_table[position // block_size]) * block_size + position % block_size
            slots[t] = int32(place)

    return slot_mapping
