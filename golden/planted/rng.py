"""Faults of random numbers."""

import numpy as np

from golden.derive import rng
from golden.values import Array

__all__ = ["philox_7_rounds", "philox_words_swapped", "uniform_of_24_bits", "uniform_request_first"]


def philox_7_rounds(counter: Array, key: Array) -> Array:
    """Seven rounds instead of ten."""
    return rng.philox(counter, key, rounds=7)


def philox_words_swapped(counter: Array, key: Array) -> Array:
    """The key's two words change places."""
    return rng.philox(counter, key[..., ::-1])


def uniform_of_24_bits(seed: int, request: int, position: int) -> float:
    """A number rounded to float32, which is 1.0 once in 2^25 draws."""
    return float(np.float32(rng.uniform(seed, request, position)))


def uniform_request_first(seed: int, request: int, position: int) -> float:
    """The request's words stand before the position's."""
    return rng.uniform(seed, position, request)
