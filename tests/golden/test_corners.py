"""The corners: every operation has a case of each that concerns it, and the page says so."""

import numpy as np
import pytest

from golden.case import read_cases
from golden.corners import CORNERS, concerned, shown
from tests.golden.test_cases import OPERATIONS

CASES = tuple(case for case in read_cases() if case.op in OPERATIONS)
CONCERNED, SHOWN = concerned(CASES), shown(CASES)
EXEMPT: dict[tuple[str, str], str] = {}
"""Corners that an operation has no case of, with the reason."""


@pytest.mark.parametrize("op", sorted(CONCERNED))
def test_every_corner_has_a_case(op: str):
    lacking = CONCERNED[op] - SHOWN[op]
    assert lacking == {corner for each, corner in EXEMPT if each == op}


def test_every_corner_concerns_some_operation():
    assert set().union(*CONCERNED.values()) == {corner.name for corner in CORNERS}


def shows(name, **call):
    return any(corner.shows(call) for corner in CORNERS if corner.name == name and corner.concerns(call))


def test_corners_are_read_off_the_arguments():
    q, k = np.zeros((3, 4, 2), np.float32), np.zeros((3, 2, 2), np.float32)
    assert shows("G > 1", q=q, k=k) and not shows("G > 1", q=q, k=np.zeros((3, 4, 2), np.float32))
    assert shows("T is not S", q=q, k=k[:2]) and not shows("T is not S", q=q, k=k)
    assert shows("blind row", q=q, k=k[:2]) and not shows("blind row", q=q, k=k[:2], causal=False)
    assert shows("blind row", q=q, k=k, mask=np.array([[True] * 3, [False] * 3, [True] * 3]))
    assert shows("large", q=q + 30, k=k + 4) and not shows("large", q=q, k=k)
    assert shows("ties", logits=np.float32([1, 2, 1]))
    assert not shows("ties", logits=np.float32([1, 2, -np.inf, -np.inf]))
    assert shows("size 1", x=np.zeros((1, 5))) and not shows("size 1", x=np.zeros((2, 5)))
    assert shows("past a tile", x=np.zeros(33)) and not shows("past a tile", x=np.zeros((17 - 1, 2)))
    paged = {"q": q, "k_cache": np.zeros((4, 8, 2, 2)), "context_lens": np.array([9, 8])}
    paged["cu_seqlens"] = np.array([0, 1, 3])
    assert shows("partly full", **paged) and not shows("partly full", **paged | {"context_lens": np.array([16, 8])})
    assert shows("permuted", block_tables=np.array([[2, 0, -1]]))
    assert not shows("permuted", block_tables=np.array([[0, 2, -1]]))
