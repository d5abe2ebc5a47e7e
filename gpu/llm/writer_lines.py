"""Scale and minimum of a group of weights by search, as ``refimpl.llm.block_writers`` has it: a thread a group.

Every operation is rounded by itself and sums go from left to right, so that the bytes are those of the specification.
"""

from functools import cache
from typing import Any

from gpu.compile import device_function
from gpu.llm.writer_search import add, multiply, rounded
from refimpl.contract import host

__all__ = ["lines"]


@cache
def _weight(size: int, plain: bool) -> Any:
    """Return the function that weighs a number: by its magnitude, and that of all."""
    plus = add()

    @device_function
    def weight(x, rms):
        return abs(x) if plain else plus(rms, abs(x))

    return weight


@cache
def _line(size: int, largest: int, plain: bool) -> Any:
    """Return the function that fits a line to the codes of a group: d, m, the spread of the codes."""
    from numba import cuda, float32, uint64

    mul, plus, weigh, code = multiply(), add(), _weight(size, plain), rounded(0, largest)

    @device_function
    def line(values, at, inverse, base, rms, w, wx):
        wq, wqq, wxq, i = float32(0), float32(0), float32(0), uint64(0)
        while i < uint64(size):
            x = values[at + i]
            q, weight = code(mul(inverse, plus(x, -base))), weigh(x, rms)
            part = mul(weight, q)
            wq, wqq, wxq = plus(wq, part), plus(wqq, mul(part, q)), plus(wxq, mul(part, x))
            i += uint64(1)
        spread = plus(mul(w, wqq), -mul(wq, wq))
        d = cuda.libdevice.fdiv_rn(plus(mul(w, wxq), -mul(wx, wq)), spread)
        m = cuda.libdevice.fdiv_rn(plus(mul(wqq, wx), -mul(wq, wxq)), spread)
        if m > float32(0):
            d, m = cuda.libdevice.fdiv_rn(wxq, wqq), float32(0)
        return d, m, spread

    return line


@cache
def _error(size: int, largest: int, plain: bool) -> Any:
    """Return the function that weighs how far a line is off at the codes of a group."""
    from numba import float32, uint64

    mul, plus, weigh, code = multiply(), add(), _weight(size, plain), rounded(0, largest)

    @device_function
    def error(values, at, inverse, base, rms, d, m):
        total, i = float32(0), uint64(0)
        while i < uint64(size):
            x = values[at + i]
            off = abs(plus(plus(mul(d, code(mul(inverse, plus(x, -base)))), m), -x))
            total = plus(total, mul(weigh(x, rms), off if plain else mul(off, off)))
            i += uint64(1)
        return total

    return error


@cache
def _moments(size: int, plain: bool) -> Any:
    """Return the function that gives the ends of a group, the rms of its numbers, the sums of w and of w x."""
    from numba import cuda, float32, uint64

    mul, plus, weigh = multiply(), add(), _weight(size, plain)

    @device_function
    def moments(values, at):
        least, most, square, i = float32(0), values[at], float32(0), uint64(0)
        while i < uint64(size):
            x = values[at + i]
            least, most = min(least, x), max(most, x)
            square = plus(square, mul(x, x))
            i += uint64(1)
        rms = cuda.libdevice.fsqrt_rn(cuda.libdevice.fdiv_rn(square, float32(32)))
        w, wx, i = float32(0), float32(0), uint64(0)
        while i < uint64(size):
            x = values[at + i]
            weight = weigh(x, rms)
            w, wx = plus(w, weight), plus(wx, mul(weight, x))
            i += uint64(1)
        return least, most, rms, w, wx

    return moments


@host
@cache
def lines(size: int, largest: int, first: float, steps: int, plain: bool) -> Any:
    """Return the function that gives a group's d and m, and the inverse and base of its codes; d is NaN if one is."""
    from numba import cuda, float32, int32

    mul, plus, line = multiply(), add(), _line(size, largest, plain)
    error, moments = _error(size, largest, plain), _moments(size, plain)

    @device_function
    def lines(values, at):
        m, most, rms, w, wx = moments(values, at)
        d, best, base, least_error = float32(0), float32(0), m, float32(0)
        i, last = int32(-1), int32(-2) if plus(most, -m) < float32(2.0**-100) else int32(steps)
        while i <= last:
            beyond = float32(0) if i < int32(0) else plus(float32(first), mul(float32(0.1), float32(i)))
            inverse = cuda.libdevice.fdiv_rn(plus(beyond, float32(largest)), plus(most, -m))
            new_d, new_m, spread = line(values, at, inverse, m, rms, w, wx)
            if i < int32(0):
                new_d, new_m = cuda.libdevice.fdiv_rn(float32(1), inverse), m
            off = error(values, at, inverse, m, rms, new_d, new_m)
            if i < int32(0) or (spread > float32(0) and off < least_error):
                d, best, base, m, least_error = new_d, inverse, m, new_m, off
            i += int32(1)
        return d if w == w else w, m, best, base

    return lines
