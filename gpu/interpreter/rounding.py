"""Roundings to zero, down and up: the nearest number, and the sign of what it misses, say whether to go one further."""

import numpy as np

from gpu.interpreter.bits import bits_to_float32, bits_to_float64, float32_to_bits, float64_to_bits, fma64
from gpu.interpreter.jit import inlined, jit
from gpu.interpreter.lanes import LANES

__all__ = ["ADD", "DIV", "FMA", "MUL", "RCP", "SQRT", "SUB", "directed"]

ADD, SUB, MUL, FMA, DIV, RCP, SQRT = range(7)
_ZERO, _DOWN, _UP = 1, 2, 3


@jit
def directed(operation, rounding, wide, out, a, b, c):
    """Write float32 results, or float64 ones where ``wide``, rounded as asked."""
    for lane in range(LANES):
        if wide:
            x, y, z = bits_to_float64(a[lane]), bits_to_float64(b[lane]), bits_to_float64(c[lane])
            near, missed = _exact(operation, x, y, z)
            bits = float64_to_bits(near)
        else:
            x, y, z = bits_to_float32(a[lane]), bits_to_float32(b[lane]), bits_to_float32(c[lane])
            near, missed = _narrowed(operation, np.float64(x), np.float64(y), np.float64(z))
            bits = np.uint64(float32_to_bits(np.float32(near)))
        out[lane] = _stepped(bits, near, missed, rounding, np.uint64(1) << np.uint64(63 if wide else 31))


@inlined
def _sum(x, y):
    """Return x + y and the exact error of this sum."""
    total = x + y
    part = total - x
    return total, (x - (total - part)) + (y - part)


@jit
def _exact(operation, x, y, z):
    """Return the nearest float64 of a result, and a number with the sign of what it misses."""
    if operation in (ADD, SUB):
        near, missed = _sum(x, y if operation == ADD else -y)
    elif operation == MUL:
        near = x * y
        missed = fma64(x, y, -near)
    elif operation == FMA:
        near = fma64(x, y, z)
        product = x * y
        inner, low = _sum(z, fma64(x, y, -product))
        outer, middle = _sum(product, inner)
        missed = ((outer - near) + middle) + low
    elif operation == SQRT:
        near = np.sqrt(x)
        missed = fma64(-near, near, x)
    else:
        top, bottom = (x, y) if operation == DIV else (1.0, x)
        near = top / bottom
        missed = fma64(-near, bottom, top) * np.sign(bottom)
    if np.isinf(near):  # of finite numbers only when it is too large, not when it divides by 0
        finite = np.isfinite(x) and (np.isfinite(y) or operation > DIV) and (np.isfinite(z) or operation != FMA)
        by_zero = (operation == DIV and y == 0) or (operation == RCP and x == 0)
        missed = -near if finite and not by_zero else 0.0
    return near, missed


@jit
def _narrowed(operation, x, y, z):
    """Return the nearest float32 of a result, and a number with the sign of what it misses."""
    wide, missed = _exact(operation, x, y, z)
    near = np.float64(np.float32(wide))
    if operation < DIV:
        return near, missed if wide == near else wide - near
    if operation == SQRT:
        return near, fma64(-near, near, x)
    top, bottom = (x, y) if operation == DIV else (1.0, x)
    return near, fma64(-near, bottom, top) * np.sign(bottom) if np.isfinite(near) else missed


@inlined
def _stepped(bits, near, missed, rounding, sign):
    """Return the bits of the number beside the nearest one, where the rounding wants that one."""
    one = np.uint64(1)
    negative = (bits & sign) != 0
    if missed < 0 and (rounding == _DOWN or (rounding == _ZERO and not negative)):
        if bits & ~sign == np.uint64(0):
            return sign | one
        return bits + one if negative else bits - one
    if missed > 0 and (rounding == _UP or (rounding == _ZERO and negative)):
        if bits & ~sign == np.uint64(0):
            return one
        return bits - one if negative else bits + one
    return bits
