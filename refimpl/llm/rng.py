"""Random numbers by counter: each is a function of its place alone, so no draw depends on its neighbours."""

import numpy as np
from jaxtyping import UInt32

from refimpl.contract import Array, Float, op, require, whole

__all__ = ["exponential", "philox", "uniform"]

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)  # golden ratio and sqrt(3) - 1, as fractions of 2^32
_ROUNDS = 10


@op
def philox(counter: UInt32[Array, "*#counters 4"], key: UInt32[Array, "*#counters 2"]) -> UInt32[Array, "*#counters 4"]:
    """Turn 128-bit counters into random bits under 64-bit keys: Philox 4x32-10.

    Math: ten times over the words (x0, x1, x2, x3) and the key (k0, k1), with hi and lo the halves of a 64-bit product:
        (x0, x1, x2, x3) <- (hi(M1 x2) ^ x1 ^ k0,  lo(M1 x2),  hi(M0 x0) ^ x3 ^ k1,  lo(M0 x0));  k <- k + W.
    Cost: 20 multiplications of 32 by 32 bits a counter; no memory but the counter itself.
    Numerics: exact in integers modulo 2^32; for a fixed key a bijection of the counters.
    Constraints:
        (C1) counter and key are uint32.
        (C2) a counter is 4 words, a key 2; there are as many of both, or one.
    Source: Salmon, Moraes, Dror, Shaw, Parallel random numbers: as easy as 1, 2, 3, 2011.

    >>> [f"{int(word):08x}" for word in philox(np.zeros(4, np.uint32), np.zeros(2, np.uint32))]
    ['6627e8d5', 'e169c58d', 'bc57ac4c', '9b00dbd8']
    """
    require(counter.dtype == key.dtype == np.uint32, "C1", f"uint32, got counter {counter.dtype} and key {key.dtype}")
    fits = all(n == m or 1 in (n, m) for n, m in zip(counter.shape[-2::-1], key.shape[-2::-1], strict=False))
    words = fits and (counter.shape[-1:], key.shape[-1:]) == ((4,), (2,))
    require(words, "C2", f"counters are 4 words, keys 2, one for each or for all, got {counter.shape} and {key.shape}")
    for _ in range(_ROUNDS):
        product = counter[..., 0::2] * np.array(_MULTIPLIERS, np.uint64)
        high, low = (product >> 32).astype(np.uint32), product.astype(np.uint32)
        mixed = high[..., ::-1] ^ counter[..., 1::2] ^ key
        pairs = np.stack(np.broadcast_arrays(mixed, low[..., ::-1]), axis=-1)
        counter = pairs.reshape(*mixed.shape[:-1], 4)
        key = key + np.array(_KEY_STEPS, np.uint32)
    return counter


def _place(seed: int, request: int, position: int) -> Array:
    """Return the four random words of a place."""
    for name, value in {"seed": seed, "request": request, "position": position}.items():
        require(0 <= whole(name, value) < 2**64, "C1", f"{name} is in [0, 2^64), got {value}")
    words = [int(value) >> shift & 0xFFFFFFFF for value in (position, request, seed) for shift in (0, 32)]
    return philox(np.array(words[:4], np.uint32), np.array(words[4:], np.uint32))


def _fraction(x: Array) -> Array:
    """Return the first two words as a number in [0, 1), a multiple of 2^-53."""
    return ((x[..., 0] >> 5).astype(np.uint64) << 26 | x[..., 1] >> 6) / 2.0**53


@op
def uniform(seed: int, request: int, position: int) -> float:
    """Return the random number in [0, 1) of one position in one request, under a seed.

    Math: (x0 // 2^5 2^26 + x1 // 2^6) / 2^53 with x = philox((position, request), seed),
        each argument as two words, the low one first.
    Cost: one philox.
    Numerics: a multiple of 2^-53, so exact in float64, and never 1.
    Constraints:
        (C1) seed, request and position are in [0, 2^64).
    Source: the counter by us; 53 bits as genrand_res53 of Matsumoto and Nishimura, mt19937ar.c, 2002.

    >>> uniform(seed=0, request=0, position=0) == uniform(seed=0, request=0, position=0)
    True
    """
    return float(_fraction(_place(seed, request, position)))


@op
def exponential(seed: int, request: int, position: int, size: int) -> Float[Array, " size"]:
    """Return random numbers of the exponential law of mean 1, one a token, of one position in one request.

    Math: e_i = -log(1 - u_i), with u_i the number of ``uniform`` from the words philox((i, 0), (x2, x3)), where
        (x0, x1, x2, x3) are those of ``uniform`` at this place: it reads x0 and x1, so the two share nothing.
    Cost: a philox and a logarithm a token; writes size numbers.
    Numerics: the logarithm in float64, rounded to float32: right to its last place down to 2^-53; 0 where u_i is 0.
    Constraints:
        (C1) seed, request and position are in [0, 2^64).
        (C2) size is in [0, 2^32].
    Source: inversion, Devroye, Non-uniform random variate generation, 1986, II.2; the counter by us.

    >>> exponential(seed=0, request=0, position=0, size=9)[:3] == exponential(seed=0, request=0, position=0, size=3)
    array([ True,  True,  True])
    """
    words = _place(seed, request, position)
    require(0 <= whole("size", size) <= 2**32, "C2", f"size is in [0, 2^32], got {size}")
    counters = np.zeros((size, 4), np.uint32)
    counters[:, 0] = np.arange(size)
    return (-np.log1p(-_fraction(philox(counters, words[2:])))).astype(np.float32)
