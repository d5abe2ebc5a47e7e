"""Every kernel of the tail's cuts keeps what the reference keeps, exactly, and so do the ties of top-k."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gpu import device
from gpu.llm.cuts import best_into, top_k, top_k_into
from gpu.llm.tail_cuts import (
    epsilon_cutoff,
    epsilon_cutoff_into,
    eta_cutoff,
    eta_cutoff_into,
    top_h,
    top_h_into,
    top_n_sigma,
    top_n_sigma_into,
    typical,
    typical_into,
)
from gpu.number import DTYPES
from refimpl.contract import ContractError
from refimpl.llm import cuts, tail_cuts
from tests.equivalence.strategies import dtypes, each_kernel, examples, seeds
from tests.equivalence.test_sampler import assert_same, kinds, logits_of, shares, vocabularies

sigmas = st.one_of(st.floats(0, 4), st.sampled_from((0.0, 1.0, 5e-324, 1e300)))


@each_kernel("typical", "epsilon_cutoff", "eta_cutoff", "top_h")
@examples
@given(seeds, vocabularies, dtypes, kinds, shares)
def test_cuts_of_a_share(kernel, seed, V, dtype, kind, p):
    """typical, epsilon_cutoff, eta_cutoff, top_h."""
    name = {"typical": "p", "top_h": "h"}.get(kernel.op, "epsilon")
    assert_same(kernel, {"logits": logits_of(seed, V, dtype, kind), name: p})


@each_kernel("top_n_sigma")
@examples
@given(seeds, vocabularies, dtypes, kinds, sigmas)
def test_top_n_sigma(kernel, seed, V, dtype, kind, n):
    assert_same(kernel, {"logits": logits_of(seed, V, dtype, kind), "n": n})


@each_kernel("top_k")
@examples
@given(seeds, vocabularies, dtypes, kinds, st.floats(0, 1.1))
def test_top_k_with_all_ties(kernel, seed, V, dtype, kind, share):
    assert_same(kernel, {"logits": logits_of(seed, V, dtype, kind), "k": round(share * V), "ties": "all"})


@given(seeds, st.integers(1, 4), st.sampled_from((1, 33, 257)), dtypes, kinds)
def test_rows_are_each_alone(seed, R, V, dtype, kind):
    rows = np.stack([logits_of(seed + r, V, dtype, kind) for r in range(R)])
    best, out, scratch = device.empty(R, np.int32), device.empty((R, V), rows.dtype), device.empty((R, V), np.int64)
    best_into(best, rows)
    for write, cut, value in (
        (lambda: typical_into(out, rows, best, 0.7, scratch), tail_cuts.typical, 0.7),
        (lambda: top_h_into(out, rows, best, 0.4, scratch), tail_cuts.top_h, 0.4),
        (lambda: epsilon_cutoff_into(out, rows, best, 0.02), tail_cuts.epsilon_cutoff, 0.02),
        (lambda: eta_cutoff_into(out, rows, best, 0.1), tail_cuts.eta_cutoff, 0.1),
        (lambda: top_n_sigma_into(out, rows, best, 1.0), tail_cuts.top_n_sigma, 1.0),
        (lambda: top_k_into(out, rows, 3, "all"), lambda row, k: cuts.top_k(row, k, "all"), 3),
    ):
        write()
        assert np.array_equal(out, [cut(row, value) for row in rows])


@given(seeds, dtypes, st.floats(0.1, 0.9))
def test_neighbours_in_the_batch_change_nothing(seed, dtype, p):
    assume(p < 1)
    rows = np.stack([logits_of(seed + r, 65, dtype, "plain") for r in range(3)])
    best, scratch = device.empty(3, np.int32), device.empty((3, 65), np.int64)
    before, after = (device.empty((3, 65), rows.dtype) for _ in range(2))
    for other in (rows[[0, 2, 1]], np.stack([rows[0], rows[0], rows[0]])):
        for into in (typical_into, top_h_into):
            for out, x in ((before, rows), (after, np.ascontiguousarray(other))):
                best_into(best, x)
                into(out, x, best, p, scratch)
            assert np.array_equal(before[0], after[0])


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_large_vocabulary(dtype):
    logits = logits_of(7, 65536, dtype, "plain")
    with device.checks(orders=1, races=False):
        assert np.array_equal(typical(logits, 0.9), tail_cuts.typical(logits, 0.9))
        assert np.array_equal(epsilon_cutoff(logits, 3e-5), tail_cuts.epsilon_cutoff(logits, 3e-5))
        assert np.array_equal(eta_cutoff(logits, 3e-4), tail_cuts.eta_cutoff(logits, 3e-4))
        assert np.array_equal(top_n_sigma(logits, 1.5), tail_cuts.top_n_sigma(logits, 1.5))
        assert np.array_equal(top_h(logits, 0.5), tail_cuts.top_h(logits, 0.5))


FINE, NAN, NONE, INF = np.zeros(3, np.float32), np.float32([0, np.nan]), np.float32([-np.inf]), np.float32([0, np.inf])
TWINS = (typical, epsilon_cutoff, eta_cutoff, top_n_sigma, top_h)


@pytest.mark.parametrize(
    ("label", "twin", "arguments"),
    [
        *(("C1", twin, (NAN, value)) for twin in TWINS for value in (0.0, 0.5, 1.0)),
        *(("C2", twin, (logits, 0.5)) for twin in TWINS for logits in (NONE, INF, np.zeros(0, np.float32), FINE[None])),
        *(("C3", twin, (FINE, value)) for twin in TWINS for value in (-0.1, np.nan, np.inf)),
        ("C4", top_k, (FINE, 1, "last")),
    ],
)
def test_refused_by_label(label, twin, arguments):
    with pytest.raises(ContractError, match=f"^{label}: "):
        twin(*arguments)


@pytest.mark.parametrize("twin", TWINS)
def test_float64_is_refused(twin):
    with pytest.raises(ContractError, match="float32, bfloat16 and float16, not float64"):
        twin(np.ones(3), 0.5)
