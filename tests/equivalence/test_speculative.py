"""The kernels of speculative decoding decide as the reference decides, and a request's draft is its own."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from golden.values import dtype_named
from gpu import device
from gpu.llm.speculative import accepted_length_into
from gpu.llm.speculative import residual_probs as residual_on_the_device
from refimpl.contract import ContractError
from refimpl.llm.speculative import accepted_length
from tests.equivalence.strategies import assert_equivalent, dtypes, each_kernel, examples, reference, seeds
from tests.laws.test_speculative import BROKEN, laws_of

drafts = st.sampled_from((0, 1, 2, 31, 33, 65))
vocabularies = st.sampled_from((1, 2, 33, 257))


def draft_of(seed: int, count: int, V: int, dtype: str, draft_dtype: str | None = None) -> dict[str, np.ndarray]:
    """Draw a draft of which half the tokens are as likely for the model: some stay, some are at the bound."""
    p, q = (laws_of(seed + i, count, V).reshape(count, V) for i in (0, 1))
    draws = np.random.default_rng(seed)
    q = q.astype(dtype_named(draft_dtype or dtype))
    p[: count // 2] = q[: count // 2]
    p = p.astype(dtype_named(dtype))
    noise = np.where(draws.random(count) < 0.3, 0, draws.random(count)).astype(np.float32)
    return {"probs": p, "draft_probs": q, "ids": draws.integers(0, V, count), "noise": noise * np.float32(0.999)}


@each_kernel("accepted_length")
@examples
@given(seeds, drafts, vocabularies, dtypes, dtypes)
def test_accepted_length(kernel, seed, count, V, dtype, draft_dtype):
    draft = draft_of(seed, count, V, dtype, draft_dtype)
    assert kernel.call(**draft) == reference("accepted_length")(**draft)


@each_kernel("residual_probs")
@examples
@given(seeds, vocabularies, dtypes, dtypes, st.sampled_from(("alike", "rounded", "other")))
def test_residual_probs(kernel, seed, V, dtype, draft_dtype, draft):
    """A draft in wider numbers, of which the model's law is the rounding, leaves what was rounded away."""
    p, q = laws_of(seed, 2, V)
    q = (q if draft == "other" else p).astype(dtype_named(draft_dtype))
    p = p.astype(dtype_named(dtype))
    assert_equivalent(kernel, {"probs": p, "draft_probs": p if draft == "alike" else q}, dtype, terms=V * V)


@examples
@given(seeds, st.integers(1, 5), dtypes)
def test_accepted_length_of_many_requests_is_each_one_s(seed, R, dtype):
    rows = [draft_of(seed + 2 * r, 3, 9, dtype) for r in range(R)]
    counts, packed = device.empty(R, np.int32), {name: np.stack([row[name] for row in rows]) for name in rows[0]}
    kinds = {"ids": np.int32, "noise": np.float64}
    accepted_length_into(counts, *(device.array(x, kinds.get(name)) for name, x in packed.items()))
    assert counts.tolist() == [accepted_length(**row) for row in rows]


@pytest.mark.parametrize(("operation", "label", "arguments"), BROKEN)
def test_twins_refuse_the_same(operation, label, arguments):
    import gpu.llm.speculative as twins

    narrow = [x.astype(np.float32) if x.dtype == np.float64 and i < 2 else x for i, x in enumerate(arguments)]
    with pytest.raises(ContractError, match=f"^{label}: "):
        getattr(twins, operation.__name__)(*narrow)


def test_an_empty_vocabulary_has_an_empty_residual():
    assert residual_on_the_device(np.zeros(0, np.float32), np.zeros(0, np.float32)).shape == (0,)
