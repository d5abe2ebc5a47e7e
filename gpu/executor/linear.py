"""Linear maps on the CPU: y = x w^T + b over packed tiles, bitwise the same for any batch.

Every y[t, o] is one chain of fused multiply-adds over the columns in order, from 0, and the bias added last:

    s = 0;   s = fma(w[o, k], x[t, k], s)   k = 0 .. D - 1;   y[t, o] = s + b[o]

with w exactly as refimpl dequantises it. One token unpacks weights in registers (``_dot_tile``); more tokens unpack
a stretch of columns of a tile into a panel float32 [columns, 32] once and carry 12 tokens x 32 rows of sums over it
at a time (``_advance``); sums wait in scratch between stretches. The chain is the same either way, so the bits are.
"""

from numba.extending import intrinsic

from gpu.executor.decode import columns_of
from gpu.executor.jit import jit
from gpu.executor.lanes import ROWS, Value, Variable, emit, fma, has, load_floats, loop, splat, store, when
from gpu.executor.pack import FORMATS

__all__ = ["SCRATCH_BYTES", "embedding_row", "linear_rows"]

_STRETCH = 256  # columns of a panel: 32 KiB, the size of a first-level cache
_TOKENS = 256  # tokens whose sums wait in scratch
_PANEL_BYTES = _STRETCH * ROWS * 4
SCRATCH_BYTES = _PANEL_BYTES + _TOKENS * ROWS * 4
"""What a thread lends to a call, beginning with a cache line."""

_FLOAT32 = list(FORMATS).index("float32")
_COLUMN_BYTES = tuple((32 * layout.bytes, layout.elements) for layout in FORMATS.values())
_SIXTEEN_LANES = has("avx512f")  # 32 registers of 16 lanes hold 12 tokens x 32 rows of sums; elsewhere 16 rows a pass
_PASS = ROWS if _SIXTEEN_LANES else ROWS // 2
_MOST, _MORE = (12, 8) if _SIXTEEN_LANES else (6, 6)


def _write_dot(form: Value, tile: Value, width: Value, x: Value, sums: Value) -> None:
    for code, name in enumerate(FORMATS):
        with when(form, code):
            total = Variable(splat(load_floats(x, 0)) * 0.0)
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
                    store(panel + k * 128 + 128 * j, w)


@intrinsic
def _unpack_tile(context, form, tile, width, panel):
    """Write columns of a tile to float32 [width, 32] ``panel``."""
    return emit(_write_panel, (form, tile, width, panel))


def _write_advance(tokens: int, sums: Value, x: Value, stride: Value, panel: Value, columns: Value) -> None:
    for first in range(0, 4 * ROWS, 4 * _PASS):
        places = [sums + first + 4 * ROWS * t for t in range(tokens)]
        totals = [Variable(load_floats(place, _PASS)) for place in places]
        for k in loop(columns):
            w = load_floats(panel + first + k * (4 * ROWS), _PASS)
            for t, total in enumerate(totals):
                total.set(fma(w, load_floats(x + stride * t + k * 4, 0), total.get()))
        for place, total in zip(places, totals, strict=True):
            store(place, total.get())


@intrinsic(prefer_literal=True)
def _advance(context, tokens, sums, x, stride, panel, columns):
    """Carry the chains of ``tokens`` x 32 sums on over the columns of a panel of float32 [columns, 32].

    sums float32 [tokens, 32]; x: ``columns`` float32 for each token, ``stride`` bytes apart.
    """
    return emit(_write_advance, (tokens, sums, x, stride, panel, columns))


def _write_finish(sums: Value, y: Value, bias: Value) -> None:
    store(y, load_floats(sums) + load_floats(bias))
