"""Memory for kernels: it begins with a cache line, and rows of activations never lie a page apart."""

import numpy as np

from refimpl.contract import Array, host

__all__ = ["aligned", "row_bytes"]


@host
def aligned(size: int) -> Array:
    """Return ``size`` bytes of zeros at an address that 64 divides; the system backs them when they are first written.

    >>> aligned(100).ctypes.data % 64, len(aligned(100))
    (0, 100)
    """
    memory = np.zeros(size + 64, np.uint8)
    first = -memory.ctypes.data % 64
    return memory[first : first + size]


@host
def row_bytes(width: int) -> int:
    """Return the distance of rows of ``width`` float32: an odd number of cache lines.

    Rows a power of two apart would share few places of a cache and drive each other out of it.

    >>> row_bytes(1), row_bytes(16), row_bytes(17), row_bytes(1024)
    (64, 64, 192, 4160)
    """
    return 64 * (-(-width // 16) | 1)
