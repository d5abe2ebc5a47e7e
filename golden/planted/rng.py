"""Faults of random numbers."""

import numpy as np

from golden.derive import rng
from golden.values import Array

__all__ = [
    "exponential_of_uniform_words", "exponential_one_for_all", "exponential_rises", "philox_7_rounds",
    "philox_words_swapped", "uniform_of_24_bits", "uniform_request_first",
]  # fmt: skip


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


def exponential_one_for_all(seed: int, request: int, position: int, size: int) -> Array:
    """All tokens share a number: the likeliest always wins."""
    return np.full(size, -np.log1p(-rng.uniform(seed, request, position)))


def exponential_rises(seed: int, request: int, position: int, size: int) -> Array:
    """-log u: infinite where u is 0."""
    return -np.log(-np.expm1(-rng.exponential(seed, request, position, size)))


def exponential_of_uniform_words(seed: int, request: int, position: int, size: int) -> Array:
    """Token i has the number of position + i: the next position has the same ones, shifted."""
    return np.array([-np.log1p(-rng.uniform(seed, request, position + i)) for i in range(size)])
