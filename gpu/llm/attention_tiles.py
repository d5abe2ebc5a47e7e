"""What a block does in every attention kernel of Numba: 16 rows walk over tiles of the keys of one head.

A row is one query head of one token; the rows of a key/value head are its G query heads for each token in turn, so
that a block reads a tile once for 16 rows. Eight lanes share a row: of a tile each scores every eighth key, and of the
values each sums every eighth column, in registers. Shared memory holds the block's queries and one tile, first of the
keys and then of the values, and the weights. Its rows are padded: eight keys, read by eight lanes, begin one bank
after the other; the four rows of a warp, of queries or weights, begin 8 or 24 banks apart.

Tiles begin at multiples of their size, and a row takes every tile by the same arithmetic, whichever rows share its
block: a tile in which it sees nothing leaves it as it is. So no bit of a row depends on the others, nor on T. Tiles
that no row of the block sees are not read: those before its first row's first key, and those in its first row's gap.
"""

from functools import cache
from typing import Any

from gpu.compile import device_function
from gpu.llm.attention_weights import HIDDEN, LANES, padded, sight, weigher
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
    """Return how many columns of the values a lane sums; room for one where there are none."""
    return max(1, -(-value_dim // LANES))


@host
@cache
def placer() -> Any:
    """Return the function for kernels that says which row a thread has, and which keys its block walks over.

    It returns the token, the query head in the group, and what it sees, as ``sight`` has it; then the first and last
    key that any row of the block sees, and the gap that all of them have. A row behind the last token sees nothing.
    """
    from numba import uint64

    from gpu.warp import thread

    seen, rows, lanes, one = sight(), uint64(ROWS), uint64(LANES), uint64(1)

    @device_function
    def place(begin, group, T, S, rules):
        row, final = begin + thread() // lanes, min(begin + rows, T * group) - one
        first, last, gap, again = seen(row // group, T, S, rules)
        start, _, skip, resume = seen(begin // group, T, S, rules)
        _, end, _, _ = seen(final // group, T, S, rules)
        sees = (first if row <= final else last), last, gap, again
        return row // group, row % group, sees, start, end, skip, resume

    return place


@host
@cache
def walker(dtypes: tuple[str, str, str], head_dim: int, value_dim: int, mask: str, paged: bool) -> Any:
    """Return the function for kernels that takes the keys ``start`` to ``end`` into the state of each row.

    It gets the state (sums in registers, top, total), the tensors, the row (token, query head, what it sees), the keys
    (key/value head, start, end, keys in a tile, slots in a block, and a gap to skip), the scale and the cap.
    """
    from numba import cuda, float32, uint64

    tile, width = tile_of(head_dim, value_dim)
    each, whole = tile // LANES, head_dim <= width  # else the queries come in chunks too
    find, stage_q, stage_k, score, weigh, stage_v, add = _steps(dtypes, head_dim, value_dim, mask, paged)
    size_q, size_kv, size_weights = ROWS * padded(width), tile * (width + 1), ROWS * padded(tile)
    zero, step, columns, columns_of_v = uint64(0), uint64(width), uint64(head_dim), uint64(value_dim)

    @device_function
    def walk(state, q, k, v, mask, table, row, keys, scale, softcap):
        (sums, top, total), (head, start, end, most, block_size, gap, again) = state, keys
        q_s, kv_s = cuda.shared.array(size_q, float32), cuda.shared.array(size_kv, float32)
        weights, slots = cuda.shared.array(size_weights, float32), cuda.shared.array(tile, uint64)
        scores = cuda.local.array(each, float32)
        live = row[2] < row[3]  # a block of a short chunk has rows, and warps, that only help to stage
        if whole:
            stage_q(q_s, q, row, zero, scale)
        while start < end:
            count = min(most, end - start)
            find(slots, start, count, table, block_size)
            for j in range(each):
                scores[j] = float32(0)
            for column in range(zero, columns, step):
                cuda.syncthreads()
                if not whole:
                    stage_q(q_s, q, row, column, scale)
                stage_k(kv_s, k, slots, count, head, column)
                cuda.syncthreads()
                if live:
                    score(scores, q_s, kv_s, column)
            top, total = weigh(sums, top, total, scores, weights, mask, row, start, count, softcap)
            for column in range(zero, columns_of_v, step):
                cuda.syncthreads()
                stage_v(kv_s, v, slots, count, head, column)
                cuda.syncthreads()
                if live:
                    add(sums, weights, kv_s, count, column)
            start = max(start + count, again // most * most) if start + count >= gap else start + count
        return top, total

    return walk


@cache
def _steps(dtypes: tuple[str, str, str], head_dim: int, value_dim: int, mask: str, paged: bool) -> tuple[Any, ...]:
    """What is done to a tile, in order."""
    tile, width = tile_of(head_dim, value_dim)
    return (
        _find_slots(paged),
        _stage_queries(dtypes[0], head_dim, width),
        _stage_tile(dtypes[1], head_dim, tile, width),
        _score(head_dim, tile // LANES, width),
        weigher(mask, tile // LANES, sums_of(value_dim)),
        _stage_tile(dtypes[2], value_dim, tile, width),
        _add_values(value_dim, tile, width),
    )


@cache
def _find_slots(paged: bool) -> Any:
    """A thread finds the slot of one key of the tile: its own place, or that in its block, by the table."""
    from gpu.warp import thread

    @device_function
    def in_order(slots, start, count, table, block_size):
        if thread() < count:
            slots[thread()] = start + thread()

    @device_function
    def by_table(slots, start, count, table, block_size):
        if thread() < count:
            s = start + thread()
            slots[thread()] = table[s // block_size] * block_size + s % block_size

    return by_table if paged else in_order


@cache
def _stage_queries(dtype: str, head_dim: int, width: int) -> Any:
    """The lanes of a row bring its query to shared memory, scaled; a row that sees nothing may have none."""
    from numba import uint64

    from gpu.warp import thread

    wide, H, lanes, chunk, stride = read(dtype), uint64(head_dim), uint64(LANES), uint64(width), uint64(padded(width))

    @device_function
    def stage(q_s, q, row, column, scale):
        mine, c = thread() // lanes * stride, thread() % lanes
        if row[2] < row[3]:
            while c < chunk and column + c < H:
                q_s[mine + c] = wide(q[row[0], row[1], column + c]) * scale
                c += lanes

    return stage


@cache
def _stage_tile(dtype: str, columns: int, tile: int, width: int) -> Any:
    """The block brings a chunk of columns of a tile to shared memory: each warp every fourth key, all loads at once."""
    from numba import cuda, float32, uint64

    from gpu.warp import lane, warp

    wide, end, chunk, stride = read(dtype), uint64(columns), uint64(width), uint64(width + 1)
    warps, strip, keys, strips = uint64(THREADS // 32), uint64(32), tile // (THREADS // 32), -(-width // 32)
    size = keys * strips

    @device_function
    def stage(kv_s, kv, slots, count, head, column):
        held = cuda.local.array(size, float32)
        for j in range(uint64(keys)):
            s = warp() + warps * j
            line = kv[slots[s], head]
            for i in range(uint64(strips)):
                number, c = float32(0), lane() + strip * i
                if s < count and c < chunk and column + c < end:
                    number = wide(line[column + c])
                held[j * uint64(strips) + i] = number
        for j in range(uint64(keys)):
            for i in range(uint64(strips)):
                if lane() + strip * i < chunk:
                    kv_s[(warp() + warps * j) * stride + lane() + strip * i] = held[j * uint64(strips) + i]

    return stage


@cache
def _score(head_dim: int, each: int, width: int) -> Any:
    """A lane adds a chunk of columns to the scores of its keys: one number of the query for each of them."""
    from numba import uint64

    from gpu.warp import thread

    H, lanes, chunk = uint64(head_dim), uint64(LANES), uint64(width)
    of_q, of_kv, one = uint64(padded(width)), uint64(width + 1), uint64(1)

    @device_function
    def score(scores, q_s, kv_s, column):
        mine, theirs = thread() // lanes * of_q, thread() % lanes * of_kv
        end = mine + min(chunk, H - column)
        while mine < end:
            x = q_s[mine]
            for j in range(uint64(each)):
                scores[j] += x * kv_s[theirs + lanes * j * of_kv]
            mine, theirs = mine + one, theirs + one

    return score


@cache
def _add_values(value_dim: int, tile: int, width: int) -> Any:
    """A lane adds a tile's values to its columns' sums. What is hidden is left out, for it may hold NaN."""
    from numba import float32, uint64

    from gpu.warp import thread

    lanes, hidden, each = uint64(LANES), float32(HIDDEN), uint64(min(sums_of(value_dim), width // LANES))
    of_weights, of_kv, one = uint64(padded(tile)), uint64(width + 1), uint64(1)

    @device_function
    def add(sums, weights, kv_s, count, column):
        mine, theirs = thread() // lanes * of_weights, thread() % lanes
        end = mine + count
        while mine < end:
            weight = weights[mine]
            if weight != hidden:
                for i in range(each):
                    sums[column // lanes + i] += weight * kv_s[theirs + lanes * i]
            mine, theirs = mine + one, theirs + of_kv

    return add
