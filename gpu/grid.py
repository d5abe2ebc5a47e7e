"""How many threads and blocks a launch takes."""

from refimpl.contract import host

__all__ = ["blocks_for", "threads_for"]

_WARP, _MOST = 32, 1024


@host
def threads_for(width: int, each: int = 4) -> int:
    """Return the size of a block that works on one row: whole warps, ``each`` elements a thread while that fits.

    >>> [threads_for(width) for width in (0, 64, 130, 4096, 50257)]
    [32, 32, 64, 1024, 1024]
    """
    return min(_MOST, max(1, -(-width // (each * _WARP))) * _WARP)


@host
def blocks_for(count: int, each: int) -> int:
    """Return how many blocks cover ``count`` elements, each block ``each`` of them.

    >>> blocks_for(257, 256)
    2
    """
    return -(-count // each)
