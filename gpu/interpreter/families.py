"""The families of instructions, in the order of their numbers in gpu/interpreter/codes.py."""

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

__all__ = ["FAMILIES"]

FAMILIES = (
    control, collective, access, atomic, matrix, copies,
    mma, integer, logic, floating, approximate, compare, moves, convert, packed, dots,
)  # fmt: skip
