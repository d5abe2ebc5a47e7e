"""Philox against its published vectors and a scalar loop; uniform numbers by place."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refimpl.contract import ContractError
from refimpl.llm.rng import philox, uniform

WORD = st.integers(0, 2**32 - 1)
LONG = st.integers(0, 2**64 - 1)

# Random123 1.14, kat_vectors, philox4x32 10: counter, key, result
KNOWN = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


def words(text: str) -> list[int]:
    return [int(word, 16) for word in text.split()]


def scalar_philox(x: list[int], key: list[int]) -> list[int]:
    """The definition in Python's integers."""
    for r in range(10):
        k0, k1 = (key[0] + r * 0x9E3779B9) % 2**32, (key[1] + r * 0xBB67AE85) % 2**32
        high0, low0 = divmod(0xD2511F53 * x[0], 2**32)
        high1, low1 = divmod(0xCD9E8D57 * x[2], 2**32)
        x = [high1 ^ x[1] ^ k0, low1, high0 ^ x[3] ^ k1, low0]
    return x


def fraction(first: int, second: int) -> float:
    return ((first >> 5) * 2.0**26 + (second >> 6)) * 2.0**-53


@pytest.mark.parametrize(("counter", "key", "result"), KNOWN)
def test_known_answers(counter: str, key: str, result: str):
    got = philox(np.array(words(counter), np.uint32), np.array(words(key), np.uint32))
    assert got.dtype == np.uint32 and got.tolist() == words(result)


@given(st.lists(WORD, min_size=4, max_size=4), st.lists(WORD, min_size=2, max_size=2))
def test_equals_the_scalar_definition(counter: list[int], key: list[int]):
    got = philox(np.array(counter, np.uint32), np.array(key, np.uint32))
    assert got.tolist() == scalar_philox(counter, key)


def test_many_counters_are_each_alone():
    counters = np.arange(24, dtype=np.uint32).reshape(2, 3, 4)
    keys = np.arange(6, dtype=np.uint32).reshape(3, 2)
    together = philox(counters, keys)
    for i in range(2):
        for j in range(3):
            assert (together[i, j] == philox(counters[i, j], keys[j])).all()
    assert (philox(counters[0], keys[0]) == philox(counters[0], np.stack([keys[0]] * 3))).all()
    assert (philox(counters[0, 0], keys) == philox(np.stack([counters[0, 0]] * 3), keys)).all()


def test_philox_c1_takes_uint32_alone():
    unchecked = getattr(philox, "__wrapped__", philox)  # the checker of shapes would refuse first
    with pytest.raises(ContractError, match=r"^C1: .*int64"):
        unchecked(np.zeros(4, np.int64), np.zeros(2, np.uint32))


@pytest.mark.parametrize(("counter", "key", "result"), KNOWN)
def test_uniform_reads_the_words_low_first(counter: str, key: str, result: str):
    c, k, x = words(counter), words(key), words(result)
    got = uniform(seed=k[0] + (k[1] << 32), request=c[2] + (c[3] << 32), position=c[0] + (c[1] << 32))
    assert got == fraction(x[0], x[1])


@given(LONG, LONG, LONG)
def test_uniform_is_in_the_half_open_interval(seed: int, request_id: int, position: int):
    u = uniform(seed, request_id, position)
    assert 0 <= u < 1 and (u * 2**53).is_integer()


def test_largest_fraction_is_below_one():
    assert fraction(2**32 - 1, 2**32 - 1) == 1 - 2.0**-53


def test_uniform_is_uniform_over_positions_requests_and_seeds():
    n, bins = 4096, 16
    for place in (lambda i: (0, 0, i), lambda i: (0, i, 0), lambda i: (i, 0, 0)):
        u = np.array([uniform(*place(i)) for i in range(n)])
        counts = np.histogram(u, bins, (0, 1))[0]
        chi_square = ((counts - n / bins) ** 2 / (n / bins)).sum()
        assert chi_square < 44.3, "above the 0.9999 quantile of 15 degrees of freedom"
        neighbours = np.corrcoef(u[:-1], u[1:])[0, 1]
        assert abs(neighbours) < 4 / np.sqrt(n)


@pytest.mark.parametrize("value", [-1, 2**64])
@pytest.mark.parametrize("name", ["seed", "request", "position"])
def test_uniform_c1_range(name: str, value: int):
    place = {"seed": 0, "request": 0, "position": 0} | {name: value}
    with pytest.raises(ContractError, match=rf"^C1: {name} .*{value}"):
        uniform(**place)
