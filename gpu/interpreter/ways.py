"""The loops of ``cvt`` over the lanes of a warp: one for every conversion, shorter ones for those that are common."""

import numpy as np
from numba import types

from gpu.interpreter.bits import bits_to_float32, float32_to_bits
from gpu.interpreter.cast import cast, extended, low
from gpu.interpreter.formats import DOWN, EVEN, ZERO, bfloat16_of, bfloat16_value, float16_of, float16_value
from gpu.interpreter.jit import inlined, jit
from gpu.interpreter.lanes import LANES

__all__ = ["clamp", "convert_any", "from_integer", "narrow", "to_whole", "truncate", "widen"]


@inlined
def _signed(bits, rule):
    """Return an integer as the destination register holds it."""
    if rule.to_signed and rule.width > rule.to_mantissa:
        return low(types.uint64(extended(bits, rule.to_mantissa)), rule.width)
    return low(bits, rule.to_mantissa)


@inlined
def _whole_number(bits, rule):
    """Return an integer of the source type in 64 bits."""
    if rule.from_signed:
        return extended(bits, rule.from_mantissa)
    return types.int64(low(bits, rule.from_mantissa))


@jit
def truncate(rule, out, source):
    """Convert an integer to an integer: cut off, or extended by its own sign."""
    for lane in range(LANES):
        out[lane] = _signed(types.uint64(_whole_number(source[lane], rule)), rule)


@jit
def widen(rule, out, source):
    """Convert a 16-bit float to float32."""
    for lane in range(LANES):
        value = float16_value(source[lane]) if rule.from_exponent == 5 else bfloat16_value(source[lane])
        out[lane] = types.uint64(float32_to_bits(value))


@inlined
def _half(bits, rule):
    value = bits_to_float32(bits)
    return types.uint64(float16_of(value) if rule.to_exponent == 5 else bfloat16_of(value))


@jit
def narrow(rule, out, source, second):
    """Convert float32 to the nearest 16-bit float, or two to a pair."""
    for lane in range(LANES):
        bits = _half(source[lane], rule)
        if rule.pair:
            bits = bits << types.uint64(16) | _half(second[lane], rule)
        out[lane] = bits


@jit
def from_integer(rule, out, source):
    """Convert an integer to the nearest float32."""
    for lane in range(LANES):
        if rule.from_signed or rule.from_mantissa < 64:
            value = np.float32(_whole_number(source[lane], rule))
        else:
            value = np.float32(source[lane])
        out[lane] = types.uint64(float32_to_bits(value))


@inlined
def _to_integral(x, mode):
    """Return a float64 rounded to a whole number."""
    if mode == EVEN:
        return np.rint(x)
    if mode == ZERO:
        return np.trunc(x)
    return np.floor(x) if mode == DOWN else np.ceil(x)


@jit
def to_whole(rule, out, source):
    """Convert float32 to a 32-bit integer, or to a whole float32."""
    least = -2147483648.0 if rule.to_signed else 0.0
    most = 2147483647.0 if rule.to_signed else 4294967295.0
    for lane in range(LANES):
        value = bits_to_float32(source[lane])
        whole = _to_integral(np.float64(value), rule.mode)
        if rule.to_exponent:
            bits = types.uint64(float32_to_bits(np.float32(whole)) if value == value else types.uint32(0x7FFFFFFF))
        else:
            clamped = min(max(whole, least), most) if value == value else 0.0
            bits = low(types.uint64(types.int64(clamped)), 32)
        out[lane] = bits


@jit
def clamp(out, source):
    """Clamp float32 to [0, 1]; what is no number becomes 0."""
    for lane in range(LANES):
        value = bits_to_float32(source[lane])
        out[lane] = float32_to_bits(min(value, np.float32(1)) if value > np.float32(0) else np.float32(0))


@jit
def convert_any(rule, out, source, second, mask):
    """Convert whatever there is, one lane after the other."""
    from_bits = types.uint64(1 + rule.from_exponent + rule.from_mantissa)
    to_bits = types.uint64(1 + rule.to_exponent + rule.to_mantissa)
    for lane in range(LANES):
        if (mask >> lane) & 1:
            if rule.pair == 0:
                bits = cast(source[lane], rule)
                out[lane] = bits if rule.to_exponent else _signed(bits, rule)
            elif rule.pair == 1:
                out[lane] = cast(source[lane], rule) << to_bits | cast(second[lane], rule)
            else:
                upper = cast(source[lane] >> from_bits, rule)
                out[lane] = upper << to_bits | cast(source[lane], rule)
