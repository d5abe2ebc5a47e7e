"""Paged attention on the CPU: queries of one sequence and one key/value head against its pages of 16 tokens.

The arithmetic of a query is fixed by its position and window alone:

* keys are taken in splits of 256 at absolute positions; within a split the scores of the visible keys get one
  maximum, one exponential each, one sum of 16 partial sums, and the values are added key after key;
* splits are merged in ascending order; a sink comes last, and adds to the denominator alone.

So neither the number of queries at hand, nor the pages' places, nor which thread takes which split can move a bit.
A key that a query may not see is left out of its sums (not multiplied by 0): garbage in unused slots is never read
into a result.
"""

from gpu.executor.elementary import cap, exp
from gpu.executor.jit import inlined, jit
from gpu.executor.page import PAGE, score_page, sum_one, sum_three, values_of
from gpu.executor.vector import (
    LANES,
    fma,
    fold_max,
    fold_sum,
    int_at,
    keep,
    load,
    splat,
    splat_at,
    store,
    store_part,
    vmax,
)  # fmt: skip

__all__ = ["SPLIT", "attend_split", "finish", "first_split", "fold", "partial_floats"]

SPLIT = 256
_ROW = 4 * SPLIT  # bytes of a row of scores
_NEVER = float("-inf")


@inlined
def partial_floats(value_dim):
    """Return the floats of one query's part: its sum of values, its maximum and its denominator in all lanes."""
    return value_dim + 2 * LANES


@jit
def _softmax_row(scores, first, last, scale, softcap, peak_at):
    """Turn the scores first..last-1 of a row into exponentials; write their maximum and sum at ``peak_at``."""
    peak = splat(_NEVER)
    for i in range(first // LANES * LANES, last, LANES):
        part = load(scores + 4 * i) * splat(scale)
        if softcap != 0:
            part = cap(part, softcap)
        part = keep(part, first - i, last - i, splat(_NEVER))
        store(scores + 4 * i, part)
        peak = vmax(part, peak)
    peak, total = splat(fold_max(peak)), splat(0.0)
    for i in range(first // LANES * LANES, last, LANES):
        part = exp(load(scores + 4 * i) - peak)
        store(scores + 4 * i, part)
        total = total + part
    store(peak_at, peak)
    store(peak_at + 64, splat(fold_sum(total)))


@inlined
def _first_key(position, window):
    """Return the first key that a query there sees: the first of ``window`` keys, or of a chunk of ``-window``."""
    if window < 0:
        return position // -window * -window
    return max(0, position + 1 - window)


@inlined
def _first_visible(position, window, split):
    """Return the first key of the split that a query there sees."""
    return max(split * SPLIT, _first_key(position, window))


@inlined
def _last_visible(position, split):
    """Return the end of the keys of the split that a query there sees."""
    return min((split + 1) * SPLIT, position + 1)


@jit
def _sum_page(page, split, positions, window, group, rows, scores, values, value_dim, out):
    """Add a page's values to the rows, each over its own visible keys; three rows at once where they see the same."""
    stride, start = 4 * partial_floats(value_dim), page * PAGE
    row = 0
    while row < rows:
        position = positions[row // group]
        first = max(_first_visible(position, window, split), start)
        last = min(_last_visible(position, split), start + PAGE)
        alike = row + 3 <= rows
        if alike:
            other = positions[(row + 2) // group]
            alike = first == max(_first_visible(other, window, split), start) and last == min(
                _last_visible(other, split), start + PAGE
            )
        p = scores + row * _ROW + 4 * (first - split * SPLIT)
        v = values + 4 * (first - start) * value_dim
        if alike:
            sum_three(p, _ROW, v, value_dim, last - first, out + row * stride, stride)
            row += 3
        else:
            sum_one(p, v, value_dim, last - first, out + row * stride)
            row += 1


@jit
def attend_split(q, positions, group, head_dim, value_dim, window, scale, softcap, table, offset, split, scores, out):
    """Write the parts of one split: for each row the sum of its values, its maximum and its denominator.

    ``q``       dense rows, ``group`` heads for each of the ascending ``positions`` of one sequence
    ``table``   address of the sequence's page addresses; ``offset`` leads from a page to this layer's head in it
    ``window``  keys seen, the query's own included; negative: those of its chunk of so many positions up to its own
    ``softcap`` bound of the scaled scores, or 0
    ``scores``  room for a row of 256 floats for each row of q
    """
    rows, stride = len(positions) * group, 4 * partial_floats(value_dim)
    first = _first_visible(positions[0], window, split)
    last = _last_visible(positions[-1], split)
    pages = (last + PAGE - 1) // PAGE
    for page in range(first // PAGE, pages):
        keys = int_at(table + 8 * page) + offset
        score_page(q, rows, keys, head_dim, scores + 4 * (page * PAGE - split * SPLIT), _ROW)
    for row in range(rows):
        position, part = positions[row // group], out + row * stride
        for v in range(0, 4 * value_dim, 64):
            store(part + v, splat(0.0))
        begin = _first_visible(position, window, split) - split * SPLIT
        end = _last_visible(position, split) - split * SPLIT
        _softmax_row(scores + row * _ROW, begin, end, scale, softcap, part + 4 * value_dim)
    for page in range(first // PAGE, pages):
        values = values_of(int_at(table + 8 * page) + offset, value_dim)
        _sum_page(page, split, positions, window, group, rows, scores, values, value_dim, out)


@inlined
def first_split(position, window):
    """Return the first split of which a query sees anything."""
    return _first_key(position, window) // SPLIT


@jit
def fold(total, part, split, position, window, value_dim):
    """Fold a split's part of a query into the total of the splits before it."""
    if split < first_split(position, window) or split > position // SPLIT:
        return
    peak, weight = total + 4 * value_dim, part + 4 * value_dim
    if split == first_split(position, window):
        for v in range(0, 4 * partial_floats(value_dim), 64):
            store(total + v, load(part + v))
        return
    m, n = load(peak), load(weight)
    top = vmax(m, n)
    a, b = exp(m - top), exp(n - top)
    for v in range(0, 4 * value_dim, 64):
        store(total + v, fma(load(part + v), b, load(total + v) * a))
    store(peak, top)
    store(peak + 64, fma(load(weight + 64), b, load(peak + 64) * a))


@jit
def finish(total, value_dim, head_dim, sink, out):
    """Divide a query's sum of values by its denominator, in which the score at address ``sink`` (0: none) shares."""
    denominator = load(total + 4 * value_dim + 64)
    if sink:
        denominator = denominator + exp(splat_at(sink) - load(total + 4 * value_dim))
    for i in range(0, head_dim, LANES):
        store_part(out + 4 * i, load(total + 4 * i) / denominator, head_dim - i)
