"""Comparisons, choices and moves against Python."""

import math
import operator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu.interpreter import compare, moves
from tests.interpreter.exact import number, register
from tests.interpreter.warp import LANES, lanes_of, numbers, run

COMPARISONS = sorted(opcode for opcode in compare.catalogue() if opcode.startswith(("set.", "setp.")))
CHOICES = sorted(compare.catalogue() - set(COMPARISONS))
MOVES = sorted(opcode for opcode in moves.catalogue() if opcode.startswith("mov.") and "pack" not in opcode)
PIECES = [opcode for opcode in moves.catalogue() if ".pack" in opcode]
OPCODES = (*COMPARISONS, *CHOICES, *MOVES, *PIECES, *(opcode.replace(".pack", ".unpack") for opcode in PIECES))
ORDER = {name: getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")} | {
    "lo": operator.lt, "ls": operator.le, "hi": operator.gt, "hs": operator.ge,
}  # fmt: skip
JOIN = {"and": operator.and_, "or": operator.or_, "xor": operator.xor}


def read(pattern: int, kind: str, flush: bool) -> int | float:
    """Return the number that a register stands for."""
    if kind[0] == "f":
        x = number(pattern, kind)
        return math.copysign(0.0, x) if flush and abs(x) < 2.0**-126 else x
    return numbers(np.array([pattern], np.uint64), int(kind[1:]), kind[0] == "s")[0]


def holds(relation: str, x: int | float, y: int | float) -> bool:
    unordered = x != x or y != y
    if relation in ("num", "nan"):
        return unordered == (relation == "nan")
    return relation.endswith("u") if unordered else bool(ORDER[relation[:2]](x, y))


GROUPS = sorted({(opcode.split(".")[0], opcode.split(".")[-1]) for opcode in COMPARISONS})


@pytest.mark.parametrize("group", GROUPS, ids=".".join)
@settings(max_examples=4)
@given(st.data())
def test_comparisons(group: tuple[str, str], data: st.DataObject):
    kind = group[1]
    corners = [register(x, kind) for x in (0.0, -0.0, math.inf, math.nan, 1e-45, -1e-45)] if kind[0] == "f" else []
    a, b = (data.draw(lanes_of(int(kind[1:]), corners)) for _ in range(2))
    b, other = np.where(data.draw(lanes_of(1)) == 1, a, b), data.draw(lanes_of(1))
    pairs = list(zip(a.tolist(), b.tolist(), strict=True))
    for opcode in COMPARISONS:
        name, relation, *words, last = opcode.split(".")
        if (name, last) != group:
            continue
        first, second = run(compare, opcode, a, b, other, width=32, results=2)
        join = next((JOIN[word] for word in words if word in JOIN), lambda found, _: found)
        found = [holds(relation, *(read(p, kind, "ftz" in words) for p in pair)) for pair in pairs]
        want = [int(join(x, bool(p))) for x, p in zip(found, other.tolist(), strict=True)]
        if name == "set":
            assert first.tolist() == [x * (0x3F800000 if words[-1] == "f32" else 0xFFFFFFFF) for x in want], opcode
        else:
            assert first.tolist() == want, opcode
            opposite = [int(join(not x, bool(p))) for x, p in zip(found, other.tolist(), strict=True)]
            assert second.tolist() == opposite, opcode


@pytest.mark.parametrize("opcode", CHOICES)
@settings(max_examples=6)
@given(st.data())
def test_choices(opcode: str, data: st.DataObject):
    name, *words = opcode.split(".")
    bits = int(words[0][1:]) if name != "testp" else int(words[1][1:])
    corners = [register(x, "f32") for x in (0.0, -0.0, math.inf, -math.inf, math.nan, 1e-45)]
    if name == "testp":
        a = data.draw(lanes_of(bits, [register(x, words[1]) for x in (0.0, 1e-310, 1e-45, math.inf, math.nan, 1.0)]))
        tiny = 2.0**-126 if bits == 32 else 2.0**-1022
        kinds = {
            "finite": math.isfinite, "infinite": math.isinf, "number": lambda x: x == x, "notanumber": math.isnan,
            "normal": lambda x: math.isfinite(x) and abs(x) >= tiny, "subnormal": lambda x: 0 < abs(x) < tiny,
        }  # fmt: skip
        assert run(compare, opcode, a).tolist() == [int(kinds[words[0]](number(p, words[1]))) for p in a.tolist()]
        return
    a, b = data.draw(lanes_of(bits)), data.draw(lanes_of(bits))
    c = data.draw(lanes_of(1) if name == "selp" else lanes_of(32, corners))
    chosen = {
        "selp": lambda: c == 1,
        "s32": lambda: c.astype(np.uint32).view(np.int32) >= 0,
        "f32": lambda: c.astype(np.uint32).view(np.float32) >= 0,
    }["selp" if name == "selp" else words[1]]()
    assert np.array_equal(run(compare, opcode, a, b, c, width=bits), np.where(chosen, a, b))


@pytest.mark.parametrize("opcode", MOVES)
@settings(max_examples=4)
@given(st.data())
def test_moves(opcode: str, data: st.DataObject):
    bits = 1 if opcode == "mov.pred" else int(opcode[5:])
    a = data.draw(lanes_of(bits))
    assert np.array_equal(run(moves, opcode, a, width=bits), a)


@pytest.mark.parametrize("opcode", PIECES)
def test_pieces(opcode: str):
    pieces, bits = int(opcode[len("mov.pack")]), int(opcode[-2:])
    size = np.uint64(bits // pieces)
    whole = np.random.default_rng(4).integers(0, (1 << bits) - 1, LANES, np.uint64)
    parts = [whole >> size * np.uint64(i) & np.uint64((1 << int(size)) - 1) for i in range(pieces)]
    assert np.array_equal(run(moves, opcode, *parts, width=bits), whole)
    assert np.array_equal(run(moves, opcode.replace(".pack", ".unpack"), whole, width=int(size), results=pieces), parts)
