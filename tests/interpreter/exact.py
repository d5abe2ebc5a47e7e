"""What ``cvt`` has to give, by its definition: fractions, scaled so that one unit is the last place, made whole."""

import math
from fractions import Fraction
from functools import cache

import ml_dtypes
import numpy as np

__all__ = ["FLOATS", "INTEGERS", "NAN", "converted", "is_nan", "nearby", "number", "register", "width_of"]

INTEGERS = {f"{sign[0]}{bits}": np.dtype(f"{sign[1:]}{bits}") for sign in ("uuint", "sint") for bits in (8, 16, 32, 64)}
FLOATS = {
    "f64": np.dtype(np.float64), "f32": np.dtype(np.float32), "tf32": np.dtype(np.float32),
    "f16": np.dtype(np.float16), "bf16": np.dtype(ml_dtypes.bfloat16),
    "e4m3": np.dtype(ml_dtypes.float8_e4m3fn), "e5m2": np.dtype(ml_dtypes.float8_e5m2),
}  # fmt: skip
NAN = {"f64": 0x7FF8000000000000, "f32": 0x7FFFFFFF, "tf32": 0x7FFFE000, "f16": 0x7FFF, "bf16": 0x7FFF} | dict.fromkeys(
    ("e4m3", "e5m2"), 0x7F
)


def width_of(kind: str) -> int:
    """Return the bits of a number of a type in a register."""
    return 8 * (INTEGERS | FLOATS)[kind].itemsize


def number(bits: int, kind: str) -> int | float:
    """Return the number in the low bits of a register, exact as a Python int or float."""
    value = np.array([bits], np.uint64).view((INTEGERS | FLOATS)[kind])[0]
    return int(value) if kind in INTEGERS else float(value)


def register(value: float, kind: str) -> int:
    """Return the bits of a number that the type holds exactly."""
    stored = np.array([value]).astype((INTEGERS | FLOATS)[kind]).tobytes()
    return int.from_bytes(stored, "little")


def is_nan(bits: int, kind: str) -> bool:
    """Tell whether a register holds no number."""
    return kind in FLOATS and math.isnan(number(bits, kind))


def _whole(value: Fraction, mode: str) -> int:
    """Return a whole number beside ``value`` by a rounding mode."""
    match mode[1]:
        case "z":
            return math.trunc(value)
        case "m":
            return math.floor(value)
        case "p":
            return math.ceil(value)
    return math.trunc(value + Fraction(1 if value > 0 else -1, 2)) if mode == "rna" else round(value)


@cache
def _limits(kind: str) -> tuple[int, int, Fraction]:
    """Return mantissa bits, the exponent of the smallest normal number, the largest number."""
    info = ml_dtypes.finfo(FLOATS[kind])
    mantissa = 10 if kind == "tf32" else int(info.nmant)
    largest = Fraction(2) ** 128 - Fraction(2) ** 117 if kind == "tf32" else Fraction(float(info.max))
    return mantissa, math.frexp(float(info.smallest_normal))[1] - 1, largest


def nearby(value: Fraction, kind: str, mode: str) -> float:
    """Return the float of a type that a rounding mode chooses for a value."""
    mantissa, least, largest = _limits(kind)
    exponent = value.numerator.bit_length() - value.denominator.bit_length()  # of a dyadic fraction this is exact
    unit = Fraction(2) ** (max(exponent, least) - mantissa)
    result = abs(_whole(value / unit, mode) * unit)
    if result > largest:
        stays = mode == "rz" or (mode == "rp" and value < 0) or (mode == "rm" and value > 0)
        return math.copysign(float(largest) if stays else math.inf, 1 if value > 0 else -1)
    return math.copysign(float(result), 1 if value > 0 else -1)


def _flushed(value: float) -> float:
    """Return a float32 with a subnormal one made a zero of its sign."""
    return value if abs(value) >= 2.0**-126 or value != value else math.copysign(0.0, value)


def _integer(value: int | float, source: str, to: str, mode: str, sat: bool) -> int:
    bits, signed = width_of(to), to[0] == "s"
    least, most = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    if source in INTEGERS:
        return min(max(int(value), least), most) if sat else int(value)
    if math.isnan(value):
        return 1 << bits - 1 if source == "f64" or bits == 64 else 0
    if math.isinf(value):
        return most if value > 0 else least
    return min(max(_whole(Fraction(value), mode), least), most)


def converted(value: int | float, source: str, to: str, mode: str, flags: set[str]) -> int:
    """Return the bits that a number of type ``source`` becomes in type ``to``."""
    if "ftz" in flags and source == "f32":
        value = _flushed(value)
    if to in INTEGERS:
        return _integer(value, source, to, mode, "sat" in flags) & ((1 << width_of(to)) - 1)
    if math.isnan(value):
        return 0 if "sat" in flags else NAN[to]
    result = float(value) if value == 0 or math.isinf(value) else None
    if mode in ("rni", "rzi", "rmi", "rpi") and result is None:
        value = _whole(Fraction(value), mode) or math.copysign(0.0, value)
        result = 0.0 * value if value == 0 else None
    if result is None:
        result = nearby(Fraction(value), to, mode or "rn")
    if "ftz" in flags and to == "f32":
        result = _flushed(result)
    if {"sat", "relu"} & flags:
        result = max(result, 0.0) if result > 0 else 0.0
        result = min(result, 1.0) if "sat" in flags else result
    if "satfinite" in flags and math.isinf(result):
        result = math.copysign(float(_limits(to)[2]), result)
    return register(result, to)
