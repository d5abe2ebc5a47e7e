"""Linear maps on the CPU: y = x w^T + b over packed tiles, bitwise the same for any batch.

Every y[t, o] is one chain of fused multiply-adds over the columns in order, from 0, and the bias added last:

    s = 0;   s = fma(w[o, k], x[t, k], s)   k = 0 .. D - 1;   y[t, o] = s + b[o]

with w exactly as refimpl dequantises it. One token unpacks weights in registers (``_dot_tile``); more tokens unpack
a stretch of columns of a tile into a panel float32 [columns, 32] once and carry 12 tokens x 32 rows of sums over it
at a time (``_carry_sums``); sums wait in scratch between stretches. The chain is the same, so the bits are.
"""

import numba
from numba.extending import intrinsic

from .decode import columns_of
from .jit import jit
from .lanes import ROWS, Value, Variable, emit, fma, has, load_floats, loop, store, when, zeros
from .pack import FORMATS

__all__ = ["SCRATCH_BYTES", "embedding_row", "finish_tile", "linear_rows"]

_STRETCH = 256  # columns of a panel: 32 KiB, the size of a first-level cache
_TOKENS = 256  # tokens whose sums wait in scratch
_PANEL_BYTES = _STRETCH * ROWS * 4
SCRATCH_BYTES = _PANEL_BYTES + _TOKENS * ROWS * 4
"""What a thread lends to a call, beginning with a cache line."""

_FLOAT32 = list(FORMATS).index("float32")
_TILE_BLOCKS = tuple((layout.elements, ROWS * layout.bytes) for layout in FORMATS.values())

