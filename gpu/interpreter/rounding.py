"""Roundings of float32 results to zero, down and up: computed in float64 and rounded there to odd, then as asked.

A result to odd keeps in its last bit that something was lost, so the second rounding is as good as the only one.
"""

import numpy as np

from gpu.interpreter.bits import bits_to_float32, bits_to_float64, float32_to_bits, float64_to_bits, fma64
from gpu.interpreter.formats import DOWN, UP, ZERO
from gpu.interpreter.jit import inlined, jit
from gpu.interpreter.lanes import LANES

__all__ = ["ADD", "DIV", "FMA", "MUL", "RCP", "SQRT", "SUB", "directed", "fused"]

ADD, SUB, MUL, FMA, DIV, RCP, SQRT = range(7)
_ONE, _TOP, _SIGN = np.uint64(1), np.uint64(63), 0x80000000


@inlined
def _odd(near, missed):
    """Return a rounded result to odd; ``missed`` has the sign of what it lacks."""
    bits = float64_to_bits(near)
    if (missed > 0 or missed < 0) and bits & _ONE == 0:
        bits = bits + _ONE if (missed > 0) == (near > 0) else bits - _ONE
    return bits_to_float64(bits)


@inlined
def fused(x, y, z):
    """Return x y + z to odd, for numbers of at most 26 bits, whose product is exact."""
    product = x * y
    total = product + z
    back = total - product
    return _odd(total, (product - (total - back)) + (z - back))  # NaN where the total is not finite


@inlined
def _sum(x, y, z, mode):
    """Return x y + z to odd; a sum of opposites is -0 where the rounding is down."""
    total = fused(x, y, z)
    if total == 0 and mode == DOWN and (float64_to_bits(x * y) | float64_to_bits(z)) >> _TOP:
        return -0.0
    return total


@jit
def _result(operation, mode, x, y, z):
    """Return a result to odd in float64."""
    if operation == ADD:
        return _sum(x, 1.0, y, mode)
    if operation == SUB:
        return _sum(x, 1.0, -y, mode)
    if operation == MUL:
        return x * y
    if operation == FMA:
        return _sum(x, y, z, mode)
    if operation == SQRT:
        root = np.sqrt(x)
        return _odd(root, fma64(-root, root, x))
    top, bottom = (x, y) if operation == DIV else (1.0, x)
    quotient = top / bottom
    return _odd(quotient, fma64(-quotient, bottom, top) * np.sign(bottom))


@inlined
def _stepped(near, exact, mode):
    """Return the bits of the float32 nearest to a number, or of its neighbour where the mode wants that one."""
    bits, back = np.int64(float32_to_bits(near)), np.float64(near)
    outward = np.int64(1) if bits < _SIGN else np.int64(-1)  # one up, in bits
    if back > exact and (mode == DOWN or (mode == ZERO and exact > 0)):
        bits -= outward
    if back < exact and (mode == UP or (mode == ZERO and exact < 0)):
        bits += outward
    return np.uint64(bits)


@jit
def directed(operation, mode, out, a, b, c):
    """Write the bits of float32 results, rounded by the mode."""
    for lane in range(LANES):
        x, y, z = bits_to_float32(a[lane]), bits_to_float32(b[lane]), bits_to_float32(c[lane])
        exact = _result(operation, mode, np.float64(x), np.float64(y), np.float64(z))
        out[lane] = _stepped(np.float32(exact), exact, mode)
