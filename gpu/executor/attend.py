"""The phases of a layer between its projections: append keys and values to the cache, then mix the values."""

from gpu.executor.attention import attend_split, finish, first_split, fold, partial_floats
from gpu.executor.jit import inlined, jit
from gpu.executor.program import layer_at, tile_at, words_at
from gpu.executor.rotary import append_token
from gpu.executor.rows import normalise
from gpu.executor.team import tasks
from gpu.executor.vector import LANES, load_part, store_part

__all__ = ["append", "attend"]


@jit
def append(program, team, layer):
    """Turn queries and keys by their positions, and append keys and values to the cache."""
    record = layer_at(program, layer)
    if record.by_rows:
        for t in tasks(team, program.tokens):
            q, k, width = program.q + t * program.q_stride, program.k + t * program.k_stride, program.head_dim
            normalise(program, record.q_gain, record.q_bias, q, q, program.heads * width)
            normalise(program, record.k_gain, record.k_bias, k, k, program.kv_heads * width)
    for task in tasks(team, program.tokens * program.kv_heads):
        append_token(program, record, layer, task // program.kv_heads, task % program.kv_heads)


@jit
def _gather_queries(q, q_stride, count, group, head_dim, out):
    """Copy ``group`` heads of ``count`` tokens to dense rows."""
    width = group * head_dim
    for query in range(count):
        for i in range(0, width, LANES):
            part = load_part(q + query * q_stride + 4 * i, width - i)
            store_part(out + 4 * (query * width + i), part, width - i)


@inlined
def _sink(record, head):
    """Return the address of a head's sink, or 0."""
    return record.sinks + 4 * head if record.sinks else 0


@jit
def _attend_tile(program, team, layer, tile, head):
    """Attend the queries of a tile to one key/value head; leave the result in ``mixed``, or its part in ``parts``."""
    record = layer_at(program, layer)
    window = record.window
    positions = words_at(program.positions, program.tokens)[tile.row : tile.row + tile.count]
    table = words_at(program.tables, program.tokens)[tile.row]
    group, head_dim, value_dim = program.group, program.head_dim, program.value_dim
    offset = layer * program.layer_bytes + head * program.head_bytes
    rows, size = tile.count * group, 4 * partial_floats(value_dim)
    q = team.scratch
    scores = q + 64 * ((rows * head_dim + LANES - 1) // LANES)
    part = scores + 1024 * rows
    total = part + rows * size
    first = max(tile.first, first_split(positions[0], window))
    source = program.q + tile.row * program.q_stride + 4 * head * group * head_dim
    _gather_queries(source, program.q_stride, tile.count, group, head_dim, q)
    if tile.part >= 0:
        part = program.parts + (tile.part * program.kv_heads + head) * group * size
    for split in range(first, tile.last):
        attend_split(
            q, positions, group, head_dim, value_dim, window, record.scale, record.softcap, table, offset, split,
            scores, part,
        )  # fmt: skip
        if tile.part < 0:
            for row in range(rows):
                fold(total + row * size, part + row * size, split, positions[row // group], window, value_dim)
    if tile.part < 0:
        for row in range(rows):
            out, place = program.mixed + (tile.row + row // group) * program.mixed_stride, head * group + row % group
            sink = _sink(record, place)
            finish(total + row * size, value_dim, head_dim, sink, out + 4 * place * head_dim)


@jit
def _merge_query(program, team, layer, tile, head):
    """Join the parts of one query's heads, which threads attended split by split, into ``mixed``."""
    record = layer_at(program, layer)
    window = record.window
    position = words_at(program.positions, program.tokens)[tile.row]
    size = 4 * partial_floats(program.value_dim)
    out = program.mixed + tile.row * program.mixed_stride
    for row in range(program.group):
        for split in range(tile.first, tile.last):
            place = (tile.part + split - tile.first) * program.kv_heads + head
            part = program.parts + (place * program.group + row) * size
            fold(team.scratch, part, split, position, window, program.value_dim)
        place = head * program.group + row
        target = out + 4 * place * program.head_dim
        finish(team.scratch, program.value_dim, program.head_dim, _sink(record, place), target)


@jit
def attend(program, team, layer):
    """Mix the values: tiles of queries by key/value heads, then the joining of parts."""
    for task in tasks(team, program.tile_count * program.kv_heads):
        tile = tile_at(program.tiles, task // program.kv_heads)
        _attend_tile(program, team, layer, tile, task % program.kv_heads)
    if program.merge_count:
        for task in tasks(team, program.merge_count * program.kv_heads):
            tile = tile_at(program.merges, task // program.kv_heads)
            _merge_query(program, team, layer, tile, task % program.kv_heads)
