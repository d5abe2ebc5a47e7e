"""The fault report on paged decode attention: slots that no token stands in hold NaN and infinity."""

import numpy as np
import pytest

from gpu.executor.attention import attend_split, finish, partial_floats
from gpu.executor.memory import aligned
from gpu.executor.page import BLOCK, PAGE
from refimpl.llm.attention import attention
from tests.outside.faults import load_case

CASE = load_case("attn_paged_unused_slots")
LENGTHS = CASE.inputs["seq_lens"].tolist()
PADDED = 32  # floats of a value in a page of the executor


def gathered(number: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the slots of a sequence in the order of its table, the unused ones too: [16, K, H] each."""
    table = CASE.inputs["block_table"][number]
    return tuple(CASE.inputs[pool][table].reshape(-1, *CASE.inputs[pool].shape[2:]) for pool in ("pool_k", "pool_v"))


@pytest.mark.parametrize("number", range(len(LENGTHS)))
def test_the_reference_hides_unused_slots(number: int):
    k, v = gathered(number)
    used = (np.arange(len(k)) < LENGTHS[number])[None]
    result = attention(CASE.inputs["q"][number][None], k, v, causal=False, mask=used)[0]
    CASE.assert_near(result, CASE.expected["out"][number])


@pytest.mark.parametrize("number", range(len(LENGTHS)))
@pytest.mark.parametrize("head", range(2))
def test_the_executor_never_reads_unused_slots(number: int, head: int):
    (k, v), q = gathered(number), CASE.inputs["q"][number].copy()
    assert len(k) == PAGE and not np.isfinite(k).all() and not np.isfinite(v).all()
    page = aligned(2 * BLOCK * 4 * PAGE * PADDED).view(np.float32)
    page[: k.shape[-1] * PAGE] = k[:, head].T.ravel()
    values = page[BLOCK * PAGE * PADDED :][: PAGE * PADDED].reshape(PAGE, PADDED)
    values[:, : v.shape[-1]] = v[:, head]
    floats = partial_floats.py_func(PADDED)
    scores, part, out = aligned(4 * 256), aligned(4 * floats), aligned(64).view(np.float32)
    positions, table = np.array([LENGTHS[number] - 1]), np.array([page.ctypes.data])
    heads, width = q.shape
    row, scale, everything = q.ctypes.data + 4 * width * head, width**-0.5, 1 << 40
    attend_split(
        row, positions, 1, width, PADDED, everything, scale, 0.0, table.ctypes.data, 0, 0,
        scores.ctypes.data, part.ctypes.data,
    )  # fmt: skip
    finish(part.ctypes.data, PADDED, width, 0, out.ctypes.data)
    assert heads == 2
    CASE.assert_near(out[:width], CASE.expected["out"][number, head])
