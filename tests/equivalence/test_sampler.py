"""Every kernel of the samplers keeps what the reference keeps, and draws what it draws: all of them exactly."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from golden.values import dtype_named
from gpu import device
from gpu.llm.cuts import best_into, greedy, min_p, temperature, temperature_into, top_k, top_k_into, top_p, top_p_into
from gpu.llm.penalties import frequency_penalty, logit_bias, presence_penalty, repetition_penalty
from gpu.llm.rng import philox, uniform, uniform_into
from gpu.llm.sampler import draw, draw_into
from gpu.number import DTYPES
from refimpl.contract import ContractError
from refimpl.llm import cuts, rng, sampler
from tests.equivalence.strategies import dtypes, each_kernel, examples, reference, seeds

vocabularies = st.sampled_from((1, 2, 3, 31, 33, 127, 257, 1031))
kinds = st.sampled_from(("plain", "ties", "cut", "equal", "zeros", "wide"))
shares = st.one_of(st.floats(0, 1), st.sampled_from((0.0, 1.0, 0.5, 0.25, 5e-324, 1 - 2.0**-53)))
temperatures = st.one_of(st.floats(1e-3, 10), st.sampled_from((0.0, 5e-324, 1e-40, 1e-4, 1.0, 1e30, 1e308)))
penalties_of = st.one_of(st.floats(0.5, 2), st.sampled_from((1e-300, 1e300, 1.0)))


def logits_of(seed: int, V: int, dtype: str, kind: str) -> np.ndarray:
    """Draw logits: smooth, with ties, with cut tokens, all equal, all 0 and -0, or up to the ends of the dtype."""
    draws = np.random.default_rng(seed)
    x = 3 * draws.standard_normal(V)
    if kind == "ties":
        x = np.rint(x)
    elif kind == "cut":
        x[draws.random(V) < 0.5] = -np.inf
        x[seed % V] = 1.0
    elif kind == "equal":
        x[:] = x[0]
    elif kind == "zeros":
        x = np.where(draws.random(V) < 0.5, 0.0, -0.0)
    elif kind == "wide":
        x = np.sign(x) * (65504.0 if dtype == "float16" else 3e38) ** draws.uniform(-1, 1, V)
    return x.astype(dtype_named(dtype))


def assert_same(kernel, arguments) -> None:
    """Demand the very result of the reference; of a NaN, that it is one."""
    with np.errstate(all="ignore"):
        wanted = reference(kernel.op)(**arguments)
    got = kernel.call(**arguments)
    assert type(got) is type(wanted) and getattr(got, "dtype", None) == getattr(wanted, "dtype", None)
    assert np.array_equal(np.asarray(got, np.float64), np.asarray(wanted, np.float64), equal_nan=True)


@each_kernel("greedy")
@examples
@given(seeds, vocabularies, dtypes, kinds)
def test_greedy(kernel, seed, V, dtype, kind):
    assert_same(kernel, {"logits": logits_of(seed, V, dtype, kind)})


@each_kernel("temperature")
@examples
@given(seeds, vocabularies, dtypes, kinds, temperatures)
def test_temperature(kernel, seed, V, dtype, kind, t):
    assert_same(kernel, {"logits": logits_of(seed, V, dtype, kind), "t": t})


@each_kernel("top_k")
@examples
@given(seeds, vocabularies, dtypes, kinds, st.floats(0, 1.1))
def test_top_k(kernel, seed, V, dtype, kind, share):
    assert_same(kernel, {"logits": logits_of(seed, V, dtype, kind), "k": round(share * V)})


@each_kernel("top_p", "min_p")
@examples
@given(seeds, vocabularies, dtypes, kinds, shares)
def test_top_p_and_min_p(kernel, seed, V, dtype, kind, p):
    assert_same(kernel, {"logits": logits_of(seed, V, dtype, kind), "p": p})


@each_kernel("repetition_penalty", "presence_penalty", "frequency_penalty")
@examples
@given(seeds, vocabularies, dtypes, kinds, st.integers(0, 70), penalties_of, st.sampled_from((np.int32, np.int64)))
def test_penalties(kernel, seed, V, dtype, kind, count, penalty, ids_type):
    logits = logits_of(seed, V, dtype, kind)
    if seed % 5 == 0:
        logits[seed % V] = np.nan
    ids = np.random.default_rng(seed).integers(0, V, count).astype(ids_type)
    assert_same(kernel, {"logits": logits, "ids": ids, "penalty": penalty})


@each_kernel("logit_bias")
@examples
@given(seeds, vocabularies, dtypes, kinds, st.integers(0, 70), st.booleans())
def test_logit_bias(kernel, seed, V, dtype, kind, count, is_mapping):
    draws = np.random.default_rng(seed)
    values = draws.choice([-np.inf, -1e300, -100.0, 0.1, 1.0, 1e300], count).tolist()
    pairs = list(zip(draws.integers(0, V, count).tolist(), values, strict=True))
    assert_same(kernel, {"logits": logits_of(seed, V, dtype, kind), "bias": dict(pairs) if is_mapping else pairs})


@each_kernel("draw")
@examples
@given(seeds, vocabularies, dtypes, st.sampled_from((1.0, 2.0**-20, 2.0**-130, 3e4)), st.booleans(), shares)
def test_draw(kernel, seed, V, dtype, scale, is_steep, u):
    draws = np.random.default_rng(seed)
    probs = draws.random(V) ** (40 if is_steep else 1) * scale * (draws.random(V) < 0.7)
    probs = probs.astype(dtype_named(dtype))
    if not probs.any():
        probs[seed % V] = 1
    assert_same(kernel, {"probs": probs, "u": min(u, 1 - 2.0**-53)})


words = st.integers(0, 2**64 - 1)
shapes = st.sampled_from((((), ()), ((3,), ()), ((), (2, 3)), ((2, 1), (3,)), ((300,), (300,)), ((0, 3), (3,))))


@each_kernel("philox")
@examples
@given(seeds, shapes)
def test_philox(kernel, seed, shape):
    bits = np.random.default_rng(seed).integers
    counter, key = (bits(0, 2**32, (*outer, size), np.uint32) for outer, size in zip(shape, (4, 2), strict=True))
    assert_same(kernel, {"counter": counter, "key": key})


@each_kernel("uniform")
@examples
@given(words, words, words)
def test_uniform(kernel, seed, request, position):
    assert_same(kernel, {"seed": seed, "request": request, "position": position})


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_vocabulary_of_262144(dtype):
    logits = logits_of(7, 262144, dtype, "plain")
    probs = np.exp(logits.astype(np.float32) - 9).astype(logits.dtype)
    with device.checks(orders=1, races=False):
        assert np.array_equal(greedy(logits), cuts.greedy(logits))
        assert np.array_equal(top_k(logits, 50), cuts.top_k(logits, 50))
        assert np.array_equal(top_p(logits, 0.95), cuts.top_p(logits, 0.95))
        assert [draw(probs, u) for u in (0.0, 0.3, 0.9999)] == [sampler.draw(probs, u) for u in (0.0, 0.3, 0.9999)]


@given(seeds, st.integers(1, 5), vocabularies, dtypes, kinds)
def test_rows_are_each_alone(seed, R, V, dtype, kind):
    rows = np.stack([logits_of(seed + r, V, dtype, kind) for r in range(R)])
    best, out = device.empty(R, np.int32), device.empty((R, V), rows.dtype)
    best_into(best, rows)
    assert best.tolist() == rows.astype(np.float32).argmax(1).tolist()
    top_k_into(out, rows, 3)
    assert np.array_equal(out, [cuts.top_k(row, 3) for row in rows])
    top_p_into(out, rows, best, 0.7, device.empty((R, V), np.int64))
    assert np.array_equal(out, [cuts.top_p(row, 0.7) for row in rows])
    temperature_into(out, rows, best, 0.7)
    assert np.array_equal(out, [cuts.temperature(row, 0.7) for row in rows])


def test_rows_without_a_choice_are_marked():
    rows = np.float32([[0, np.nan, 1], [-np.inf] * 3, [0, np.inf, 1], [1, 2, 2], [-np.nan, 0, 0]])
    best, ids = device.empty(5, np.int32), device.empty(5, np.int32)
    best_into(best, rows)
    assert best.tolist() == [-1, -2, -2, 1, -1]
    draw_into(ids, np.float32([[0, 0], [1, -1e-30], [np.nan, 1], [np.inf, 1], [-0.0, 1]]), np.zeros(5, np.uint64))
    assert ids.tolist() == [-2, -2, -2, -2, 1]


@given(seeds, st.integers(1, 40))
def test_noise_and_draws_of_many_requests(seed, R):
    draws = np.random.default_rng(seed)
    places = [draws.integers(0, 2**64, R, np.uint64) for _ in range(3)]
    units, ids, probs = device.empty(R, np.uint64), device.empty(R, np.int32), draws.random((R, 5)).astype(np.float32)
    uniform_into(units, *places)
    noise = [rng.uniform(*map(int, place)) for place in zip(*places, strict=True)]
    assert (units / 2**53).tolist() == noise
    draw_into(ids, probs, units)
    assert ids.tolist() == [sampler.draw(row, u) for row, u in zip(probs, noise, strict=True)]


FINE, NAN, NONE, NO_IDS = np.zeros(3, np.float32), np.float32([0, np.nan]), np.float32([-np.inf]), np.zeros(0, np.int64)
INF, EMPTY, FAIR = np.float32([0, np.inf]), np.zeros(0, np.float32), np.float32([0.5, 0.5])
OFF = ((temperature, 0.0), (top_k, 0), (top_p, 1.0), (min_p, 0.0))
CUTS = ((greedy,), (temperature, 1.0), (top_k, 1), (top_p, 0.5), (min_p, 0.5), *OFF)


@pytest.mark.parametrize(
    ("label", "twin", "arguments"),
    [
        *(("C1", twin, (NAN, *more)) for twin, *more in CUTS),
        *(("C2", twin, (logits, *more)) for twin, *more in CUTS for logits in (NONE, INF, EMPTY, FINE[None])),
        *(("C3", temperature, (FINE, t)) for t in (-0.1, np.inf, np.nan)),
        *(("C3", twin, (FINE, p)) for twin in (top_p, min_p) for p in (-0.1, 1.1, np.nan)),
        ("C3", top_k, (FINE, -1)),
        *(("C1", twin, (FINE, ids, 1.0)) for twin in (repetition_penalty, presence_penalty, frequency_penalty)
          for ids in (np.array([3]), np.array([-1]), np.zeros(1), np.zeros((1, 1), np.int64))),
        *(("C1", logit_bias, (FINE, bias)) for bias in ({-1: 0.5}, {3: 0.5})),
        ("C1", logit_bias, (FINE[None], {})),
        *(("C2", repetition_penalty, (FINE, NO_IDS, penalty)) for penalty in (0.0, np.inf, np.nan)),
        *(("C2", twin, (FINE, NO_IDS, np.nan)) for twin in (presence_penalty, frequency_penalty)),
        *(("C2", logit_bias, (FINE, {0: value})) for value in (np.inf, np.nan)),
        *(("C1", draw, (FAIR, u)) for u in (-0.1, 1.0, np.nan)),
        *(("C2", draw, (probs, 0.5)) for probs in (EMPTY, FINE, np.float32([1, -0.5]), np.float32([np.nan]), INF)),
        ("C1", philox, (np.zeros(4, np.int64), np.zeros(2, np.uint32))),
        *(("C1", uniform, place) for place in ((-1, 0, 0), (0, 2**64, 0), (0, 0, -1))),
    ],
)  # fmt: skip
def test_refused_by_label(label, twin, arguments):
    with pytest.raises(ContractError, match=f"^{label}: "):
        twin(*arguments)


@pytest.mark.parametrize("call", [
    lambda x: greedy(x), lambda x: top_k(x, 1), lambda x: draw(x, 0.5), lambda x: logit_bias(x, {}),
    lambda x: presence_penalty(x, NO_IDS, 0.5),
])  # fmt: skip
def test_float64_is_refused(call):
    with pytest.raises(ContractError, match="float32, bfloat16 and float16, not float64"):
        call(np.ones(3))


def test_nothing_gives_nothing_without_a_launch():
    with device.recording() as launches:
        assert presence_penalty(EMPTY, NO_IDS, 0.5).shape == logit_bias(EMPTY, {}).shape == (0,)
    assert launches == []
