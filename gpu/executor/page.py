"""Queries against one page of the cache, for one key/value head.

A page holds 16 tokens. Its keys are stored transposed, [H, 16], so that the lanes of a score are keys; its values are
[16, H], so that the lanes of a sum are dimensions (H padded to 32). Several rows share each load of the page; a row's
own arithmetic is one chain of fused multiply-adds, however many there are. Addresses and strides are bytes.
"""

from gpu.executor.jit import inlined, jit
from gpu.executor.vector import fma, load, splat, splat_at, store

__all__ = ["BLOCK", "PAGE", "score_page", "sum_one", "sum_three", "values_of"]

PAGE = 16
BLOCK = 16  # pages whose keys lie side by side, and then their values


@inlined
def values_of(keys, value_dim):
    """Return the address of a head's values, given that of its keys in the same page."""
    return keys + BLOCK * 4 * PAGE * value_dim


@inlined
def _score_six(q, stride, keys, head_dim, out, row_bytes):
    """Score six queries against a page."""
    a = b = c = d = e = f = splat(0.0)
    for h in range(head_dim):
        k, x = load(keys + 64 * h), q + 4 * h
        a = fma(splat_at(x), k, a)
        b = fma(splat_at(x + stride), k, b)
        c = fma(splat_at(x + 2 * stride), k, c)
        d = fma(splat_at(x + 3 * stride), k, d)
        e = fma(splat_at(x + 4 * stride), k, e)
        f = fma(splat_at(x + 5 * stride), k, f)
    store(out, a)
    store(out + row_bytes, b)
    store(out + 2 * row_bytes, c)
    store(out + 3 * row_bytes, d)
    store(out + 4 * row_bytes, e)
    store(out + 5 * row_bytes, f)


@inlined
def _score_three(q, stride, keys, head_dim, out, row_bytes):
    """Score three queries against a page."""
    a = b = c = splat(0.0)
    for h in range(head_dim):
        k, x = load(keys + 64 * h), q + 4 * h
        a = fma(splat_at(x), k, a)
        b = fma(splat_at(x + stride), k, b)
        c = fma(splat_at(x + 2 * stride), k, c)
    store(out, a)
    store(out + row_bytes, b)
    store(out + 2 * row_bytes, c)


@inlined
def _score_one(q, keys, head_dim, out):
    """Score one query against a page."""
    a = splat(0.0)
    for h in range(head_dim):
        a = fma(splat_at(q + 4 * h), load(keys + 64 * h), a)
    store(out, a)


@jit
def score_page(q, rows, keys, head_dim, out, row_bytes):
    """Score ``rows`` dense rows of queries against a page: each score is one chain over the head's dimensions."""
    stride, row = 4 * head_dim, 0
    while row + 6 <= rows:
        _score_six(q + row * stride, stride, keys, head_dim, out + row * row_bytes, row_bytes)
        row += 6
    while row + 3 <= rows:
        _score_three(q + row * stride, stride, keys, head_dim, out + row * row_bytes, row_bytes)
        row += 3
    while row < rows:
        _score_one(q + row * stride, keys, head_dim, out + row * row_bytes)
        row += 1


@inlined
def sum_three(p, p_stride, values, value_dim, count, out, stride):
    """Add ``count`` values of a page to three rows of sums, 32 dimensions at a time."""
    for v in range(0, 4 * value_dim, 128):
        a, b, c = load(out + v), load(out + stride + v), load(out + 2 * stride + v)
        d, e, f = load(out + v + 64), load(out + stride + v + 64), load(out + 2 * stride + v + 64)
        for s in range(count):
            x, y = load(values + 4 * s * value_dim + v), load(values + 4 * s * value_dim + v + 64)
            w = splat_at(p + 4 * s)
            a, d = fma(w, x, a), fma(w, y, d)
            w = splat_at(p + p_stride + 4 * s)
            b, e = fma(w, x, b), fma(w, y, e)
            w = splat_at(p + 2 * p_stride + 4 * s)
            c, f = fma(w, x, c), fma(w, y, f)
        store(out + v, a)
        store(out + stride + v, b)
        store(out + 2 * stride + v, c)
        store(out + v + 64, d)
        store(out + stride + v + 64, e)
        store(out + 2 * stride + v + 64, f)


@inlined
def sum_one(p, values, value_dim, count, out):
    """Add ``count`` values of a page to one row of sums."""
    for v in range(0, 4 * value_dim, 128):
        a, b = load(out + v), load(out + v + 64)
        for s in range(count):
            w = splat_at(p + 4 * s)
            a = fma(w, load(values + 4 * s * value_dim + v), a)
            b = fma(w, load(values + 4 * s * value_dim + v + 64), b)
        store(out + v, a)
        store(out + v + 64, b)
