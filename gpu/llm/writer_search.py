"""The scale of a group of weights by search, as ``refimpl.llm.block_writers`` has it, where codes have a sign.

Every operation is rounded by itself and sums go from left to right, so that the bytes are those of the specification.
"""

from functools import cache
from typing import Any

from gpu.compile import device_function
from refimpl.contract import host

__all__ = ["add", "by_descent", "by_trial", "divide", "multiply", "peak", "rounded"]

_NOTHING = 1e-15


@host
@cache
def multiply() -> Any:
    """Return the product that no compiler fuses with a sum."""
    from numba import cuda

    return device_function(lambda a, b: cuda.libdevice.fmul_rn(a, b))


@host
@cache
def add() -> Any:
    """Return the sum that no compiler fuses with a product."""
    from numba import cuda

    return device_function(lambda a, b: cuda.libdevice.fadd_rn(a, b))


@host
@cache
def divide() -> Any:
    """Return the quotient; by 0, and by what is too small for an inverse, 0."""
    from numba import cuda, float32

    @device_function
    def divide(a, b):
        return float32(0) if abs(b) < float32(2.0**-126) else cuda.libdevice.fdiv_rn(a, b)

    return divide


@host
@cache
def rounded(least: int, most: int) -> Any:
    """Return the function that rounds to a whole number, ties to even, between two ends."""
    from numba import cuda, float32

    @device_function
    def rounded(x):
        return min(max(cuda.libdevice.rintf(x), float32(least)), float32(most))

    return rounded


@host
@cache
def peak() -> Any:
    """Return the function that finds the number of the largest magnitude among some, the first of several."""
    from numba import float32, uint64

    @device_function
    def peak(values, at, count):
        best, i = float32(0), uint64(0)
        while i < uint64(count):
            value = values[at + i]
            if abs(value) > abs(best) or value != value:
                best = value
            i += uint64(1)
        return best

    return peak


@cache
def _fit(size: int) -> Any:
    """Return the function that sums w x q and w q q, w = x x, over the codes of a group."""
    from numba import float32, uint64

    mul, plus = multiply(), add()

    @device_function
    def fit(values, at, inverse, round_to):
        xq, qq, i = float32(0), float32(0), uint64(0)
        while i < uint64(size):
            x = values[at + i]
            q, w = round_to(mul(inverse, x)), mul(x, x)
            xq, qq = plus(xq, mul(mul(w, x), q)), plus(qq, mul(mul(w, q), q))
            i += uint64(1)
        return xq, qq

    return fit


@host
@cache
def by_trial(size: int, largest: int) -> Any:
    """Return the function that gives a group's scale, and what its weights are multiplied with to give codes, or 0."""
    from numba import cuda, float32, int32

    mul, plus, find, fit, code = multiply(), add(), peak(), _fit(size), rounded(-largest, largest - 1)

    @device_function
    def by_trial(values, at):
        most, scale, best, gain, k = find(values, at, size), float32(0), float32(0), float32(0), int32(0)
        while k < int32(19) and not abs(most) < float32(_NOTHING):
            i = int32(0) if k == int32(0) else k - int32(10) if k < int32(10) else k - int32(9)
            inverse = cuda.libdevice.fdiv_rn(-plus(float32(largest), mul(float32(0.1), float32(i))), most)
            xq, qq = fit(values, at, inverse, code)
            if qq > float32(0) and (k == int32(0) or mul(xq, xq) > mul(gain, qq)):
                scale, best = cuda.libdevice.fdiv_rn(xq, qq), inverse
                gain = mul(scale, xq)
            k += int32(1)
        return scale if most == most else most, best

    return by_trial


@host
@cache
def by_descent(size: int, largest: int) -> Any:
    """Return the function that gives a group's scale, and writes its codes, less what makes them unsigned."""
    from numba import cuda, float32, int8, uint64

    mul, plus, find, fit, code = multiply(), add(), peak(), _fit(size), rounded(-largest, largest - 1)

    @device_function
    def by_descent(values, codes, at, codes_at):
        most, i = find(values, at, size), uint64(0)
        inverse = cuda.libdevice.fdiv_rn(float32(-largest), most)
        xq, qq = fit(values, at, inverse, code)
        while i < uint64(size):
            codes[codes_at + i] = int8(code(mul(inverse, values[at + i])))
            i += uint64(1)
        i = uint64(0)
        while i < uint64(5 * size):
            x, old = values[at + i % uint64(size)], float32(codes[codes_at + i % uint64(size)])
            wx, w = mul(mul(x, x), x), mul(x, x)
            other_xq, other_qq = plus(xq, -mul(wx, old)), plus(qq, -mul(mul(w, old), old))
            new = code(cuda.libdevice.fdiv_rn(mul(x, other_qq), other_xq))
            new_xq, new_qq = plus(other_xq, mul(wx, new)), plus(other_qq, mul(mul(w, new), new))
            better = mul(mul(new_xq, new_xq), qq) > mul(mul(xq, xq), new_qq)
            if other_xq > float32(0) and new != old and new_qq > float32(0) and better:
                codes[codes_at + i % uint64(size)] = int8(new)
                xq, qq = new_xq, new_qq
            i += uint64(1)
        if abs(most) < float32(_NOTHING) or qq <= float32(0):
            i, xq, qq = uint64(0), float32(0), float32(1)
            while i < uint64(size):
                codes[codes_at + i] = int8(-largest)
                i += uint64(1)
        return cuda.libdevice.fdiv_rn(xq, qq) if most == most else most

    return by_descent