# 32 registers of 16 lanes hold the sums of 12 tokens x 32 rows; 16 registers of 8 lanes those of 6 tokens x 16 rows.
_PASS, _GROUPS = (ROWS, (12, 8, 4, 2, 1)) if has("avx512f") else (ROWS // 2, (6, 4, 2, 1))

inlined = numba.njit(inline="always")  # by Numba itself: no code of their own to optimise and throw away


def _write_dot(form: Value, tile: Value, width: Value, x: Value, sums: Value) -> None:
    for code, name in enumerate(FORMATS):
        with when(form, code):
            total = Variable(zeros(x))
            for k, weights in columns_of(name, tile, width):
                for j, w in enumerate(weights):
                    total.set(fma(w, load_floats(x + k * 4 + 4 * j, 0), total.get()))
            store(sums, total.get())


@intrinsic
def _dot_tile(context, form, tile, width, x, sums):
    """Write the sums of one token for a tile to float32 [32] ``sums``."""
    return emit(_write_dot, (form, tile, width, x, sums))


def _write_panel(form: Value, tile: Value, width: Value, panel: Value) -> None:
    for code, name in enumerate(FORMATS):
        with when(form, code):
            for k, weights in columns_of(name, tile, width):
                for j, w in enumerate(weights):
                    store(panel + k * (4 * ROWS) + 4 * ROWS * j, w)


@intrinsic
def _unpack_tile(context, form, tile, width, panel):
    """Write columns of a tile to float32 [width, 32] ``panel``."""
    return emit(_write_panel, (form, tile, width, panel))


def _write_group(tokens: int, sums: Value, x: Value, stride: Value, panel: Value, width: Value) -> None:
    for first in range(0, 4 * ROWS, 4 * _PASS):
        places = [sums + first + 4 * ROWS * t for t in range(tokens)]
        totals = [Variable(load_floats(place, _PASS)) for place in places]
        for k in loop(width):
            w = load_floats(panel + first + k * (4 * ROWS), _PASS)
            for t, total in enumerate(totals):
                total.set(fma(w, load_floats(x + stride * t + k * 4, 0), total.get()))
        for place, total in zip(places, totals, strict=True):
            store(place, total.get())


def _write_groups(sums: Value, x: Value, stride: Value, tokens: Value, panel: Value, width: Value) -> None:
    for size in _GROUPS:
        for n in loop(tokens // size):
            _write_group(size, sums + n * (4 * ROWS * size), x + n * size * stride, stride, panel, width)
        done = tokens // size * size
        sums, x, tokens = sums + done * (4 * ROWS), x + done * stride, tokens % size


@intrinsic
def _carry_sums(context, sums, x, stride, tokens, panel, width):
    """Carry the chains float32 [tokens, 32] ``sums`` on over a panel; ``x`` [tokens, width], ``stride`` bytes apart."""
    return emit(_write_groups, (sums, x, stride, tokens, panel, width))


@intrinsic
def _clear(context, sums):
    """Set 32 sums to 0."""
    return emit(lambda sums: store(sums, zeros(sums)), (sums,))


@intrinsic(prefer_literal=True)
def _put(context, lanes, source, target):
    """Copy 32 floats, or one where ``lanes`` is 0."""
    return emit(lambda lanes, source, target: store(target, load_floats(source, lanes)), (lanes, source, target))


def _write_sum(lanes: int, left: Value, right: Value, target: Value) -> None:
    store(target, load_floats(left, lanes) + load_floats(right, lanes))


@intrinsic(prefer_literal=True)
def _put_sum(context, lanes, left, right, target):
    """Write sums of 32 floats, or one where ``lanes`` is 0."""
    return emit(_write_sum, (lanes, left, right, target))


@inlined
def _tile_bytes(form, width):
    """Return the bytes of a tile of that many columns."""
    elements, size = _TILE_BLOCKS[form]
    return width // elements * size


@inlined
def _sum_tile(form, tile, width, x, stride, tokens, sums, panel):
    """Leave the sums of a tile for up to _TOKENS tokens in ``sums``."""
    if tokens == 1:
        _dot_tile(form, tile, width, x, sums)
    else:
        for t in range(tokens):
            _clear(sums + 4 * ROWS * t)
        for first in range(0, width, _STRETCH):
            columns = min(_STRETCH, width - first)
            part = tile + _tile_bytes(form, first)
            if form != _FLOAT32:  # a tile of float32 is a panel
                _unpack_tile(form, part, columns, panel)
                part = panel
            _carry_sums(sums, x + 4 * first, stride, tokens, part, columns)


@inlined
def finish_tile(sums, first_row, rows, tokens, y, stride, bias):
    """Add the bias to the sums of a tile and write them; rows that only fill the tile are left out."""
    whole = first_row + ROWS <= rows
    at = 4 * first_row
    for t in range(tokens):
        source, target = sums + 4 * ROWS * t, y + at + stride * t
        if whole and bias:
            _put_sum(ROWS, source, bias + at, target)
        elif whole:
            _put(ROWS, source, target)
        else:
            for i in range(0, 4 * (rows - first_row), 4):
                if bias:
                    _put_sum(0, source + i, bias + at + i, target + i)
                else:
                    _put(0, source + i, target + i)


@jit
def linear_rows(form, packed, width, rows, begin, end, x, x_stride, tokens, y, y_stride, bias, scratch):
    """Write y[:, 32 begin : 32 end] = x w^T + b.

    form: code of the format; packed: address of the tiles of w [rows, width]; begin, end: tiles of this call;
    x float32 [tokens, width] and y float32 [tokens, rows]: addresses and bytes between rows; bias: address or 0;
    scratch: address of SCRATCH_BYTES bytes. Strides that are multiples of 4096 bytes make cache lines collide.
    """
    size, sums = _tile_bytes(form, width), scratch + _PANEL_BYTES
    for first in range(0, tokens, _TOKENS):
        count = min(_TOKENS, tokens - first)
        for tile in range(begin, end):
            _sum_tile(form, packed + tile * size, width, x + first * x_stride, x_stride, count, sums, scratch)
            finish_tile(sums, ROWS * tile, rows, count, y + first * y_stride, y_stride, bias)


@jit
def embedding_row(form, packed, width, row, out, scratch):
    """Write row ``row`` of the packed matrix to float32 ``out``, through scratch of SCRATCH_BYTES."""
    tile = packed + row // ROWS * _tile_bytes(form, width)
    for first in range(0, width, _STRETCH):
        columns = min(_STRETCH, width - first)
        _unpack_tile(form, tile + _tile_bytes(form, first), columns, scratch)
        for k in range(columns):
            _put(0, scratch + 4 * ROWS * k + 4 * (row % ROWS), out + 4 * (first + k))
