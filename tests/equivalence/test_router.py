"""Every kernel of routers chooses what the reference chooses, and weighs it as the reference does."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from golden.tolerance import judge
from golden.values import dtype_named
from gpu import device
from gpu.llm import router as twins
from refimpl.contract import ContractError
from tests.equivalence.strategies import dtypes, each_kernel, examples, numbers, reference, seeds, specials
from tests.laws.test_router import BROKEN

counts = st.sampled_from((0, 1, 2, 9, 33))
experts = st.sampled_from((1, 2, 31, 32, 33, 65))
choices = st.sampled_from((1, 2, 5, 40))
groupings = st.sampled_from(((1, 1, 1), (1, 1, 33), (4, 2, 2), (4, 4, 3), (3, 1, 9), (33, 5, 2)))  # groups, open, width
scales = st.sampled_from((1.0, 2.5))


def logits_of(seed, T, E, dtype, special=None):
    """Draw logits, of which in every second draw many are equal."""
    x = numbers(seed, T, E, special=special) * 3
    return (np.round(2 * x) / 2 if seed % 2 else x).astype(dtype_named(dtype))


def assert_routed(kernel, arguments, **keywords):
    wide = [x.astype(np.float64) if isinstance(x, np.ndarray) and x.dtype.kind not in "iu" else x for x in arguments]
    with np.errstate(all="ignore"):
        ids, weights = reference(kernel.op)(*wide, **keywords)
    found_ids, found = kernel.call(*arguments, **keywords)
    assert found_ids.dtype == np.int32 and np.array_equal(found_ids, ids)
    verdict = judge(found, weights, "float32", terms=4 * arguments[0].shape[1])
    assert verdict.passed, verdict.reason


@each_kernel("softmax_top_k", "top_k_softmax", "top_k_sigmoid")
@examples
@given(seeds, counts, experts, choices, dtypes, specials, st.booleans())
def test_routers_by_logits(kernel, seed, T, E, k, dtype, special, renormalise):
    keywords = {} if renormalise or kernel.op != "softmax_top_k" else {"renormalise": False}
    assert_routed(kernel, (logits_of(seed, T, E, dtype, special), min(k, E)), **keywords)


def assume_clear(scores):
    """Set examples aside in which float32 may take another order than float64: nearly equal, and not equal."""
    steps = np.diff(np.sort(scores, -1), axis=-1)
    assume(bool(((steps == 0) | (steps > 1e-5)).all()))


@each_kernel("sigmoid_group_top_k")
@examples
@given(seeds, counts, groupings, choices, dtypes, scales, st.booleans(), st.booleans())
def test_sigmoid_group_top_k(kernel, seed, T, grouping, k, dtype, scale, has_bias, renormalise):
    groups, top, width = grouping
    logits = logits_of(2 * seed, T, groups * width, dtype)
    bias = numbers(seed + 1, groups * width) if has_bias else None
    scores = 1 / (1 + np.exp(-logits.astype(np.float64))) + (0 if bias is None else bias)
    assume_clear(scores)
    assume_clear(np.sort(scores.reshape(T, groups, width), 2)[:, :, -2:].sum(2))
    settings = {"groups": groups, "top_groups": top, "scale": scale, "renormalise": renormalise}
    assert_routed(kernel, (logits, min(k, top * width), bias), **settings)


@each_kernel("sqrt_softplus_top_k")
@examples
@given(seeds, counts, experts, choices, dtypes, scales, st.booleans())
def test_sqrt_softplus_top_k(kernel, seed, T, E, k, dtype, scale, has_bias):
    logits, bias = logits_of(seed, T, E, dtype), numbers(seed + 1, E) if has_bias else None
    assume_clear(np.sqrt(np.logaddexp(0, logits.astype(np.float64))) + (0 if bias is None else bias))
    assert_routed(kernel, (logits, min(k, E), bias), scale=scale)


@each_kernel("hash_route")
@examples
@given(seeds, counts, experts, choices, dtypes, scales)
def test_hash_route(kernel, seed, T, E, A, dtype, scale):
    draw = np.random.default_rng(seed)
    token_ids, table = draw.integers(0, 7, T).astype(np.int32), draw.integers(0, E, (7, A))
    assert_routed(kernel, (logits_of(seed, T, E, dtype), token_ids, table), scale=scale)


@each_kernel("softmax_top_k", "sigmoid_group_top_k", "sqrt_softplus_top_k", "top_k_sigmoid")
@given(seeds, st.sampled_from((1, 9, 20)), experts, choices)
def test_a_token_is_routed_by_itself(kernel, seed, T, E, k):
    logits = numbers(seed, T, E, dtype="bfloat16")
    together = kernel.call(logits, min(k, E))
    for t in (0, T // 2, T - 1):
        alone = kernel.call(logits[t : t + 1], min(k, E))
        assert all(np.array_equal(one[0], each[t]) for one, each in zip(alone, together, strict=True))


def test_equal_groups_and_experts_come_in_their_order():
    ids, weights = twins.sigmoid_group_top_k(np.zeros((2, 36), np.float32), 4, groups=12, top_groups=2)
    assert ids.tolist() == [[0, 1, 2, 3]] * 2 and (weights == 0.25).all()
    assert twins.softmax_top_k(np.zeros((1, 70), np.float32), 35)[0].tolist() == [list(range(35))]


def test_nothing_gives_nothing_without_a_launch():
    with device.recording() as launches:
        assert [x.shape for x in twins.softmax_top_k(np.zeros((0, 4), np.float32), 2)] == [(0, 2)] * 2
        nobody = np.zeros((0, 4), np.float32), np.zeros(0, np.int64), np.zeros((1, 2), np.int64)
        assert [x.shape for x in twins.hash_route(*nobody)] == [(0, 2)] * 2
    assert launches == []


@pytest.mark.parametrize(
    ("function", "label", "arguments", "keywords"), BROKEN, ids=[f"{row[0].__name__}-{row[1]}" for row in BROKEN]
)
def test_refused_by_label(function, label, arguments, keywords):
    with pytest.raises(ContractError, match=f"^{label}: "):
        getattr(twins, function.__name__)(*arguments, **keywords)


@pytest.mark.parametrize("name", ["softmax_top_k", "top_k_softmax", "top_k_sigmoid", "sigmoid_group_top_k"])
def test_float64_is_refused_by_name(name):
    with pytest.raises(ContractError, match=r"^kernels take float32, bfloat16 and float16, not float64$"):
        getattr(twins, name)(np.ones((2, 3)), 1)
