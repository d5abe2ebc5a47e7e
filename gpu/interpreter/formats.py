"""Floats of every format: taken apart, rounded in any direction and put together; and short ways for the common ones.

A format is its count of exponent bits and of mantissa bits: float64 (11, 52), float32 (8, 23), float16 (5, 10),
bfloat16 (8, 7), e5m2 (5, 2) and e4m3 (4, 3), which has no infinity and one mantissa alone for NaN. A value is
(-1)^negative * magnitude * 2^exponent with 64 bits of magnitude: every number of every type, integers too, is exact.
"""

import numpy as np
from numba import types

from gpu.interpreter.bits import bit_length, bits_to_float32, float32_to_bits
from gpu.interpreter.jit import inlined, jit

__all__ = [
    "AWAY", "DOWN", "EVEN", "FINITE", "INFINITE", "NAN", "UP", "ZERO",
    "bfloat16_of", "bfloat16_value", "canonical_nan", "float16_of", "float16_value", "largest", "put_together",
    "rounded", "take_apart",
]  # fmt: skip

FINITE, INFINITE, NAN = 0, 1, 2
EVEN, ZERO, DOWN, UP, AWAY = range(5)  # to the nearest with ties to even, toward zero, down, up, ties away from zero
_ONE = np.uint64(1)


@inlined
def _ones(count):
    return (_ONE << types.uint64(count)) - _ONE


@inlined
def largest(exponent_bits, mantissa_bits):
    """Return the bits of the largest finite number of a format."""
    if exponent_bits == 4:
        return types.uint64(0x7E)
    return (_ones(exponent_bits) << types.uint64(mantissa_bits)) - _ONE


@inlined
def canonical_nan(exponent_bits, mantissa_bits):
    """Return the NaN that PTX makes: every bit but the sign; of float64 the quiet one without a payload."""
    if exponent_bits == 11:
        return types.uint64(0x7FF8000000000000)
    return _ones(exponent_bits + mantissa_bits)


@jit
def take_apart(bits, exponent_bits, mantissa_bits):
    """Return (negative, FINITE or INFINITE or NAN, magnitude, exponent) of a float."""
    negative = (bits >> types.uint64(exponent_bits + mantissa_bits)) & _ONE != 0
    field = types.int64((bits >> types.uint64(mantissa_bits)) & _ones(exponent_bits))
    fraction = bits & _ones(mantissa_bits)
    lowest = 2 - (1 << (exponent_bits - 1)) - mantissa_bits  # the exponent of the last bit of a subnormal number
    if field == types.int64(_ones(exponent_bits)):
        if exponent_bits == 4:
            if fraction == types.uint64(7):
                return negative, NAN, fraction, 0
        else:
            return negative, INFINITE if fraction == 0 else NAN, fraction, 0
    if field == 0:
        return negative, FINITE, fraction, lowest
    return negative, FINITE, fraction | (_ONE << types.uint64(mantissa_bits)), lowest + field - 1


@inlined
def rounded(magnitude, shift, negative, mode):
    """Return magnitude / 2^shift as a whole number, rounded by the mode of a number of this sign; shift > 0."""
    if shift > 64:
        kept, above, tie, inexact = types.uint64(0), False, False, magnitude != 0
    else:
        half = _ONE << types.uint64(shift - 1)
        lost = magnitude & (half | (half - _ONE))
        kept = types.uint64(0) if shift == 64 else magnitude >> types.uint64(shift)
        above, tie, inexact = lost > half, lost == half, lost != 0
    if mode == EVEN:
        up = above or (tie and kept & _ONE != 0)
    elif mode == AWAY:
        up = above or tie
    else:
        up = inexact and ((mode == UP and not negative) or (mode == DOWN and negative))
    return kept + types.uint64(up)


@jit
def put_together(negative, magnitude, exponent, exponent_bits, mantissa_bits, mode, finite):
    """Return the bits of a finite value in a format; too large a one is infinite, or the largest where ``finite``."""
    sign = types.uint64(negative) << types.uint64(exponent_bits + mantissa_bits)
    if magnitude == 0:
        return sign
    lowest = 2 - (1 << (exponent_bits - 1)) - mantissa_bits
    field = max(0, exponent + bit_length(magnitude) - mantissa_bits - lowest)  # the exponent's bits; 0: subnormal
    shift = lowest + max(0, field - 1) - exponent
    most = largest(exponent_bits, mantissa_bits)
    if field >= 1 << exponent_bits:
        bits = most + _ONE
    else:
        kept = rounded(magnitude, shift, negative, mode) if shift > 0 else magnitude << types.uint64(-shift)
        bits = (
            types.uint64(max(0, field - 1)) << types.uint64(mantissa_bits)
        ) + kept  # the leading one adds 1 to field
    if bits > most and (finite or mode == ZERO or (mode == UP and negative) or (mode == DOWN and not negative)):
        bits = most
    return sign | min(bits, most + _ONE)


@inlined
def bfloat16_value(bits):
    """Return the float32 of the bfloat16 in the low 16 bits."""
    return bits_to_float32(types.uint32(bits) << types.uint32(16))


@inlined
def bfloat16_of(x):
    """Return the bfloat16 nearest to a float32, as uint32."""
    bits = float32_to_bits(x)
    last = (bits >> types.uint32(16)) & types.uint32(1)
    nearest = types.uint32((bits + types.uint32(0x7FFF) + last) >> types.uint32(16))
    return nearest if x == x else types.uint32(0x7FFF)


@inlined
def float16_value(bits):
    """Return the float32 of the float16 in the low 16 bits; a NaN stays one."""
    low = types.uint32(bits)
    shifted = (low & types.uint32(0x7FFF)) << types.uint32(13)
    scaled = float32_to_bits(bits_to_float32(shifted) * np.float32(2.0**112))  # exact, for subnormal numbers too
    special = shifted | types.uint32(0x7F800000)
    magnitude = special if shifted >= types.uint32(0x0F800000) else scaled
    return bits_to_float32(magnitude | ((low & types.uint32(0x8000)) << types.uint32(16)))


@inlined
def float16_of(x):
    """Return the float16 nearest to a float32, as uint32."""
    bits = float32_to_bits(x)
    magnitude = bits & types.uint32(0x7FFFFFFF)
    sign = (bits >> types.uint32(16)) & types.uint32(0x8000)
    last = (magnitude >> types.uint32(13)) & types.uint32(1)
    normal = ((magnitude + types.uint32(0xFFF) + last) >> types.uint32(13)) - types.uint32(0x1C000)
    # Adding 0.5 lets the processor round at 2^-24, the last place of a subnormal float16.
    small = float32_to_bits(bits_to_float32(magnitude) + np.float32(0.5)) - types.uint32(0x3F000000)
    kept = types.uint32(small) if magnitude < types.uint32(0x38800000) else types.uint32(normal)
    kept = types.uint32(0x7C00) if magnitude >= types.uint32(0x477FF000) else kept
    return (kept | sign) if x == x else types.uint32(0x7FFF)
