"""What a block does in every attention kernel of Numba: 16 rows walk over tiles of the keys of one head.

A row is one query head of one token; the rows of a key/value head are its G query heads for each token in turn, so
that a block reads a tile once for 16 rows. Eight lanes share a row: of a tile each scores every eighth key, and of the
values each sums every eighth column, in registers. Shared memory holds the block's queries and one tile, first of the
keys and then of the values, and the weights; a row of it has one float more than it needs, so that the four rows of a
warp, or eight keys, lie in different banks.

Tiles begin at multiples of their size, and a row takes every tile by the same arithmetic, whichever rows share its
block: a tile in which it sees nothing leaves it as it is. So no bit of a row depends on the others, nor on T.
"""

from functools import cache
from typing import Any

from gpu.compile import device_function
from gpu.llm.attention_weights import HIDDEN, LANES, sight, weigher
from gpu.number import read
from refimpl.contract import host

__all__ = ["LANES", "ROWS", "THREADS", "placer", "sums_of", "tile_of", "walker"]

ROWS = 16
THREADS = ROWS * LANES


@host
def tile_of(head_dim: int, value_dim: int) -> tuple[int, int]:
    """Return how many keys of how many columns shared memory holds at once.

    >>> [tile_of(width, width) for width in (1, 80, 256, 512)]
    [(32, 8), (32, 80), (16, 256), (16, 256)]
    """
    width = LANES * max(1, sums_of(head_dim), sums_of(value_dim))
    return (32, width) if width <= 128 else (16, min(width, 256))


