"""Dispatch to many experts at once: tokens sorted by expert, and linear maps over a stack of matrices.

A choice is one of the T A pairs of a token and an expert that its router chose, c = t A + a.
"""

from itertools import pairwise

import numpy as np

from refimpl.basics.linear import linear
from refimpl.contract import Array, Float, Int, op, require, whole, widen, within

__all__ = ["expert_permutation", "grouped_linear", "indexed_linear"]


@op
def expert_permutation(ids: Int[Array, "T A"], num_experts: int) -> tuple[Int[Array, " rows"], Int[Array, " bounds"]]:
    """Sort the choices by expert, so that each expert's tokens lie together.

    Math: order = the choices c by (ids[c], c); expert e has the rows offsets[e] to offsets[e + 1] - 1 of it.
    Cost: no flop, T A ids read and written: latency.
    Numerics: exact, int32. The sort is stable: an expert's tokens keep their order.
    Constraints:
        (C1) ids are a matrix of integers in 0..E-1.
    Source: Gale et al., MegaBlocks: efficient sparse training with mixture-of-experts, 2022.

    >>> expert_permutation(np.array([[2, 0], [0, 2]]), 3)
    (array([1, 2, 0, 3], dtype=int32), array([0, 2, 2, 4], dtype=int32))
    """
    fits = ids.ndim == 2 and within(ids, whole("num_experts", num_experts))
    require(fits, "C1", f"ids are a matrix of integers in 0..{num_experts - 1}")
    order = np.argsort(ids.reshape(-1), kind="stable")
    offsets = np.searchsorted(ids.reshape(-1)[order], np.arange(num_experts + 1))
    return order.astype(np.int32), offsets.astype(np.int32)


@op
def grouped_linear(
    x: Float[Array, "rows D"], w: Float[Array, "E O D"], offsets: Int[Array, " bounds"],
    b: Float[Array, "E O"] | None = None,
) -> Float[Array, "rows O"]:
    """Apply to each group of rows the matrix of its expert: a grouped GEMM.

    Math: y[r] = w[e] x[r] + b[e] for offsets[e] <= r < offsets[e + 1].
    Cost: 2 rows O D flop over the matrices of the experts that have rows.
    Numerics: as linear.
    Constraints:
        (C1) x is a matrix, and w a stack of matrices of its width.
        (C2) offsets are E + 1 integers that never fall, from 0 to the number of rows.
        (C3) b holds one value for each row of each matrix.
    Source: Gale et al., 2022.

    >>> grouped_linear(np.ones((3, 1)), np.array([[[1.0]], [[5.0]]]), np.array([0, 2, 3])).T
    array([[1., 1., 5.]])
    """
    _check_stack(x, w, b)
    fits = offsets.shape == (len(w) + 1,) and within(offsets, len(x) + 1) and bool((offsets[1:] >= offsets[:-1]).all())
    fits = fits and (offsets[0], offsets[-1]) == (0, len(x))
    require(fits, "C2", f"offsets never fall, from 0 to {len(x)} in {len(w)} steps, got {offsets}")
    groups = enumerate(pairwise(offsets))
    return np.concatenate([linear(x[m:n], w[e], None if b is None else b[e]) for e, (m, n) in groups])


@op
def indexed_linear(
    x: Float[Array, "T D"], w: Float[Array, "E O D"], ids: Int[Array, "T A"], b: Float[Array, "E O"] | None = None
) -> Float[Array, "T A O"]:
    """Apply to each token the matrices of its own experts: an indexed GEMV.

    Math: y[t, a] = w[ids[t, a]] x[t] + b[ids[t, a]].
    Cost: 2 T A O D flop over as many weights: bound by their bytes.
    Numerics: products and sums in float32, or float64 if either input is; one cast at the end.
    Constraints:
        (C1) x is a matrix, and w a stack of matrices of its width.
        (C2) ids are integers in 0..E-1, a row for each token.
        (C3) b holds one value for each row of each matrix.
    Source: the definition.

    >>> indexed_linear(np.ones((1, 1)), np.array([[[1.0]], [[5.0]]]), np.array([[1, 0]])).tolist()
    [[[5.0], [1.0]]]
    """
    _check_stack(x, w, b)
    fits = ids.ndim == 2 and len(ids) == len(x) and within(ids, len(w))
    require(fits, "C2", f"ids are integers in 0..{len(w) - 1}, a row for each of {len(x)} tokens")
    y = np.einsum("td,taod->tao", widen(x), widen(w[ids]))
    return (y if b is None else y + widen(b[ids])).astype(x.dtype, copy=False)


def _check_stack(x: Array, w: Array, b: Array | None) -> None:
    fits = x.ndim == 2 and w.ndim == 3 and len(w) > 0 and x.shape[1] == w.shape[2]
    require(fits, "C1", f"x is a matrix, w a stack of matrices of its width, got shapes {x.shape} and {w.shape}")
    require(b is None or b.shape == w.shape[:2], "C3", f"b has shape {b is not None and b.shape}, not {w.shape[:2]}")
