"""The kernels behind ``gpu.llm.experts``: the stable sort by expert, and linear maps over a stack of matrices.

Both maps sum as the kernels of ``gpu.basics.linear_kernels`` do: grouped or indexed, a row has the same bits.
"""

from functools import cache

from gpu.basics.linear_kernels import COLUMNS, ROWS, TILE_THREADS, finish_output, tile_sums
from gpu.compile import Kernel, numba_kernel
from gpu.number import read, storage
from refimpl.contract import host

__all__ = ["CHUNK", "WARPS", "count_choices", "grouped", "indexed", "place_choices", "sum_counts"]

CHUNK = 256
"""Choices that one block counts and places."""
WARPS = 8
"""Of a block of the indexed kernel; each computes one output."""


@host
@cache
def count_choices() -> Kernel:
    """Return the kernel that counts each expert's choices in each chunk: an expert a thread, and so no atomics."""
    from numba import int32, uint64

    from gpu.warp import block, thread, threads

    @numba_kernel("int32[:, ::1]", "int32[::1]")
    def count_choices(counts, ids):
        first, e = block() * uint64(CHUNK), thread()
        last = min(first + uint64(CHUNK), uint64(ids.size))
        while e < uint64(counts.shape[1]):
            found, c = int32(0), first
            while c < last:
                found += int32(1) if uint64(ids[c]) == e else int32(0)
                c += uint64(1)
            counts[block(), e] = found
            e += threads()

    return count_choices


@host
@cache
def sum_counts() -> Kernel:
    """Return the kernel, of one block, that turns counts into where each expert's choices of each chunk begin."""
    from numba import cuda, int32, uint64

    from gpu.warp import thread, threads

    @numba_kernel("int32[::1]", "int32[::1]", "int32[:, ::1]")
    def sum_counts(offsets, totals, counts):
        chunks, E, e = uint64(counts.shape[0]), uint64(counts.shape[1]), thread()
        while e < E:
            total, chunk = int32(0), uint64(0)
            while chunk < chunks:
                total += counts[chunk, e]
                chunk += uint64(1)
            totals[e] = total
            e += threads()
        cuda.syncthreads()
        e = thread()
        while e <= E:
            start, other, chunk = int32(0), uint64(0), uint64(0)
            while other < e:
                start += totals[other]
                other += uint64(1)
            offsets[e] = start
            while e < E and chunk < chunks:
                found = counts[chunk, e]
                counts[chunk, e] = start
                start += found
                chunk += uint64(1)
            e += threads()

    return sum_counts


@host
@cache
def place_choices() -> Kernel:
    """Return the kernel that puts each choice, a thread, behind the equal ones before it in its chunk.

    ``places`` gets each choice's row, where it is not empty.
    """
    from numba import cuda, int32, uint64

    from gpu.warp import block, thread

    @numba_kernel("int32[::1]", "int32[::1]", "int32[:, ::1]", "int32[::1]")
    def place_choices(order, places, starts, ids):
        held = cuda.shared.array(CHUNK, int32)
        c, at = block() * uint64(CHUNK) + thread(), uint64(0)
        held[thread()] = ids[c] if c < uint64(ids.size) else int32(-1)
        cuda.syncthreads()
        if c >= uint64(ids.size):
            return
        row = starts[block(), uint64(held[thread()])]
        while at < thread():
            row += int32(1) if held[at] == held[thread()] else int32(0)
            at += uint64(1)
        order[uint64(row)] = int32(c)
        if places.size:
            places[c] = row

    return place_choices


@host
@cache
def grouped(y_dtype: str, x_dtype: str, w_dtype: str, b_dtype: str) -> Kernel:
    """Return the kernel in which a block computes a tile of y once for each expert that has rows in it."""
    from numba import cuda, int32, uint64

    from gpu.warp import block

    sum_tile, finish, rows = tile_sums(x_dtype, w_dtype), finish_output(y_dtype, b_dtype), ROWS
    held_y, held_x, held_w, held_b = (storage(dtype) for dtype in (y_dtype, x_dtype, w_dtype, b_dtype))

    @numba_kernel(
        f"{held_y}[:, ::1]", f"{held_x}[:, ::1]", f"{held_w}[:, :, ::1]", "int32[::1]", f"{held_b}[:, ::1]",
        f"{held_y}[:, ::1]", name=f"grouped_linear[{x_dtype}, {w_dtype}]", launch_bounds=(TILE_THREADS, 2),
    )
    def grouped_linear(y, x, w, offsets, b, nothing):
        top, left = uint64(cuda.blockIdx.y) * uint64(rows), block() * uint64(COLUMNS)
        low, high = uint64(0), uint64(w.shape[0])
        while high - low > uint64(1):  # the last expert that begins at or above the tile
            middle = (low + high) // uint64(2)
            if offsets[middle] <= int32(top):
                low = middle
            else:
                high = middle
        end, e = min(top + uint64(rows), uint64(x.shape[0])), low
        while e < uint64(w.shape[0]) and uint64(offsets[e]) < end:
            if offsets[e] < offsets[e + uint64(1)]:
                t, o, total = sum_tile(x, w[e], top, left)
                if uint64(offsets[e]) <= t < uint64(offsets[e + uint64(1)]):
                    finish(y, b[e if b.shape[0] else uint64(0)], nothing, t, o, total)
            e += uint64(1)

    return grouped_linear


@host
@cache
def indexed(y_dtype: str, x_dtype: str, w_dtype: str, b_dtype: str) -> Kernel:
    """Return the kernel in which a warp computes one output of one choice; ``each`` are the choices of a token."""
    from numba import cuda, float32, uint64

    from gpu.warp import block, lane, warp, warp_sum

    wide_x, wide_w, finish = read(x_dtype), read(w_dtype), finish_output(y_dtype, b_dtype)
    held_y, held_x, held_w, held_b = (storage(dtype) for dtype in (y_dtype, x_dtype, w_dtype, b_dtype))

    @numba_kernel(
        f"{held_y}[:, ::1]", f"{held_x}[:, ::1]", f"{held_w}[:, :, ::1]", "int32[::1]", f"{held_b}[:, ::1]",
        f"{held_y}[:, ::1]", "int64", name=f"indexed_linear[{x_dtype}, {w_dtype}]",
    )
    def indexed_linear(y, x, w, ids, b, nothing, each):
        unit, outputs = block() * uint64(WARPS) + warp(), uint64(y.shape[1])
        c, o = unit // outputs, unit % outputs
        if c >= uint64(ids.size):
            return
        t, e, total, d = c // uint64(each), uint64(ids[c]), float32(0), lane()
        while d < uint64(x.shape[1]):
            total = cuda.fma(wide_x(x[t, d]), wide_w(w[e, o, d]), total)
            d += uint64(32)
        total = warp_sum(total)
        if lane() == uint64(0):
            finish(y, b[e if b.shape[0] else uint64(0)], nothing, c, o, total)

    return indexed_linear
