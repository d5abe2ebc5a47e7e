"""The families of instructions, in the order of their numbers in gpu/interpreter/codes.py."""

import functools

import numpy as np

from gpu.interpreter import (
    access,
    approximate,
    atomic,
    collective,
    compare,
    control,
    convert,
    copies,
    dots,
    floating,
    integer,
    logic,
    matrix,
    mma,
    moves,
    packed,
)
from gpu.interpreter.codes import MMA
from gpu.interpreter.jit import address_of
from refimpl.contract import host

__all__ = ["FAMILIES", "handlers"]

FAMILIES = (
    control, collective, access, atomic, matrix, copies,
    mma, integer, logic, floating, approximate, compare, moves, convert, packed, dots,
)  # fmt: skip


@functools.cache
@host
def handlers() -> np.ndarray:
    """Return where the machine code of each family begins; 0 for those that are part of the machine."""
    return np.array([0] * MMA + [address_of(family.execute) for family in FAMILIES[MMA:]], np.int64)
