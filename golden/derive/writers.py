"""Weights into blocks of 32, element by element. Those of 256, whose scales ggml searches, are ggml's own bytes."""

from golden.bits import bytes_of_32, codes_of_32, rows_of_blocks
from golden.values import Array

__all__ = ["quantize"]


def quantize(w: Array, format: str) -> Array:
    return rows_of_blocks(w, 32, lambda part: bytes_of_32(*codes_of_32(part, format), format))
