"""Token embedding: one block a token copies its row."""

from functools import cache
from typing import Any

import ml_dtypes
import numpy as np

from gpu import device
from gpu.compile import Kernel, numba_kernel
from gpu.grid import threads_for
from gpu.number import named, read, storage, write
from gpu.registry import Variant
from refimpl.contract import Array, Float, Int, kernel, op, require

__all__ = ["VARIANTS", "embedding", "embedding_into"]


@op
def embedding(ids: Int[Array, " T"], table: Float[Array, "V D"]) -> Float[Array, "T D"]:
    """One block a token, its threads along the row; a copy of the stored bits. The ids are checked on the host."""
    fits = ids.ndim == 1 and table.ndim == 2
    require(fits, "C2", f"ids are a row and the table is a matrix, got shapes {ids.shape} and {table.shape}")
    inside = ids.dtype.kind in "iu" and bool(((ids >= 0) & (ids < len(table))).all())
    require(inside, "C1", f"ids are integers in the vocabulary 0..{len(table) - 1}")
    out = device.empty((len(ids), table.shape[1]), table.dtype)
    embedding_into(out, device.array(ids, np.int32), device.array(table))
    return out


@kernel
def embedding_into(out: Float[Array, "T D"], ids: Int[Array, " T"], table: Float[Array, "V D"]) -> None:
    """Write the rows of ``ids``, int32 and within the table, into ``out``, which may be wider than the table."""
    made = _embedding(named(out), named(table))
    if out.size:
        device.launch(made, len(ids), threads_for(out.shape[1]), out, ids, table)


@cache
def _embedding(dtype: str, table_dtype: str) -> Kernel:
    from numba import uint64

    from gpu.warp import block, thread, threads

    wide, narrow, is_copy = read(table_dtype), write(dtype), dtype == table_dtype

    @numba_kernel(
        f"{storage(dtype)}[:, ::1]", "int32[::1]", f"{storage(table_dtype)}[:, ::1]",
        name=f"embedding[{dtype}, {table_dtype}]",
    )
    def embedding(out, ids, table):
        t, d = block(), thread()
        row = uint64(ids[t])
        while d < uint64(out.shape[1]):
            out[t, d] = table[row, d] if is_copy else narrow(wide(table[row, d]))
            d += threads()

    return embedding


def _workload() -> dict[str, Any]:
    draw = np.random.default_rng(0)
    table = draw.standard_normal((1024, 4096), np.float32).astype(ml_dtypes.bfloat16)
    return {"ids": draw.integers(0, 1024, 32), "table": table}


VARIANTS = (Variant("numba", "embedding", embedding, lambda *_, **__: True, _workload),)
