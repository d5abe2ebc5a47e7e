"""Token embedding: from ids to vectors."""

from refimpl.contract import Array, Float, Int, op, require

__all__ = ["embedding"]


@op
def embedding(ids: Int[Array, " T"], table: Float[Array, "V D"]) -> Float[Array, "T D"]:
    """Look up the vector of every token.

    Math: x[t] = table[ids[t]].
    Cost: no flop, T D elements read and written: bound by memory, and by latency while T is small.
    Numerics: a copy, exact in every dtype.
    Constraints:
        (C1) every id is an integer in 0..V-1 (as an index, NumPy would take -1 for the last token, True for a mask).
        (C2) ids are one row, and the table is a matrix.
    Source: Bengio et al., A neural probabilistic language model, 2003.

    >>> import numpy as np
    >>> embedding(np.array([1, 0, 1]), np.array([[0.0, 1.0], [2.0, 3.0]]))
    array([[2., 3.],
           [0., 1.],
           [2., 3.]])
    """
    fits = ids.ndim == 1 and table.ndim == 2
    require(fits, "C2", f"ids are a row and the table is a matrix, got shapes {ids.shape} and {table.shape}")
    inside = ids.dtype.kind in "iu" and bool(((ids >= 0) & (ids < len(table))).all())
    require(inside, "C1", f"ids are integers in the vocabulary 0..{len(table) - 1}")
    return table[ids]
