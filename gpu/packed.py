"""Matrices as the CPU executor's kernels read them, for models that are composed operation by operation."""

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from gpu.executor.linear import SCRATCH_BYTES, embedding_row, linear_rows
from gpu.executor.memory import aligned
from gpu.executor.pack import FORMATS, Packed, pack
from refimpl.contract import Array, Float, Int, host, require
from refimpl.models.tensor import Tensor

__all__ = ["Matrix", "attention", "embedding", "linear", "packed_matrix"]

_THREADS = os.cpu_count() or 1
_WORTH_A_THREAD = 1 << 21  # products


@dataclass(frozen=True)
class Matrix:
    """A weight in tiles, in the format of its file; what it makes of float32 is float32."""

    packed: Packed

    @property
    def shape(self) -> tuple[int, int]:
        return self.packed.rows, self.packed.columns

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(np.float32)


@host
def packed_matrix(tensor: Tensor, dtype: Any = None) -> Matrix:
    """Lay a matrix out in tiles, rounded to a dtype where one is given, else in the format of its file."""
    if dtype is not None or tensor.format not in FORMATS:
        numbers = tensor.read(np.float32 if dtype is None else dtype)
        tensor = Tensor(numbers.dtype.name, tensor.shape, numbers)
    return Matrix(pack(tensor))


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_THREADS)


@host
def linear(
    x: Float[Array, "T D"], w: Any, b: Float[Array, " O"] | None = None, *, threaded: bool = True
) -> Float[Array, "T O"]:
    """Map rows by a packed matrix, a part of its tiles a thread; every output is summed in one order.

    Constraints:
        (C1) x is a matrix as wide as w.
    """
    (rows, columns), packed = w.shape, w.packed
    require(x.ndim == 2 and x.shape[1] == columns, "C1", f"x {x.shape} for a matrix {w.shape}")
    inputs, y = np.ascontiguousarray(x, np.float32), np.empty((len(x), rows), np.float32)
    bias = None if b is None else np.ascontiguousarray(b, np.float32)
    parts = min(_THREADS, packed.tiles, max(1, len(x) * rows * columns // _WORTH_A_THREAD)) if threaded else 1
    cuts = [packed.tiles * part // parts for part in range(parts + 1)]

    def run(part: int) -> None:
        scratch = aligned(SCRATCH_BYTES)
        linear_rows(
            packed.code, packed.address, columns, rows, cuts[part], cuts[part + 1], inputs.ctypes.data,
            inputs.strides[0], len(x), y.ctypes.data, y.strides[0], 0 if bias is None else bias.ctypes.data,
            scratch.ctypes.data,
        )  # fmt: skip

    others = [_pool().submit(run, part) for part in range(1, parts)]
    run(0)
    for other in others:
        other.result()
    return y


@host
def embedding(ids: Int[Array, " T"], table: Any) -> Float[Array, "T D"]:
    """Look rows of a packed matrix up.

    Constraints:
        (C1) ids are in the vocabulary.
    """
    packed, scratch = table.packed, aligned(SCRATCH_BYTES)
    require(bool(((ids >= 0) & (ids < packed.rows)).all()), "C1", f"ids are in the vocabulary 0..{packed.rows - 1}")
    out = np.empty((len(ids), packed.columns), np.float32)
    for row, number in zip(out, ids.tolist(), strict=True):
        embedding_row(packed.code, packed.address, packed.columns, number, row.ctypes.data, scratch.ctypes.data)
    return out


@host
def attention(
    q: Float[Array, "T N H"], k: Float[Array, "S K H"], v: Float[Array, "S K H"], *, scale: float | None = None,
    causal: bool = True, mask: Array | None = None,
) -> Float[Array, "T N H"]:
    """Attend as the specification does, a head a thread, its products by packed keys and values.

    What the layers of encoders and encoder-decoders do not ask for is not there.

    Constraints:
        (C1) the key/value heads divide the query heads.
        (C2) q, k and v have heads of one width, and k and v one length.
        (C3) the mask has shape [T S] or [N T S].
    """
    (T, N, H), (S, K, _) = q.shape, k.shape
    require(K > 0 and N % K == 0, "C1", f"{K} key/value heads do not divide {N} query heads")
    require(k.shape == v.shape == (S, K, H), "C2", f"q {q.shape}, k {k.shape}, v {v.shape} do not fit")
    require(mask is None or mask.shape in ((T, S), (N, T, S)), "C3", f"mask is not [{T} {S}] or [{N} {T} {S}]")
    group = N // K
    visible = np.tri(T, S, S - T, dtype=bool) if causal else np.ones((T, S), bool)
    out, factor = np.empty((T, N, v.shape[2]), np.float32), np.float32(H**-0.5 if scale is None else scale)

    def attend(n: int) -> None:
        scores = linear(q[:, n] * factor, packed_matrix(_tensor(k[:, n // group])), threaded=False)
        rule = None if mask is None else mask[n] if mask.ndim == 3 else mask
        seen = visible if rule is None or rule.dtype != bool else visible & rule
        scores = np.where(seen, scores if rule is None or rule.dtype == bool else scores + rule, -np.inf)
        largest = scores.max(-1, keepdims=True)
        weights = np.exp(scores - np.where(np.isneginf(largest), 0, largest))
        total = weights.sum(-1, keepdims=True)
        mixed = linear(weights, packed_matrix(_tensor(v[:, n // group].T)), threaded=False)
        out[:, n] = mixed / np.where(total == 0, 1, total)

    list(_pool().map(attend, range(N)))
    return out


def _tensor(x: Array) -> Tensor:
    return Tensor("float32", x.shape, np.ascontiguousarray(x, np.float32))
