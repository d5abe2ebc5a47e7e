"""The linear map, which holds nearly all the weights of a model and takes nearly all of its time."""

from refimpl.contract import Array, Float, op, require, widen

__all__ = ["linear"]


@op
def linear(x: Float[Array, "T D"], w: Float[Array, "O D"], b: Float[Array, " O"] | None = None) -> Float[Array, "T O"]:
    """Apply a weight matrix to every token; each row of the matrix makes one output.

    Math: y[t, o] = sum_d x[t, d] w[o, d] + b[o].
    Cost: 2 T O D flop over (T D + O D + T O) elements: bound by the bytes of w while T is small (decode),
        by arithmetic once T passes the ridge of the machine (prefill).
    Numerics: products and sums in float32, or float64 if either input is; one cast to the dtype of x at the end.
        The order of the sum is the BLAS library's and may change with T.
    Constraints:
        (C1) x and w are matrices that agree on D.
        (C2) b holds one value for each row of w.
    Source: PyTorch ``torch.nn.functional.linear``, which stores w as [out, in] too.

    >>> import numpy as np
    >>> linear(np.array([[1.0, 2.0]]), np.array([[3.0, 4.0], [0.0, 1.0], [1.0, 0.0]]), np.array([0.0, 0.5, 0.0]))
    array([[11. ,  2.5,  1. ]])
    """
    fits = x.ndim == w.ndim == 2 and x.shape[1] == w.shape[1]
    require(fits, "C1", f"x and w are matrices of one width, got shapes {x.shape} and {w.shape}")
    require(b is None or b.shape == w.shape[:1], "C2", f"b has shape {b is not None and b.shape}, not {w.shape[:1]}")
    y = widen(x) @ widen(w).T  # the transpose is a view: BLAS reads w where it lies
    if b is not None:
        y = y + widen(b)
    return y.astype(x.dtype, copy=False)
