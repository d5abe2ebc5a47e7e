"""Draws follow their law: a chi-square test passes each, and a wrong one beside it fails the same test.

Seeds are fixed, so that every probability is one number; where it is told here, it is that of the reference.
"""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from golden.values import dtype_named
from gpu import device
from gpu.llm.rng import exponential_into, uniform_into
from gpu.llm.sampler import draw_into, draw_race_into
from refimpl.contract import ContractError
from refimpl.llm.rng import exponential, uniform
from refimpl.llm.sampler import draw, draw_race
from tests.laws.strategies import DTYPES, seeds

WEIGHTS = np.array([0, 5, 1, 0, 20, 3, 7, 64, 2, 9, 30, 0])
PROBS = (WEIGHTS / 256).astype(np.float32)  # of sum 0.55: whoever takes u for u times the sum is wrong
CELLS = np.flatnonzero(WEIGHTS)
N, RIGHT, WRONG = 1500, 0.01, 1e-5


def tail(chi_square: float, cells: int) -> float:
    """Return with which probability chi-square is larger, of an odd number of cells: a closed form."""
    assert cells % 2 == 1
    half = chi_square / 2
    return math.exp(-half) * math.fsum(half**k / math.factorial(k) for k in range((cells - 1) // 2))


def fit(counts: np.ndarray, shares: np.ndarray) -> float:
    """Return the probability of counts that are as far from their shares, or farther."""
    wanted = counts.sum() * shares / shares.sum()
    return tail(float(((counts - wanted) ** 2 / wanted).sum()), len(counts))


def fit_of_ids(ids) -> float:
    counts = np.bincount(ids, minlength=len(WEIGHTS))
    assert counts.sum() == counts[CELLS].sum() == len(ids), "a token of probability 0 is never drawn"
    return fit(counts[CELLS], WEIGHTS[CELLS])


def test_the_closed_form_is_that_of_the_tables():
    assert tail(15.507, 9) == pytest.approx(0.05, rel=1e-3)
    assert tail(26.125, 9) == pytest.approx(0.001, rel=1e-3)


def test_inverse_cdf_follows_its_law():
    assert len(CELLS) == 9
    us = [uniform(seed=1, request=0, position=i) for i in range(N)]
    assert fit_of_ids([draw(PROBS, u) for u in us]) > RIGHT  # 0.63
    edges = np.cumsum(PROBS, dtype=np.float64)
    of_one = [min(np.searchsorted(edges, u, side="right"), 10) for u in us]
    assert fit_of_ids(of_one) < WRONG, "u is not multiplied by the sum; 3e-248"
    coarse = [draw(PROBS, math.floor(u * 16) / 16) for u in us]
    assert fit_of_ids(coarse) < WRONG, "u of four bits; 9e-42"


def test_race_follows_its_law():
    noise = [exponential(seed=1, request=0, position=i, size=len(PROBS)) for i in range(N)]
    assert fit_of_ids([draw_race(PROBS, e) for e in noise]) > RIGHT  # 0.70
    assert fit_of_ids([draw_race(PROBS, -np.expm1(-e)) for e in noise]) < WRONG, "uniform times; 8e-7"
    assert fit_of_ids([draw_race(PROBS**0.5, e) for e in noise]) < WRONG, "another temperature"


@pytest.fixture
def emulated():
    with device.use("emulated"), device.checks(orders=1, races=False):
        yield


def places(count: int, seed: int = 1) -> list[np.ndarray]:
    return [np.full(count, seed, np.uint64), np.zeros(count, np.uint64), np.arange(count, dtype=np.uint64)]


def test_inverse_cdf_of_the_device_follows_its_law(emulated):
    units, ids, rows = np.empty(N, np.uint64), np.empty(N, np.int32), np.tile(PROBS, (N, 1))
    uniform_into(units, *places(N))
    draw_into(ids, rows, units)
    assert fit_of_ids(ids) > RIGHT  # the same ids as the reference: 0.63
    ids = np.empty(N // 4, np.int32)
    draw_into(ids, rows[: len(ids)], units[: len(ids)] & np.uint64(0xF << 49))
    assert fit_of_ids(ids) < WRONG, "u of four bits"


def test_race_of_the_device_follows_its_law(emulated):
    noise, ids, rows = np.empty((N, len(PROBS)), np.float32), np.empty(N, np.int32), np.tile(PROBS, (N, 1))
    exponential_into(noise, *places(N))
    draw_race_into(ids, rows, noise)
    assert fit_of_ids(ids) > RIGHT  # 0.70
    draw_race_into(ids, rows, -np.expm1(-noise))
    assert fit_of_ids(ids) < WRONG, "uniform times"


def test_the_noise_is_exponential_over_tokens_positions_requests_and_seeds():
    n, cells = 1024, 17
    edges = -np.log1p(-np.arange(1, cells) / cells)
    for noise in (
        exponential(7, 0, 0, n),
        np.array([exponential(7, 0, i, 3)[2] for i in range(n)]),
        np.array([exponential(7, i, 0, 1)[0] for i in range(n)]),
        np.array([exponential(i, 0, 0, 2)[1] for i in range(n)]),
    ):
        counts = np.bincount(np.searchsorted(edges, noise, side="right"), minlength=cells)
        assert fit(counts, np.ones(cells)) > 1e-3
        assert fit(np.bincount(np.searchsorted(edges, noise**1.3), minlength=cells), np.ones(cells)) < WRONG
        assert abs(np.corrcoef(noise[:-1], noise[1:])[0, 1]) < 4 / math.sqrt(n)


def test_neighbours_in_position_and_token_are_strangers():
    rows = np.stack([exponential(3, 0, i, 8) for i in range(512)])
    together = np.corrcoef(rows.T) - np.eye(8)
    assert np.abs(together).max() < 4 / math.sqrt(512)
    assert len(np.unique(rows)) > rows.size - 9, "of 4096 numbers of float32 few are equal"


def test_race_and_inverse_share_no_noise():
    us = np.array([uniform(5, 0, i) for i in range(512)])
    first = np.array([exponential(5, 0, i, 1)[0] for i in range(512)])
    assert abs(np.corrcoef(us, first)[0, 1]) < 4 / math.sqrt(512)


@given(seeds, st.integers(0, 40), st.integers(0, 40))
def test_a_token_has_its_noise_whatever_the_vocabulary(seed, size, more):
    assert np.array_equal(exponential(seed, 1, 2, size + more)[:size], exponential(seed, 1, 2, size))


WORDS = st.integers(0, 2**64 - 1)


@given(WORDS, WORDS, WORDS)
def test_exponential_is_finite_and_not_negative(seed, request_id, position):
    noise = exponential(seed, request_id, position, 5)
    assert noise.dtype == np.float32 and (noise >= 0).all() and (noise <= 53 * math.log(2)).all()


@given(seeds, st.integers(1, 40), st.sampled_from(DTYPES))
def test_race_never_draws_a_probability_of_zero(seed, V, dtype):
    draws = np.random.default_rng(seed)
    probs = (draws.random(V) * (draws.random(V) < 0.3)).astype(dtype)
    probs[seed % V] = 1
    noise = draws.exponential(size=V) * (draws.random(V) < 0.5)  # half of them 0
    drawn = draw_race(probs, noise)
    assert probs[drawn] > 0
    times = [noise[i] / float(probs[i]) if probs[i] > 0 else math.inf for i in range(V)]
    assert drawn == times.index(min(times))


@given(seeds, st.integers(1, 20), st.integers(-20, 20))
def test_race_does_not_know_the_sum(seed, V, power):
    draws = np.random.default_rng(seed)
    probs, noise = draws.random(V) + 1e-3, draws.exponential(size=V)
    assert draw_race(probs * 2.0**power, noise) == draw_race(probs, noise) == draw_race(probs, noise * 2.0**power)


def test_race_of_equals_is_won_by_the_first():
    assert draw_race(np.full(5, 0.2), np.full(5, 0.7)) == 0
    assert draw_race(np.array([0.0, 5e-324]), np.array([0.0, 1.0])) == 1, "its time is infinite, and still it comes"


@given(seeds, st.integers(2, 6), st.sampled_from(("float32", "bfloat16", "float16")))
def test_a_draw_never_depends_on_its_neighbours(seed, R, dtype):
    draws = np.random.default_rng(seed)
    probs = draws.random((R, 33)).astype(dtype_named(dtype))
    order, other = draws.permutation(R), draws.random((R, 33)).astype(probs.dtype)
    row = int(draws.integers(R))
    other[row] = probs[row]
    where = [draws.integers(0, 2**64, R, np.uint64) for _ in range(3)]
    elsewhere = [draws.integers(0, 2**64, R, np.uint64) for _ in range(3)]
    for mine, theirs in zip(where, elsewhere, strict=True):
        theirs[row] = mine[row]
    with device.use("emulated"):
        together = drawn(probs, where)
        assert (drawn(probs[order], [place[order] for place in where]) == together[:, order]).all()
        alone = drawn(probs[row : row + 1], [place[row : row + 1] for place in where])
        assert (alone[:, 0] == together[:, row]).all()
        assert (drawn(other, elsewhere)[:, row] == together[:, row]).all()
    spots = [list(map(int, spot)) for spot in zip(*where, strict=True)]
    inverted = [draw(row_of, uniform(*spot)) for row_of, spot in zip(probs, spots, strict=True)]
    raced = [draw_race(row_of, exponential(*spot, 33)) for row_of, spot in zip(probs, spots, strict=True)]
    assert together.tolist() == [inverted, raced]


def drawn(probs: np.ndarray, where: list[np.ndarray]) -> np.ndarray:
    """Return the ids that both draws of the device give, each with the noise of its places."""
    R, V = probs.shape
    units, noise, ids = np.empty(R, np.uint64), np.empty((R, V), np.float32), np.empty((2, R), np.int32)
    where = [np.ascontiguousarray(place) for place in where]
    uniform_into(units, *where)
    exponential_into(noise, *where)
    draw_into(ids[0], np.ascontiguousarray(probs), units)
    draw_race_into(ids[1], np.ascontiguousarray(probs), noise)
    return ids


FAIR, TIMES = np.array([0.5, 0.5]), np.array([1.0, 2.0])


@pytest.mark.parametrize(
    ("label", "call"),
    [
        *(("C1", lambda noise=noise: draw_race(FAIR, np.array(noise))) for noise in ([1.0, -1.0], [1.0, np.nan])),
        ("C1", lambda: draw_race(FAIR, np.array([1.0, np.inf]))),
        ("C2", lambda: draw_race(np.array([0.0, 0.0]), TIMES)),
        ("C2", lambda: draw_race(np.array([1.0, -0.5]), TIMES)),
        ("C2", lambda: draw_race(np.array([np.nan, 0.5]), TIMES)),
        ("C2", lambda: draw_race(np.array([]), np.array([]))),
        ("C1", lambda: exponential(-1, 0, 0, 1)),
        ("C1", lambda: exponential(0, 2**64, 0, 1)),
        ("C2", lambda: exponential(0, 0, 0, -1)),
    ],
)
def test_constraints(label, call):
    with pytest.raises(ContractError, match=f"^{label}: "):
        call()
