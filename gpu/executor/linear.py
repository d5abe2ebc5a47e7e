"""Linear maps on the CPU: y = x w^T + b over packed tiles, bitwise the same for any batch.

Every y[t, o] is one chain of fused multiply-adds over the columns in order, from 0, and the bias added last:

    s = 0;   s = fma(w[o, k], x[t, k], s)   k = 0 .. D - 1;   y[t, o] = s + b[o]

with w exactly as refimpl dequantises it. One token unpacks weights in registers (``dot_tile``); more tokens unpack
a stretch of columns of a tile into a panel float32 [columns, 32] once and carry 12 tokens x 32 rows of sums over it
at a time (``advance``); sums wait in scratch between stretches. The chain is the same either way, so the bits are.
"""

import numpy as np

from gpu.executor.decode import dot_tile, unpack_tile
from gpu.executor.jit import jit
from gpu.executor.lanes import GROUPS, ROWS, advance, inlined, load_float, load_floats, splat, store, store_float
from gpu.executor.pack import FORMATS

__all__ = ["SCRATCH_BYTES", "embedding_row", "linear_rows"]

_STRETCH = 512  # columns of a panel: 64 KiB, well inside the second level of cache
_TOKENS = 256  # tokens whose sums wait in scratch
_PANEL_BYTES = _STRETCH * ROWS * 4
SCRATCH_BYTES = _PANEL_BYTES + _TOKENS * ROWS * 4
"""What a thread lends to a call, beginning with a cache line."""

_FLOAT32 = list(FORMATS).index("float32")
_COLUMN_BYTES = tuple((32 * layout.bytes, layout.elements) for layout in FORMATS.values())
_ZERO = np.float32(0)
_MOST, _MORE = GROUPS[0], GROUPS[1]


@inlined
def _bytes_of(form, columns):
    """Return the bytes of a tile of that many columns."""
    size, elements = _COLUMN_BYTES[form]
    return columns // elements * size


@inlined
def _advance_all(sums, x, x_stride, tokens, panel, columns):
    """``advance`` for any number of tokens."""
    t = 0
    while t + _MOST <= tokens:
        advance(_MOST, sums + 128 * t, x + t * x_stride, x_stride, panel, columns)
        t += _MOST
    while t + _MORE <= tokens:
        advance(_MORE, sums + 128 * t, x + t * x_stride, x_stride, panel, columns)
        t += _MORE
    if t + 4 <= tokens:
        advance(4, sums + 128 * t, x + t * x_stride, x_stride, panel, columns)
        t += 4
    if t + 2 <= tokens:
        advance(2, sums + 128 * t, x + t * x_stride, x_stride, panel, columns)
        t += 2
    if t < tokens:
        advance(1, sums + 128 * t, x + t * x_stride, x_stride, panel, columns)


@inlined
def _finish(sums, first_row, rows, tokens, y, y_stride, bias):
    """Add the bias and write the sums of a tile; rows that only fill the tile are left out."""
    count = min(ROWS, rows - first_row)
    at = 4 * first_row
    for t in range(tokens):
        if count == ROWS:
            total = load_floats(sums + 128 * t)
            if bias:
                total = total + load_floats(bias + at)
            store(y + t * y_stride + at, total)
        else:
            for row in range(count):
                value = load_float(sums + 128 * t + 4 * row)
                if bias:
                    value += load_float(bias + at + 4 * row)
                store_float(y + t * y_stride + at + 4 * row, value)


@inlined
def _sum_tile(form, tile, width, x, x_stride, tokens, sums, panel):
    """Leave the sums of a tile for a few tokens in ``sums``."""
    if tokens == 1:
        store(sums, dot_tile(form, tile, width, x))
        return
    for t in range(tokens):
        store(sums + 128 * t, splat(_ZERO))
    for first in range(0, width, _STRETCH):
        columns = min(_STRETCH, width - first)
        part = tile + _bytes_of(form, first)
        if form != _FLOAT32:
            unpack_tile(form, part, columns, panel)
            part = panel
        _advance_all(sums, x + 4 * first, x_stride, tokens, part, columns)


@jit
def linear_rows(form, packed, width, rows, begin, end, x, x_stride, tokens, y, y_stride, bias, scratch):
    """Write y[:, 32 begin : 32 end] = x w^T + b.

    form: code of the format; packed: address of the tiles of w [rows, width]; begin, end: tiles of this call;
    x float32 [tokens, width] and y float32 [tokens, rows]: addresses and bytes between rows; bias: address or 0;
    scratch: address of SCRATCH_BYTES bytes. Strides that are multiples of 4096 bytes make cache lines collide.
    """
    tile_bytes = _bytes_of(form, width)
    sums = scratch + _PANEL_BYTES
    for first in range(0, tokens, _TOKENS):
        count = min(_TOKENS, tokens - first)
        for tile in range(begin, end):
            _sum_tile(form, packed + tile * tile_bytes, width, x + first * x_stride, x_stride, count, sums, scratch)
            _finish(sums, ROWS * tile, rows, count, y + first * y_stride, y_stride, bias)


@jit
def embedding_row(form, packed, width, row, out, scratch):
    """Write row ``row`` of the packed matrix to float32 ``out``, through scratch of SCRATCH_BYTES."""
    tile = packed + row // ROWS * _bytes_of(form, width)
    for first in range(0, width, _STRETCH):
        columns = min(_STRETCH, width - first)
        unpack_tile(form, tile + _bytes_of(form, first), columns, scratch)
        for k in range(columns):
            store_float(out + 4 * (first + k), load_float(scratch + 128 * k + 4 * (row % ROWS)))
