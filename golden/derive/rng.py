"""Philox in Python's integers, word by word."""

import math

import numpy as np

from golden.values import Array

__all__ = ["exponential", "philox", "uniform"]

_MASK = 2**32 - 1


def _philox(x: list[int], key: list[int], rounds: int = 10) -> list[int]:
    k0, k1 = key
    for _ in range(rounds):
        first, second = 0xD2511F53 * x[0], 0xCD9E8D57 * x[2]
        x = [(second >> 32) ^ x[1] ^ k0, second & _MASK, (first >> 32) ^ x[3] ^ k1, first & _MASK]
        k0, k1 = (k0 + 0x9E3779B9) & _MASK, (k1 + 0xBB67AE85) & _MASK
    return x


def philox(counter: Array, key: Array, rounds: int = 10) -> Array:
    counters = np.reshape(counter, (-1, 4)).astype(int).tolist()
    keys = np.broadcast_to(np.reshape(key, (-1, 2)), (len(counters), 2)).astype(int).tolist()
    words = [_philox(c, k, rounds) for c, k in zip(counters, keys, strict=True)]
    return np.array(words, np.uint32).reshape(np.shape(counter))


def _place(seed: int, request: int, position: int) -> list[int]:
    words = [position & _MASK, position >> 32, request & _MASK, request >> 32]
    return _philox(words, [seed & _MASK, seed >> 32])


def uniform(seed: int, request: int, position: int) -> float:
    x0, x1, _, _ = _place(seed, request, position)
    return ((x0 >> 5) * 2**26 + (x1 >> 6)) / 2**53


def exponential(seed: int, request: int, position: int, size: int) -> Array:
    _, _, x2, x3 = _place(seed, request, position)
    words = [_philox([i, 0, 0, 0], [x2, x3]) for i in range(size)]
    return np.array([-math.log1p(-((w[0] >> 5) * 2**26 + (w[1] >> 6)) / 2**53) for w in words])
