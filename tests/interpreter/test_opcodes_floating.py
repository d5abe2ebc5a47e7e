"""float32 and float64 arithmetic against fractions rounded once, and the approximate functions against NumPy."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu.interpreter import approximate, floating
from tests.interpreter.exact import is_nan, nearby, number, register
from tests.interpreter.warp import lanes_of, run

EXACT, APPROXIMATE = sorted(floating.catalogue()), sorted(approximate.catalogue())
OPCODES = (*EXACT, *APPROXIMATE)
ROUNDINGS = ("rn", "rz", "rm", "rp")
VALUES = (
    0.5, 1.0, 1.5, 3.0, 0.1, 2.0**-126, 2.0**-149, 2.0**127, 3.4028234663852886e38, 2.0**-75, 2.0**64, math.inf,
    math.nan,
)  # fmt: skip


def corners(kind: str) -> list[int]:
    return [register(sign * x, kind) for x in VALUES for sign in (1, -1)]


def flushed(x: float) -> float:
    return math.copysign(0.0, x) if abs(x) < 2.0**-126 else x


def special(name: str, x: float, y: float, z: float) -> float | None:
    """Return a result with NaN, infinities or a division by zero in it, as float64 has it; None for plain numbers."""
    with np.errstate(all="ignore"):
        a, b, c = np.float64(x), np.float64(y), np.float64(z)
        result = {
            "add": a + b, "sub": a - b, "mul": a * b, "fma": a * b + c, "mad": a * b + c, "div": a / b, "rcp": 1 / a,
            "sqrt": np.sqrt(a),
        }[name]  # fmt: skip
    used = {"rcp": (x,), "sqrt": (x,), "fma": (x, y, z), "mad": (x, y, z)}.get(name, (x, y))
    divides_by_zero = (name == "div" and y == 0) or (name == "rcp" and x == 0)
    if not all(map(math.isfinite, used)) or divides_by_zero or (name == "sqrt" and x <= 0):
        if name in ("fma", "mad") and not math.isnan(x * y) and math.isfinite(x) and math.isfinite(y):
            return z
        return float(result)
    return None


def root(x: float, kind: str, mode: str) -> float:
    """Return a square root: among the neighbours of an estimate the one that a rounding chooses."""
    dtype = {"f32": np.float32, "f64": np.float64}[kind]
    low = dtype(math.sqrt(x))
    while Fraction(float(low)) ** 2 > Fraction(x):
        low = np.nextafter(low, dtype(0))
    while Fraction(float(np.nextafter(low, dtype(math.inf)))) ** 2 <= Fraction(x):
        low = np.nextafter(low, dtype(math.inf))
    high = np.nextafter(low, dtype(math.inf))
    middle = (Fraction(float(low)) + Fraction(float(high))) / 2
    up = mode == "rp" if mode != "rn" else Fraction(x) > middle**2
    return float(high if up and Fraction(float(low)) ** 2 != Fraction(x) else low)


def rounded(name: str, x: float, y: float, z: float, kind: str, mode: str) -> float:
    """Return a result with one rounding."""
    found = special(name, x, y, z)
    if found is not None:
        return found
    if name == "sqrt":
        return root(x, kind, mode)
    if name in ("div", "rcp"):
        top, bottom = (x, y) if name == "div" else (1.0, x)
        exact = quotient(Fraction(top) / Fraction(bottom), kind)
        signs = math.copysign(1, top) * math.copysign(1, bottom)
    else:
        y, z = (1.0, y if name == "add" else -y) if name in ("add", "sub") else (y, 0.0 if name == "mul" else z)
        exact = Fraction(x) * Fraction(y) + Fraction(z)
        signs = math.copysign(1, x) * math.copysign(1, y)
        if exact == 0 and name != "mul" and not (z == 0 and x * y == 0 and math.copysign(1, z) == signs):
            signs = -1 if mode == "rm" else 1  # a sum of opposites
    return nearby(exact, kind, mode) if exact else math.copysign(0.0, signs)


def quotient(exact: Fraction, kind: str) -> Fraction:
    """Return a dyadic fraction that rounds as a quotient does: 300 bits of it, the last one sticky."""
    shift = 300 + 1100
    whole, rest = divmod(abs(exact.numerator) << shift, exact.denominator)
    value = Fraction(whole << 1 | (rest != 0), 1 << shift + 1)
    return value if exact > 0 else -value


def ordered(name: str, x: float, y: float, keep_nan: bool) -> float:
    if math.isnan(x) or math.isnan(y):
        return math.nan if keep_nan or (math.isnan(x) and math.isnan(y)) else y if math.isnan(x) else x
    return (min if name == "min" else max)((x, y), key=lambda v: (v, math.copysign(1, v)))


def wanted(opcode: str, bits: tuple[int, ...]) -> int:
    """Return the bits that an exact operation gives."""
    name, *words, kind = opcode.split(".")
    top = 1 << (31 if kind == "f32" else 63)
    if name in ("abs", "neg", "copysign"):
        a = bits[0]
        if "ftz" in words and not is_nan(a, kind):
            a = register(flushed(number(a, kind)), kind)
        return {"abs": a & ~top, "neg": a ^ top, "copysign": bits[1] & ~top | a & top}[name]
    x, y, z = (flushed(v) if "ftz" in words else v for v in (number(b, kind) for b in bits))
    mode = next((word for word in words if word in ROUNDINGS), "rn")
    value = ordered(name, x, y, "NaN" in words) if name in ("min", "max") else rounded(name, x, y, z, kind, mode)
    value = flushed(value) if "ftz" in words else value
    if "sat" in words:
        value = min(value, 1.0) if value > 0 else 0.0
    return register(value, kind)


@pytest.mark.parametrize("opcode", EXACT)
@settings(max_examples=10)
@given(st.data())
def test_arithmetic(opcode: str, data: st.DataObject):
    name, kind = opcode.split(".")[0], opcode.split(".")[-1]
    width = int(kind[1:])
    operands = [data.draw(lanes_of(width, corners(kind))) for _ in range(3)]
    if name in ("add", "sub", "fma", "mad") and data.draw(st.booleans()):
        operands[2 if name in ("fma", "mad") else 1] ^= np.uint64(1 << width - 1)
        operands[1] = np.where(operands[1] % np.uint64(2) == 0, operands[0], operands[1])  # sums that cancel
    count = {"rcp": 1, "sqrt": 1, "abs": 1, "neg": 1, "fma": 3, "mad": 3}.get(name, 2)
    got = run(floating, opcode, *operands[:count], width=width)
    for lane, bits in enumerate(zip(*(each.tolist() for each in operands), strict=True)):
        mine, truth = int(got[lane]), wanted(opcode, bits)
        same = mine == truth or (is_nan(mine, kind) and is_nan(truth, kind))
        assert same, (opcode, [number(b, kind) for b in bits[:count]], number(mine, kind), number(truth, kind))


CURVES = {
    "rcp": lambda x, y: 1 / x, "sqrt": lambda x, y: np.sqrt(x), "rsqrt": lambda x, y: 1 / np.sqrt(x),
    "ex2": lambda x, y: np.exp2(x), "lg2": lambda x, y: np.log2(x), "sin": lambda x, y: np.sin(x),
    "cos": lambda x, y: np.cos(x), "tanh": lambda x, y: np.tanh(x), "div": lambda x, y: x / y,
}  # fmt: skip


@pytest.mark.parametrize("opcode", APPROXIMATE)
@settings(max_examples=15)
@given(st.data())
def test_curves(opcode: str, data: st.DataObject):
    name, *words, kind = opcode.split(".")
    dtype, word = (np.float32, np.uint32) if kind == "f32" else (np.float64, np.uint64)
    first, second = (data.draw(lanes_of(8 * dtype().itemsize, corners(kind))) for _ in range(2))
    got = run(approximate, opcode, *([first, second] if name == "div" else [first]), width=64).astype(word).view(dtype)
    with np.errstate(all="ignore"):
        x, y = (each.astype(word).view(dtype).astype(np.float64) for each in (first, second))
        if "ftz" in words and kind == "f32":
            x, y = (np.where(np.abs(each) < 2.0**-126, np.copysign(0, each), each) for each in (x, y))
        want = CURVES[name](x, y).astype(dtype)
        if "ftz" in words and kind == "f32":
            want = np.where(np.abs(want) < 2.0**-126, np.copysign(np.float32(0), want), want)
        plain = np.isfinite(want)
        assert np.array_equal(got[~plain], want[~plain], equal_nan=True)
        assert (np.signbit(got) == np.signbit(want))[plain].all()
        step = np.maximum(np.spacing(np.abs(want)), np.finfo(dtype).smallest_subnormal)
        assert (np.abs(got - want) <= step)[plain].all()
