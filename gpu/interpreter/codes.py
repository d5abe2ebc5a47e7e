"""The numbers that the decoder writes and the machine reads."""

__all__ = [
    "ACCESS", "APPROXIMATE", "ATOMIC", "CODE", "COLLECTIVE", "COMPARE", "CONTROL", "CONVERT", "COPY", "DOTS", "FAMILY",
    "FLOATING", "GUARD", "INTEGER", "LOGIC", "MATRIX", "MEMBERS", "MMA", "MOST_ROWS", "MOVES", "NEGATED", "OFFSET",
    "PACKED", "SOURCE_OFFSET", "TARGET",
]  # fmt: skip

CONTROL, COLLECTIVE, ACCESS, ATOMIC, MATRIX, COPY = range(6)  # families that the machine runs itself
MMA, INTEGER, LOGIC, FLOATING, APPROXIMATE, COMPARE, MOVES, CONVERT, PACKED, DOTS = range(6, 16)  # on registers alone
FAMILY, CODE, GUARD, NEGATED, OFFSET, SOURCE_OFFSET, TARGET, MEMBERS = range(8)  # the columns of the table
MOST_ROWS = 20
