"""Costs: every operation has one, it is what its docstring states, and it follows the arrays."""

import importlib
import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refimpl.bottleneck.cost import FORMULAS, cost
from refimpl.contract import UsageError
from refimpl.sizes import sizes
from tests.mirror.tree import modules, public_functions, roles

OPS = [f for m in modules("refimpl") for f in public_functions(m) if roles(f.node) == ["op"]]
SIZES = {
    "T": 64, "S": 192, "V": 50000, "D": 2048, "O": 512, "F": 5504, "N": 32, "K": 8, "H": 128, "H2": 64, "J": 32,
    "R": 4, "M": 8, "B": 16, "I": 32, "L": 3, "E": 128, "A": 8, "C": 48, "Y": 33, "X": 65, "k": 8, "n": 3, "rest": 384,
    "row_bytes": 1088, "counters": 5, "draft": 7, "taps": 4, "groups": 6, "ky": 3, "kx": 5, "out_y": 31, "out_x": 61,
    "scale_y": 2, "scale_x": 3, "copies": 5, "block_size": 16, "ids": 100, "rows": 512, "size": 3,
    "dim": 320, "tokens": 64, "image": 12288, "count": 4, "frames": 9, "out_frames": 5,
}  # fmt: skip
"""A size for every word of a formula: large, and no two alike that a slip could swap."""
ELEMENTS = ("rest", "rest D", "C rest", "T D", "O D", "2 O row_bytes")


def evaluate(text: str) -> float:
    """Evaluate a formula in the notation of docstrings."""
    return float(eval(re.sub(r"(?<=[\w)]) (?=[\w(])", "*", text), {**SIZES, "log2": math.log2, "min": min}))


def stated(doc: str) -> str:
    """Return the stanza of costs in one line."""
    stanza = re.search(r"Cost:(.*?)\n\s*(?:Numerics|Constraints|Source):", doc, re.S)
    return " ".join(stanza[1].split()) if stanza else ""


TERM = r"(?:\d+|\b[A-Z]2?\b|\b(?:ky|kx|taps|rows|out_y|out_x)\b|\([A-Z0-9 +]+\)|/ groups)"
FLOP = re.compile(rf"(?<![\w/] )\b({TERM}(?: {TERM})*) flop\b(?! an? )")
OVER = re.compile(r"flop over (.*?) elements")
EACH = re.compile(r"\b(\d+) flop(?:,? [\w ,]*?)? an? element\b")


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.node.name)
def test_every_operation_has_a_cost(op):
    name = op.node.name
    assert name in FORMULAS, f"{name} has no row in refimpl/bottleneck/cost.py; its docstring says: {stated(op.doc)}"
    found = cost(name, b=4, **SIZES)
    assert found.flops >= 0 and found.bytes > 0
    words = set(re.findall(r"[A-Za-z]\w*", " ".join(FORMULAS[name]))) - {"b", "min", "log2"}
    signature = getattr(importlib.import_module(op.module.name), name)
    known = set(re.findall(r"\w+", f"{op.doc} {signature.__annotations__} {signature.__code__.co_varnames}"))
    assert words - known <= {"rest", "S", "ids"}, "the formula names what neither signature nor docstring names"


def test_no_cost_is_left_of_an_operation_that_is_gone():
    assert set(FORMULAS) - {op.node.name for op in OPS} == set()


def states_flop(doc: str) -> list[str]:
    return [match[1] for match in FLOP.finditer(stated(doc)) if not match[1].isdigit()]


def test_most_docstrings_state_what_can_be_evaluated():
    read = [op for op in OPS if states_flop(op.doc) or EACH.search(stated(op.doc)) or OVER.search(stated(op.doc))]
    assert len(read) > len(OPS) // 2


@pytest.mark.parametrize("op", [op for op in OPS if states_flop(op.doc)], ids=lambda op: op.node.name)
def test_flop_are_those_of_the_docstring(op):
    found, text = cost(op.node.name, b=4, **SIZES).flops, stated(op.doc)
    wanted = sum(map(evaluate, states_flop(op.doc)))
    wanted += sum(evaluate(match[1]) for match in re.finditer(r"([\dTOD ]+) integer operations", text))
    assert found >= wanted if "comparisons" in text else found == pytest.approx(wanted), text


@pytest.mark.parametrize("op", [op for op in OPS if EACH.search(stated(op.doc))], ids=lambda op: op.node.name)
def test_flop_an_element_are_those_of_the_docstring(op):
    number = EACH.search(stated(op.doc))
    assert number is not None
    wanted = [f"{number[1]} {elements}" for elements in ELEMENTS]
    assert FORMULAS[op.node.name][0] in [*wanted, *(formula.removeprefix("1 ") for formula in wanted)]


