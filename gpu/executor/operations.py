"""The executor's kernels, one operation at a time, on NumPy arrays: so that golden and the tests can judge each alone.

A call packs its weights and lays out its cache anew, which the executor does once for all.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpu.executor.attention import SPLIT, attend_split, finish, first_split, fold, partial_floats
from gpu.executor.elementary import ACTIVATIONS, activate, layer_norm_row, rms_norm_row
from gpu.executor.jit import jit
from gpu.executor.linear import SCRATCH_BYTES, embedding_row, linear_rows
from gpu.executor.linear_int8 import has_int8, linear_rows_int8, quantize_rows_int8
from gpu.executor.memory import aligned
from gpu.executor.network_operations import gate, mix_experts, route, takes_gate
from gpu.executor.pack import FORMATS, Packed, pack
from gpu.executor.page import BLOCK, PAGE
from gpu.executor.rotary import rotate_halves, rotate_neighbours
from gpu.executor.router import ROUTERS
from gpu.executor.vector import LANES, load_part, store_part
from refimpl.blocks import FORMATS as BLOCK_FORMATS
from refimpl.contract import Array
from refimpl.models.tensor import Tensor

__all__ = ["OPERATIONS", "Operation"]

_EVERYTHING = 1 << 40  # a window that hides nothing


@dataclass(frozen=True)
class Operation:
    """An operation by its name in the reference: the call, and whether the kernels take its arguments."""

    call: Callable[..., Any]
    takes: Callable[..., bool] = lambda **arguments: True


def _floats(x: Array) -> Array:
    return np.ascontiguousarray(x, np.float32)


def _tensor(w: Array) -> Tensor:
    return Tensor(w.dtype.name, w.shape, w)


def _blocks(blocks: Array, format: str) -> Packed:
    elements, size = BLOCK_FORMATS[format]
    return pack(Tensor(format, (len(blocks), blocks.shape[1] // size * elements), blocks))


def _linear(x: Array, w: Array, b: Array | None = None) -> Array:
    packed, rows, scratch = pack(_tensor(w)), _floats(x), aligned(SCRATCH_BYTES)
    y, bias = np.empty((len(x), len(w)), np.float32), None if b is None else _floats(b)
    linear_rows(
        packed.code, packed.address, packed.columns, packed.rows, 0, packed.tiles, rows.ctypes.data, rows.strides[0],
        len(x), y.ctypes.data, y.strides[0], 0 if bias is None else bias.ctypes.data, scratch.ctypes.data,
    )  # fmt: skip
    return y.astype(x.dtype)


def _rows_of(packed: Packed, ids: Array) -> Array:
    out, scratch = np.empty((len(ids), packed.columns), np.float32), aligned(SCRATCH_BYTES)
    for row, number in zip(out, ids.tolist(), strict=True):
        embedding_row(packed.code, packed.address, packed.columns, number, row.ctypes.data, scratch.ctypes.data)
    return out


def _embedding(ids: Array, table: Array) -> Array:
    return _rows_of(pack(_tensor(table)), ids).astype(table.dtype)


def _dequantize(blocks: Array, format: str) -> Array:
    return _rows_of(_blocks(blocks, format), np.arange(len(blocks)))


def _quantize(x: Array) -> tuple[Array, Array, Array]:
    rows, (tokens, width) = _floats(x), x.shape
    q, scales = np.empty((tokens, width), np.int8), np.empty((tokens, width // 32), np.float32)
    sums = np.empty((tokens, width // 32), np.int32)
    places = (array.ctypes.data for array in (q, scales, sums))
    quantize_rows_int8(rows.ctypes.data, rows.strides[0], tokens, width, *places)
    return q, scales, sums


def _linear_int8(x: Array, blocks: Array, format: str) -> Array:
    packed, quantized, scratch = _blocks(blocks, format), _quantize(x), aligned(SCRATCH_BYTES)
    y = np.empty((len(x), len(blocks)), np.float32)
    linear_rows_int8(
        packed.code, packed.address, packed.columns, packed.rows, 0, packed.tiles,
        *(array.ctypes.data for array in quantized), len(x), y.ctypes.data, y.strides[0], 0, scratch.ctypes.data,
    )  # fmt: skip
    return y.astype(x.dtype)


@jit
def _norm_rows(x, gain, bias, out, rows, width, eps, centred):
    for at in range(0, 4 * rows * width, 4 * width):
        if centred:
            layer_norm_row(x + at, gain, bias, out + at, width, eps)
        else:
            rms_norm_row(x + at, gain, out + at, width, eps)


def _norm(x: Array, gain: Array, bias: Array | None, eps: float, centred: bool) -> Array:
    rows, scale, shift = _floats(x), _floats(gain), None if bias is None else _floats(bias)
    out, width = np.empty_like(rows), x.shape[-1]
    place = 0 if shift is None else shift.ctypes.data
    _norm_rows(
        rows.ctypes.data, scale.ctypes.data, place, out.ctypes.data, x.size // width, width, float(eps), centred
    )
    return out.astype(x.dtype)


def _layer_norm(x: Array, gain: Array, bias: Array | None = None, eps: float = 1e-5) -> Array:
    return _norm(x, gain, bias, eps, True)


def _rms_norm(x: Array, gain: Array, eps: float = 1e-6, *, gain_offset: float = 0.0) -> Array:
    return _norm(x, gain.astype(np.float32) + np.float32(gain_offset), None, eps, False)


@jit
def _activate_row(x, out, count, code):
    for i in range(0, count, LANES):
        store_part(out + 4 * i, activate(load_part(x + 4 * i, count - i), code), count - i)


def _activation(name: str) -> Callable[[Array], Array]:
    def apply(x: Array) -> Array:
        flat = _floats(x)
        out = np.empty_like(flat)
        _activate_row(flat.ctypes.data, out.ctypes.data, flat.size, ACTIVATIONS.index(name))
        return out.astype(x.dtype)

    return apply


@jit
def _rotate_rows(x, cos, sin, tokens, heads, width, pairs, interleaved):
    for t in range(tokens):
        for head in range(heads):
            at, place = x + 4 * width * (t * heads + head), 4 * pairs * t
            if interleaved:
                rotate_neighbours(at, cos + place, sin + place, pairs)
            else:
                rotate_halves(at, cos + place, sin + place, pairs)


def _rope(x: Array, cos: Array, sin: Array, *, interleaved: bool = False) -> Array:
    turned, tables = _floats(x).copy(), (_floats(cos), _floats(sin))
    _rotate_rows(
        turned.ctypes.data, *(table.ctypes.data for table in tables), *x.shape, cos.shape[1], int(interleaved)
    )
    return turned.astype(x.dtype)


def _pages(k: Array, v: Array, size: int) -> tuple[Array, Array]:
    """Lay the keys and values of one head out in pages; return them and the address of each page's keys."""
    count = -(-len(k) // PAGE)
    memory = aligned(-(-count // BLOCK) * 2 * BLOCK * 4 * PAGE * size).view(np.float32)
    blocks = memory.reshape(-1, 2, BLOCK, PAGE * size)
    places = np.empty(count, np.int64)
    for number in range(count):
        keys, values = blocks[number // BLOCK, :, number % BLOCK]
        rows = slice(number * PAGE, (number + 1) * PAGE)
        held = len(k[rows])
        keys[: PAGE * k.shape[1]].reshape(-1, PAGE)[:, :held] = k[rows].T
        values.reshape(PAGE, size)[:held, : v.shape[1]] = v[rows]
        places[number] = keys.ctypes.data
    return memory, places


def _attend_head(
    q: Array, k: Array, v: Array, start: int, window: int, scale: float, softcap: float, sinks: Array | None
) -> Array:
    """Attend the queries [T, G, H] that share one key/value head."""
    (tokens, group, width), size = q.shape, -(-q.shape[-1] // 32) * 32
    floats, out, rows = partial_floats.py_func(size), np.empty(q.shape, np.float32), np.ascontiguousarray(q)
    memory, table = _pages(k, v, size)
    scores, part, total = (aligned(4 * floats_a_row * group) for floats_a_row in (SPLIT, floats, floats))
    for t in range(tokens):
        position = np.array([start + t])
        for split in range(first_split.py_func(start + t, window), (start + t) // SPLIT + 1):
            attend_split(
                rows[t].ctypes.data, position, group, width, size, window, scale, softcap, table.ctypes.data,
                0, split, scores.ctypes.data, part.ctypes.data,
            )  # fmt: skip
            for at in range(0, 4 * floats * group, 4 * floats):
                fold(total.ctypes.data + at, part.ctypes.data + at, split, start + t, window, size)
        for g in range(group):
            sink = 0 if sinks is None else sinks[g:].ctypes.data
            finish(total.ctypes.data + 4 * floats * g, size, width, sink, out[t, g].ctypes.data)
    return out if memory.size else np.zeros_like(out)


def _attention(
    q: Array, k: Array, v: Array, *, window: int | None = None, chunk: int | None = None, scale: float | None = None,
    softcap: float | None = None, sinks: Array | None = None, **_: Any,
) -> Array:  # fmt: skip
    (T, N, H), (S, K, _) = q.shape, k.shape
    group, out = N // K, np.empty(q.shape, np.float32)
    reach, factor = -chunk if chunk else window or _EVERYTHING, H**-0.5 if scale is None else scale
    bounds, shared = softcap or 0.0, None if sinks is None else _floats(sinks)
    queries, keys, values = _floats(q), _floats(k), _floats(v)
    for head in range(K):
        mine = slice(head * group, (head + 1) * group)
        shares = None if shared is None else shared[mine]
        places = queries[:, mine], keys[:, head], values[:, head], S - T, reach, factor
        out[:, mine] = _attend_head(*places, bounds, shares)
    return out.astype(q.dtype)


def _is_of_a_decoder(
    q: Array, k: Array, v: Array, *, causal: bool = True, mask: Any = None, return_lse: bool = False, prefix: int = 0,
    window: int | None = None, chunk: int | None = None, **_: Any,
) -> bool:  # fmt: skip
    """Attention as the executor needs it: causal, every query with its own key in the cache, v as wide as q."""
    is_plain = mask is None and not return_lse and not prefix and not (window and chunk)
    return causal and is_plain and len(q) <= len(k) and q.shape[-1] == v.shape[-1]


OPERATIONS: Mapping[str, Operation] = {
    "linear": Operation(_linear),
    "embedding": Operation(_embedding),
    "rms_norm": Operation(_rms_norm),
    "layer_norm": Operation(_layer_norm),
    "rope": Operation(_rope, lambda *_, trailing=False, **__: not trailing),
    "attention": Operation(_attention, _is_of_a_decoder),
    "dequantize": Operation(_dequantize),
    "quantize_int8": Operation(lambda x: _quantize(x)[:2]),
    "swiglu": Operation(gate("silu"), takes_gate),
    "geglu": Operation(gate("gelu_tanh"), takes_gate),
    "swiglu_clamped": Operation(gate("swiglu_clamped"), takes_gate),
    "moe": Operation(mix_experts),
    "grouped_moe": Operation(mix_experts),
    **{name: Operation(route(name)) for name in ROUTERS},
    "linear_int8": Operation(_linear_int8, lambda x, blocks, format: has_int8(list(FORMATS).index(format))),
    **{name: Operation(_activation(name)) for name in ACTIVATIONS},
}
