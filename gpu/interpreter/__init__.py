"""Execute PTX without a GPU: decode in Python, run warps of 32 lanes in a Numba machine."""