@pytest.mark.parametrize("op", [op for op in OPS if OVER.search(stated(op.doc))], ids=lambda op: op.node.name)
def test_bytes_are_those_of_the_docstring(op):
    elements = OVER.search(stated(op.doc))
    assert elements is not None
    assert cost(op.node.name, b=4, **SIZES).bytes == pytest.approx(4 * evaluate(elements[1]), rel=0.02)


def test_a_matrix_of_4096_in_float16_is_32_mebibytes():  # the chapter
    assert cost("linear", b=2, T=0, O=4096, D=4096).bytes == 32 * 2**20


def test_attention_in_decode_does_about_62_operations_a_byte():
    """64 query heads on one key head, 2048 tokens, float16: 64 operations a byte of the keys, less the queries' bytes.

    The chapter's derivation is that of attention in three steps over 4096 tokens of a head of 128, whose scores go to
    memory and back: the same 62.
    """
    decode = cost("attention", b=2, T=1, S=2048, N=64, K=1, H=128, H2=128)
    assert decode.intensity == pytest.approx(62.06, abs=0.01)
    S, H = 4096, 128
    scores, weights = cost("linear", b=2, T=S, O=S, D=H), cost("softmax", b=2, rest=S * S)
    plain = scores + weights + cost("linear", b=2, T=S, O=H, D=S)
    assert plain.bytes == 8 * S * S + 8 * S * H
    assert plain.intensity == pytest.approx(62.5, abs=0.1)
    assert cost("flash_attention", b=2, T=S, S=S, N=1, K=1, H=H, H2=H).intensity > 30 * plain.intensity


@given(st.integers(1, 64), st.integers(1, 64), st.integers(1, 64))
def test_linear_moves_what_its_arrays_hold(T, rows, D):
    x, w = np.ones((T, D), np.float32), np.ones((rows, D), np.float32)
    from refimpl.basics.linear import linear

    found = cost("linear", **sizes(linear, {"x": x, "w": w}))
    assert found.bytes == x.nbytes + w.nbytes + linear(x, w).nbytes


@given(st.integers(1, 512), st.integers(1, 9), st.integers(1, 9))
def test_more_queries_read_the_same_keys(S, T, G):
    from refimpl.llm.attention import attention

    q, k = np.ones((T, 2 * G, 4), np.float16), np.ones((S, 2, 4), np.float16)
    found = cost("attention", **sizes(attention, {"q": q, "k": k, "v": k, "causal": False}))
    assert found.bytes == 2 * (q.nbytes + k.nbytes) and found.flops == 4 * T * S * 2 * G * 4


def test_what_is_missing_is_named():
    with pytest.raises(UsageError, match="the cost of linear needs the sizes D, O"):
        cost("linear", T=1)
    with pytest.raises(UsageError, match="there is no operation 'lineal'; the operations are softmax, log_softmax"):
        cost("lineal")


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize("size", [-1, math.nan, math.inf, "a", None])
def test_a_size_is_a_number_from_0(size):
    for wrong in ({"T": size}, {"b": size}):
        with pytest.raises(UsageError, match="the cost of linear needs the sizes D, O, T, finite and not negative"):
            cost("linear", **{"T": 1, "O": 1, "D": 1} | wrong)


@pytest.mark.parametrize("op", FORMULAS)
@pytest.mark.parametrize("size", [0, 1, 10**9, 10**30])
def test_every_size_has_a_cost_or_is_refused(op, size):
    try:
        found = cost(op, **dict.fromkeys(SIZES, size))
    except UsageError:
        assert size == 0  # groups of nothing, the logarithm of no token
    else:
        assert found.flops >= 0 and found.bytes >= 0 and found.intensity >= 0


def test_sizes_do_not_replace_functions():
    assert cost("moe", T=2, A=3, D=5, F=7, E=4, min=0, log2=0) == cost("moe", T=2, A=3, D=5, F=7, E=4)


def test_grouped_experts_are_read_once_and_only_where_tokens_go():
    few = cost("grouped_moe", b=2, T=2, A=2, E=64, D=32, F=16)
    assert few.bytes == 2 * (2 * 2 * 32 + 3 * 4 * 32 * 16)
    many = cost("grouped_moe", b=2, T=1000, A=2, E=64, D=32, F=16)
    assert many.bytes == 2 * (2 * 1000 * 32 + 3 * 64 * 32 * 16)
