"""Between projection and attention: norms of the heads, rotation by position, and the append to the cache."""

from gpu.executor.jit import inlined, jit
from gpu.executor.page import PAGE, values_of
from gpu.executor.program import words_at
from gpu.executor.rows import normalise, scale_row
from gpu.executor.vector import LANES, float_at, int_at, load_part, put_float, store_part

__all__ = ["append_token", "rotate_halves", "rotate_neighbours"]


@inlined
def rotate_halves(x, cos, sin, pairs):
    """Turn the pairs (x[i], x[i + pairs])."""
    for i in range(0, pairs, LANES):
        left, low, high = pairs - i, x + 4 * i, x + 4 * (i + pairs)
        c, s = load_part(cos + 4 * i, left), load_part(sin + 4 * i, left)
        a, b = load_part(low, left), load_part(high, left)
        store_part(low, a * c - b * s, left)
        store_part(high, b * c + a * s, left)


@inlined
def rotate_neighbours(x, cos, sin, pairs):
    """Turn the pairs (x[2 i], x[2 i + 1])."""
    for i in range(0, 4 * pairs, 4):
        c, s = float_at(cos + i), float_at(sin + i)
        a, b = float_at(x + 2 * i), float_at(x + 2 * i + 4)
        put_float(x + 2 * i, a * c - b * s)
        put_float(x + 2 * i + 4, b * c + a * s)


@jit
def _prepare_head(program, record, x, gain, bias, t):
    """Normalise a head by a gain of its own, and turn it by the position of token ``t``, where the layer does."""
    if gain and record.by_rows == 0:
        normalise(program, gain, bias, x, x, program.head_dim)
    pairs = record.rope_pairs
    if record.interleaved:
        rotate_neighbours(x, record.cos + 4 * pairs * t, record.sin + 4 * pairs * t, pairs)
    else:
        rotate_halves(x, record.cos + 4 * pairs * t, record.sin + 4 * pairs * t, pairs)


@jit
def append_token(program, record, layer, t, head):
    """Prepare the queries and the key of token ``t`` and key/value head ``head``; put key and value in their page."""
    head_dim = program.head_dim
    for g in range(head * program.group, (head + 1) * program.group):
        query = program.q + t * program.q_stride + 4 * g * head_dim
        _prepare_head(program, record, query, record.q_gain, record.q_bias, t)
        if record.growth:
            scale_row(query, head_dim, float_at(record.growth + 4 * t))
    key = program.k + t * program.k_stride + 4 * head * head_dim
    value = program.v + t * program.v_stride + 4 * head * head_dim
    _prepare_head(program, record, key, record.k_gain, record.k_bias, t)
    position = words_at(program.positions, program.tokens)[t]
    table = words_at(program.tables, program.tokens)[t]
    page = int_at(table + 8 * (position // PAGE)) + layer * program.layer_bytes + head * program.head_bytes
    slot = position % PAGE
    for i in range(head_dim):
        put_float(page + 4 * (i * PAGE + slot), float_at(key + 4 * i))
    values = values_of(page, program.value_dim) + 4 * slot * program.value_dim
    for i in range(0, head_dim, LANES):
        store_part(values + 4 * i, load_part(value + 4 * i, head_dim - i), head_dim - i)
