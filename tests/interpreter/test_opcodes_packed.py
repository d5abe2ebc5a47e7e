"""float16 and bfloat16 arithmetic against fractions and NumPy."""

import math
import operator
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu.interpreter import packed
from tests.interpreter.exact import NAN, nearby, number, register
from tests.interpreter.warp import LANES, lanes_of, run

OPCODES = list(packed.catalogue())
CORNERS = [
    0, 0x8000, 1, 0x8001, 0x3FF, 0x400, 0x7F, 0x80, 0x3C00, 0x3C01, 0xBC00, 0x3F80, 0xBF80, 0x7BFF, 0xFBFF, 0x7C00,
    0xFC00, 0x7C01, 0x7F80, 0xFF80, 0x7F7F, 0xFF7F, 0x7F81, 0xFFFF, 0x7E00, 0x4000, 0x2C00, 0x0C00, 0x2000,
]  # fmt: skip
ORDER = {name: getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")}
JOIN = {"and": operator.and_, "or": operator.or_, "xor": operator.xor}


def kinds() -> dict[tuple[str, str], list[str]]:
    """Return the opcodes by name and by type."""
    found: dict[tuple[str, str], list[str]] = {}
    for opcode in packed.catalogue():
        found.setdefault((opcode.split(".")[0], opcode.split(".")[-1]), []).append(opcode)
    return found


def flushed(x: float, kind: str) -> float:
    """Return a number with a subnormal one made a zero of its sign."""
    smallest = 2.0**-126 if kind == "bf16" else 2.0**-14
    return math.copysign(0.0, x) if abs(x) < smallest else x


def finished(x: float, kind: str, words: list[str]) -> int:
    """Return the bits of a number after ``.ftz``, ``.sat``, ``.relu``."""
    if math.isnan(x):
        return 0 if "sat" in words else NAN[kind]
    x = flushed(x, kind) if "ftz" in words else x
    x = (x if x > 0 else 0.0) if {"sat", "relu"} & set(words) else x
    return register(min(x, 1.0) if "sat" in words else x, kind)


def sum_of_product(x: float, y: float, z: float, kind: str) -> float:
    """Return x y + z with one rounding."""
    with np.errstate(invalid="ignore"):
        near = float(np.float64(x) * y + z)
    if not math.isfinite(near) and not all(map(math.isfinite, (x, y, z))):
        return near
    exact = Fraction(x) * Fraction(y) + Fraction(z)
    return nearby(exact, kind, "rn") if exact else near


def ordered(name: str, words: list[str], x: float, y: float) -> float:
    """Return the smaller or larger number as the ISA chooses it."""
    sign = math.copysign(1, x) * math.copysign(1, y)
    if "xorsign" in words:
        x, y = abs(x), abs(y)
    if math.isnan(x) or math.isnan(y):
        chosen = math.nan if "NaN" in words or (math.isnan(x) and math.isnan(y)) else (y if math.isnan(x) else x)
    else:
        chosen = (min if name == "min" else max)((x, y), key=lambda v: (v, math.copysign(1, v)))
    return math.copysign(chosen, sign) if "xorsign" in words else chosen


def wanted(opcode: str, a: int, b: int, c: int) -> int:
    """Return the 16 bits that an operation gives."""
    name, *words = opcode.split(".")
    kind = words[-1].removesuffix("x2")
    x, y, z = (flushed(v, kind) if "ftz" in words else v for v in (number(p, kind) for p in (a, b, c)))
    match name:
        case "add" | "sub":
            return finished(sum_of_product(x, 1.0, y if name == "add" else -y, kind), kind, words)
        case "mul" | "fma":
            return finished(sum_of_product(x, y, -0.0 if name == "mul" else z, kind), kind, words)
        case "neg" | "abs":
            kept = register(x, kind) if not math.isnan(x) else a
            return kept ^ 0x8000 if name == "neg" else kept & 0x7FFF
    return finished(ordered(name, words, x, y), kind, words)


def halves(patterns: np.ndarray, paired: bool) -> list[tuple[int, ...]]:
    """Return the halves of each lane that count."""
    low = (patterns & np.uint64(0xFFFF)).tolist()
    return list(zip(low, (patterns >> np.uint64(16)).tolist(), strict=True)) if paired else [(x,) for x in low]


def pairs(data: st.DataObject) -> np.ndarray:
    draw = lanes_of(16, CORNERS)
    return data.draw(draw) | data.draw(draw) << np.uint64(16)


ARITHMETIC = [group for group in kinds() if group[0] not in ("set", "setp", "ex2", "tanh")]


@pytest.mark.parametrize("group", ARITHMETIC, ids=".".join)
@settings(max_examples=10)
@given(st.data())
def test_arithmetic(group: tuple[str, str], data: st.DataObject):
    a, b, c = pairs(data), pairs(data), pairs(data)
    count = {"neg": 1, "abs": 1, "fma": 3}.get(group[0], 2)
    for opcode in kinds()[group]:
        got = halves(run(packed, opcode, *(a, b, c)[:count]), group[1].endswith("x2"))
        operands = zip(*(halves(each, group[1].endswith("x2")) for each in (a, b, c)), strict=True)
        for mine, lane in zip(got, operands, strict=True):
            assert mine == tuple(wanted(opcode, *each) for each in zip(*lane, strict=True)), (opcode, lane)


@pytest.mark.parametrize("name", ["add", "sub", "mul"])
def test_float16_is_numpys(name: str):
    patterns = np.random.default_rng(5).integers(0, 1 << 16, (2, 64, LANES)).astype(np.uint16)
    x, y = patterns.view(np.float16)
    with np.errstate(all="ignore"):
        want = getattr(np, {"add": "add", "sub": "subtract", "mul": "multiply"}[name])(x, y)
    want = np.where(np.isnan(want), 0x7FFF, want.view(np.uint16))
    got = [run(packed, f"{name}.rn.f16", a, b) for a, b in zip(*patterns.astype(np.uint64), strict=True)]
    assert np.array_equal(got, want)


def test_fma_rounds_once():
    a = register(1.0625, "bf16")  # its square is half-way between 1.125 and 1.1328125
    for tiny, want in ((0.0, 1.125), (2.0**-100, 1.1328125), (-(2.0**-100), 1.125)):
        assert (run(packed, "fma.rn.bf16", a, a, register(tiny, "bf16")) == register(want, "bf16")).all()


def holds(opcode: str, a: int, b: int) -> bool:
    """Tell whether two numbers stand in the relation of an opcode."""
    _, relation, *words = opcode.split(".")
    kind = words[-1].removesuffix("x2")
    x, y = (flushed(v, kind) if "ftz" in words else v for v in (number(a, kind), number(b, kind)))
    unordered = math.isnan(x) or math.isnan(y)
    if relation in ("num", "nan"):
        return unordered == (relation == "nan")
    return relation.endswith("u") if unordered else ORDER[relation[:2]](x, y)


COMPARISONS = [group for group in kinds() if group[0] in ("set", "setp")]


@pytest.mark.parametrize("group", COMPARISONS, ids=".".join)
@settings(max_examples=5)
@given(st.data())
def test_comparisons(group: tuple[str, str], data: st.DataObject):
    a, b = pairs(data), pairs(data)
    b = np.where(data.draw(lanes_of(1, [0, 1])) == 1, a, b)  # equal ones too
    other = data.draw(lanes_of(1, [0, 1]))
    paired = group[1].endswith("x2")
    for opcode in kinds()[group]:
        words = opcode.split(".")
        truth = np.array([[holds(opcode, *p) for p in zip(*lane, strict=True)] for lane in
                          zip(halves(a, paired), halves(b, paired), strict=True)]).T  # fmt: skip
        first, second = run(packed, opcode, a, b, other, results=2)
        if group[0] == "set":
            one = {"f16": 0x3C00, "bf16": 0x3F80, "f16x2": 0x3C00, "bf16x2": 0x3F80}.get(words[-2])
            one = one or (0xFFFF if paired or words[-2][1:] == "16" else 0xFFFFFFFF)
            assert np.array_equal(first, truth[0] * one + (truth[1] * one << 16 if paired else 0)), opcode
            continue
        join = next((JOIN[word] for word in words if word in JOIN), lambda relation, _: relation)
        assert np.array_equal(first, join(truth[0], other == 1)), opcode
        assert np.array_equal(second, join(truth[1] if paired else ~truth[0], other == 1)), opcode


@pytest.mark.parametrize("opcode", [name for name in packed.catalogue() if name.startswith(("ex2", "tanh"))])
@settings(max_examples=10)
@given(st.data())
def test_curves(opcode: str, data: st.DataObject):
    name, *words = opcode.split(".")
    kind, paired = words[-1].removesuffix("x2"), words[-1].endswith("x2")
    a = pairs(data)
    curve = (lambda x: math.exp2(min(x, 1000))) if name == "ex2" else math.tanh
    for mine, lane in zip(halves(run(packed, opcode, a), paired), halves(a, paired), strict=True):
        for got, bits in zip(mine, lane, strict=True):
            x = number(bits, kind)
            exact = curve(flushed(x, kind) if "ftz" in words else x)
            near = exact if not math.isfinite(exact) or exact == 0 else nearby(Fraction(exact), kind, "rn")
            assert got == finished(math.copysign(near, exact), kind, words), (opcode, x)


def test_idle_lanes_keep_theirs():
    one = np.full(LANES, 0x3C003C00, np.uint64)
    assert (run(packed, "add.f16x2", one, one, mask=0x80000001)[[0, 31]] == 0x40004000).all()
    assert run(packed, "setp.eq.f16x2", one, one, results=2, mask=0xF0).tolist()[0][4:8] == [1] * 4


def test_what_the_grammar_has_not_is_unknown():
    unknown = (
        "add.rz.f16", "add.sat.bf16", "fma.f16", "fma.rn.sat.relu.f16", "ex2.approx.bf16", "min.nan.f16", "setp.lo.f16",
    )  # fmt: skip
    assert [opcode for opcode in unknown if packed.code_of(opcode, 32) is not None] == []