@host
def sums_of(value_dim: int) -> int:
    """Return how many columns of the values a lane sums."""
    return -(-value_dim // LANES)


@host
@cache
def placer() -> Any:
    """Return the function for kernels that says which row a thread has, and which keys its block walks over.

    It returns the token, the query head in the group, the first and the last key that it sees, not included, and the
    first and last that any row of the block sees. A row behind the last token sees nothing.
    """
    from numba import uint64

    from gpu.warp import thread

    seen, rows, lanes, one = sight(), uint64(ROWS), uint64(LANES), uint64(1)

    @device_function
    def place(begin, group, T, S, causal, window):
        row, final = begin + thread() // lanes, min(begin + rows, T * group) - one
        first, last = seen(row // group, T, S, causal, window)
        start, _ = seen(begin // group, T, S, causal, window)
        _, end = seen(final // group, T, S, causal, window)
        return row // group, row % group, (first if row <= final else last), last, start, end

    return place


@host
@cache
def walker(dtypes: tuple[str, str, str], head_dim: int, value_dim: int, mask: str, paged: bool) -> Any:
    """Return the function for kernels that takes the keys ``start`` to ``end`` into the state of each row.

    It gets the state (sums in registers, top, total), the tensors, the row (token, query head, first and last key that
    it sees), the keys (key/value head, start, end, keys in a tile, slots in a block), the scale and the cap.
    """
    from numba import cuda, float32, uint64

    from gpu.warp import thread

    tile, width = tile_of(head_dim, value_dim)
    each, whole = tile // LANES, head_dim <= width  # else the queries come in chunks too
    stage_q, stage_k, stage_v = _stage_queries(dtypes[0], head_dim, width), *(_stage_tile(x, width) for x in dtypes[1:])
    score, add, place = _score(head_dim, each, width), _add_values(value_dim, width), _place(paged)
    weigh = weigher(mask, each, sums_of(value_dim))
    of_q, of_kv, of_weights = (ROWS, width + 1), (tile, width + 1), (ROWS, tile + 1)
    zero, step, columns, columns_of_v = uint64(0), uint64(width), uint64(head_dim), uint64(value_dim)

    @device_function
    def walk(state, q, k, v, mask, table, row, keys, scale, softcap):
        (sums, top, total), (head, start, end, most, block_size) = state, keys
        q_s, kv_s = cuda.shared.array(of_q, float32), cuda.shared.array(of_kv, float32)
        weights, slots = cuda.shared.array(of_weights, float32), cuda.shared.array(tile, uint64)
        scores = cuda.local.array(each, float32)
        if whole:
            stage_q(q_s, q, row, zero, scale)
        while start < end:
            count = min(most, end - start)
            if thread() < count:
                slots[thread()] = place(start + thread(), table, block_size)
            for j in range(each):
                scores[j] = float32(0)
            for column in range(zero, columns, step):
                cuda.syncthreads()
                if not whole:
                    stage_q(q_s, q, row, column, scale)
                stage_k(kv_s, k, slots, count, head, column)
                cuda.syncthreads()
                score(scores, q_s, kv_s, column)
            top, total = weigh(sums, top, total, scores, weights, mask, row, start, count, softcap)
            for column in range(zero, columns_of_v, step):
                cuda.syncthreads()
                stage_v(kv_s, v, slots, count, head, column)
                cuda.syncthreads()
                add(sums, weights, kv_s, count, column)
            start += count
        return top, total

    return walk


@cache
def _place(paged: bool) -> Any:
    """The slot in which a key stands: its own place, or its block's by the table."""

    @device_function
    def in_order(s, table, block_size):
        return s

    @device_function
    def by_table(s, table, block_size):
        return table[s // block_size] * block_size + s % block_size

    return by_table if paged else in_order


@cache
def _stage_queries(dtype: str, head_dim: int, width: int) -> Any:
    """The lanes of a row bring its query to shared memory, scaled; a row that sees nothing may have none."""
    from numba import uint64

    from gpu.warp import thread

    wide, H, lanes = read(dtype), uint64(head_dim), uint64(LANES)

    @device_function
    def stage(q_s, q, row, column, scale):
        token, n, first, last = row
        c = thread() % lanes
        while c < uint64(width):
            if first < last and column + c < H:
                q_s[thread() // lanes, c] = wide(q[token, n, column + c]) * scale
            c += lanes

    return stage


@cache
def _stage_tile(dtype: str, width: int) -> Any:
    """The block brings columns of a tile of keys or values to shared memory, neighbours by neighbouring threads."""
    from numba import uint64

    from gpu.warp import thread

    wide, wide_width = read(dtype), uint64(width)

    @device_function
    def stage(kv_s, kv, slots, count, head, column):
        i = thread()
        while i < count * wide_width:
            s, c = i // wide_width, i % wide_width
            if column + c < uint64(kv.shape[2]):
                kv_s[s, c] = wide(kv[slots[s], head, column + c])
            i += uint64(THREADS)

    return stage


@cache
def _score(head_dim: int, each: int, width: int) -> Any:
    """A lane adds a chunk of columns to the scores of its keys: one number of the query for each of them."""
    from numba import uint64

    from gpu.warp import thread

    H, step, lanes = uint64(head_dim), uint64(width), uint64(LANES)

    @device_function
    def score(scores, q_s, kv_s, column):
        row, lane = thread() // lanes, thread() % lanes
        for c in range(uint64(0), min(step, H - column)):
            x = q_s[row, c]
            for j in range(uint64(each)):
                scores[j] += x * kv_s[lane + lanes * j, c]

    return score


@cache
def _add_values(value_dim: int, width: int) -> Any:
    """A lane adds a tile's values to its columns' sums. What is hidden is left out, for it may hold NaN."""
    from numba import float32, uint64

    from gpu.warp import thread

    lanes, hidden, each = uint64(LANES), float32(HIDDEN), uint64(min(sums_of(value_dim), width // LANES))

    @device_function
    def add(sums, weights, kv_s, count, column):
        row, lane = thread() // lanes, thread() % lanes
        for s in range(uint64(0), count):
            weight = weights[row, s]
            if weight != hidden:
                for i in range(each):
                    sums[column // lanes + i] += weight * kv_s[s, lane + lanes * i]

    return add
