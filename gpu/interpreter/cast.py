"""One number from any type to any other, exactly as ``cvt`` has it.

Everything goes over a sign, a magnitude of 64 bits and an exponent, so a conversion rounds once, whatever its types.
"""

from typing import NamedTuple

import numpy as np
from numba import types

from gpu.interpreter.bits import bit_length
from gpu.interpreter.formats import FINITE, INFINITE, NAN, canonical_nan, largest, put_together, rounded, take_apart
from gpu.interpreter.jit import inlined, jit

__all__ = ["Rule", "cast", "extended", "low"]

_ONE = np.uint64(1)


class Rule(NamedTuple):
    """A conversion. A type is its exponent bits and mantissa bits; an integer has no exponent, and its width."""

    way: int
    pair: int  # 0: one to one, 1: two float32 to a pair, 2: a pair to a pair
    from_exponent: int
    from_mantissa: int
    from_signed: int
    to_exponent: int
    to_mantissa: int
    to_signed: int
    mode: int
    whole: int
    sat: int
    ftz: int
    relu: int
    satfinite: int
    width: int  # of the destination register: a signed integer is extended to it


@inlined
def low(bits, count):
    """Return the low bits of a number; count > 0."""
    return bits & (~types.uint64(0) >> types.uint64(64 - count))


@inlined
def extended(bits, count):
    """Return a signed integer of so many bits as one of 64; count > 0."""
    unused = types.uint64(64 - count)
    return types.int64(bits << unused) >> types.int64(unused)


@jit
def _integer(negative, kind, magnitude, exponent, rule):
    """Return a value as an integer of the rule's type, rounded and clamped."""
    width = rule.to_mantissa
    top = _ONE << types.uint64(width - 1)
    if kind == NAN:
        return top if rule.from_exponent == 11 or width == 64 else types.uint64(0)
    least = top if rule.to_signed else types.uint64(0)  # its magnitude
    limit = least if negative else ~types.uint64(0) >> types.uint64(64 - width + rule.to_signed)
    if kind == INFINITE or exponent + bit_length(magnitude) > 64:
        whole = limit
    elif exponent < 0:
        whole = rounded(magnitude, -exponent, negative, rule.mode)
    else:
        whole = magnitude << types.uint64(exponent)
    whole = min(whole, limit)
    return low(~whole + _ONE if negative else whole, width)


@jit
def _float(negative, kind, magnitude, exponent, rule):
    """Return a value as a float of the rule's type."""
    exponent_bits, mantissa_bits = rule.to_exponent, rule.to_mantissa
    if rule.whole and kind == FINITE and exponent < 0:
        magnitude, exponent = rounded(magnitude, -exponent, negative, rule.mode), 0
    if kind == NAN:
        return types.uint64(0) if rule.sat else canonical_nan(exponent_bits, mantissa_bits)
    if negative and (rule.relu or rule.sat):
        return types.uint64(0)
    if kind == INFINITE:
        most = largest(exponent_bits, mantissa_bits)
        bits = most if rule.satfinite else most + _ONE
        bits |= types.uint64(negative) << types.uint64(exponent_bits + mantissa_bits)
    else:
        bits = put_together(negative, magnitude, exponent, exponent_bits, mantissa_bits, rule.mode, rule.satfinite != 0)
    if rule.sat:
        bits = min(bits, low(~types.uint64(0), exponent_bits - 1) << types.uint64(mantissa_bits))
    if rule.ftz and exponent_bits == 8 and mantissa_bits == 23 and bits & types.uint64(0x7F800000) == 0:
        bits &= types.uint64(0x80000000)
    return bits


@inlined
def _source(bits, rule):
    """Return a register's number as (negative, kind, magnitude, exponent)."""
    if rule.from_exponent:
        negative, kind, magnitude, exponent = take_apart(bits, rule.from_exponent, rule.from_mantissa)
        if rule.ftz and rule.from_mantissa == 23 and magnitude < types.uint64(1 << 23) and kind == FINITE:
            magnitude = types.uint64(0)
        return negative, kind, magnitude, exponent
    if rule.from_signed:
        value = extended(bits, rule.from_mantissa)
        return value < 0, FINITE, types.uint64(-value if value < 0 else value), 0
    return False, FINITE, low(bits, rule.from_mantissa), 0


@jit
def cast(bits, rule):
    """Return the bits of a register's number in the other type; a tf32 stands at the upper end of its 32 bits."""
    negative, kind, magnitude, exponent = _source(bits, rule)
    if rule.to_exponent == 0:
        return _integer(negative, kind, magnitude, exponent, rule)
    result = _float(negative, kind, magnitude, exponent, rule)
    return result << types.uint64(13) if rule.to_exponent == 8 and rule.to_mantissa == 10 else result
