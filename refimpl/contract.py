"""The contract every function of this project stands on: roles, array types, errors.

A public function has one of four roles, and a test reads them off the source:

* ``@op``        an operation of the specification: golden cases and laws judge it, and every label of a constraint
                 has a test; its CUDA twin stands in ``gpu`` at the same path;
* ``@host``      code that runs beside the operations (files, tables, loops) and gets no twin;
* ``@composed``  a part of a model, written once over a namespace of operations, so that whoever has these can run it;
* ``@kernel``    (``gpu`` only) a launcher that writes into given buffers.

Dimension key: one letter, one meaning, in prose and in signatures. A name may end in its axes: ``q_TNH`` is [T, N, H]::

    T query tokens          S key tokens                V vocabulary
    D model width           O outputs of a linear map   F feed-forward width
    N query heads           K key/value heads           G = N / K
    H head width            H2 head width of v          J rotated pairs of a head
    B blocks of a row       I elements of a block       L layers
    R sequences             M blocks of a sequence
    E experts               A active experts of a token
    C channels              Y rows of an image      X columns of an image

Other axes are words: ``row_bytes``.
"""

import operator
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

import numpy as np
from jaxtyping import Bool, Float, Int, UInt8

__all__ = [
    "Array", "Bool", "Float", "Int", "UInt8",
    "ContractError", "CheckpointError", "UsageError",
    "composed", "host", "kernel", "op", "require", "rows", "whole", "widen", "within",
]

Array: TypeAlias = Any
"""Any array: NumPy, CuPy, emulated. The shape beside it is checked under pytest and free in use."""

F = TypeVar("F", bound=Callable[..., Any])


class ContractError(ValueError):
    """A labelled constraint of an operation does not hold."""


class CheckpointError(ValueError):
    """A file does not hold what it must hold."""


class UsageError(ValueError):
    """A request cannot be served as asked."""


def require(condition: bool, label: str, message: str) -> None:
    """Raise ContractError unless the constraint labelled ``label`` holds.

    >>> require(4 % 2 == 0, "C1", "2 key/value heads divide 4 query heads")
    >>> require(3 % 2 == 0, "C1", "2 key/value heads do not divide 3 query heads")
    Traceback (most recent call last):
    ...
    refimpl.contract.ContractError: C1: 2 key/value heads do not divide 3 query heads
    """
    if not condition:
        raise ContractError(f"{label}: {message}")


def rows(x: Array) -> int:
    """Return how long an array is along its first axis; a number has none, and is no row long.

    >>> rows(np.zeros((2, 3))), rows(np.zeros(()))
    (2, 0)
    """
    return len(x) if x.ndim else 0


def whole(name: str, value: Any) -> int:
    """Return a setting that is a whole number.

    >>> whole("top_k", 40)
    40
    >>> whole("top_k", 1.5)
    Traceback (most recent call last):
    ...
    refimpl.contract.UsageError: top_k is a whole number, got 1.5
    """
    try:
        return int(operator.index(value))
    except TypeError:
        raise UsageError(f"{name} is a whole number, got {value!r}") from None


def widen(x: Array) -> Array:
    """Return ``x`` as float32, or as it is when it is float64.

    NumPy's einsum refuses bfloat16 and its sums saturate in float16, so an operation widens its inputs
    once, computes, and casts once at the end: dtype in = dtype out. An integer would be cut at that end.

    >>> widen(np.array([1]))
    Traceback (most recent call last):
    ...
    refimpl.contract.ContractError: operations take floats, not int64
    """
    x = np.asarray(x)
    if x.dtype.kind not in "fV":  # V: bfloat16
        raise ContractError(f"operations take floats, not {x.dtype}")
    return x if x.dtype == np.float64 else x.astype(np.float32, copy=False)


def within(ids: Array, count: int) -> bool:
    """Tell whether ids are integers in 0..count-1: as an index, NumPy takes -1 for the last one, True for a mask.

    >>> within(np.array([0, 2]), 3), within(np.array([-1]), 3), within(np.array([1.0]), 3)
    (True, False, False)
    """
    return ids.dtype.kind in "iu" and bool(((ids >= 0) & (ids < count)).all())


def _role(name: str) -> Callable[[F], F]:
    def mark(function: F) -> F:
        setattr(function, "role", name)
        return function

    return mark


op = _role("op")
kernel = _role("kernel")
host = _role("host")
composed = _role("composed")
