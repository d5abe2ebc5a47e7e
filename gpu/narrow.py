"""Floats of eight and four bits as kernels hold them: a code in an integer, float32 to compute with.

In software, so that a GPU without such conversions gives the same bits.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any

from gpu.compile import device_function
from refimpl.contract import host

__all__ = ["NARROW", "decode", "encode"]

NARROW: Mapping[str, tuple[int, int, float]] = {"e4m3": (3, 7, 448.0), "e5m2": (2, 15, 57344.0), "e2m1": (1, 1, 6.0)}
"""Bits of the mantissa, bias of the exponent, the largest number."""


@host
@cache
def encode(format: str) -> Any:
    """Return the function for kernels that turns float32 into a code, int32: the nearest, ties to even.

    What is larger than the largest number becomes it. NaN becomes NaN with its sign; e2m1 has none: it gives 0.
    """
    from numba import cuda, float32, int32

    mantissa, bias, largest = NARROW[format]
    drop, sign_at = 23 - mantissa, 3 if format == "e2m1" else 7
    least, steps = float32(2.0 ** (1 - bias)), float32(2.0 ** (mantissa + bias - 1))
    nan = {"e4m3": 127, "e5m2": 126, "e2m1": 0}[format]

    @device_function
    def encode(x):
        size = min(abs(x), float32(largest))
        bits = cuda.libdevice.float_as_int(size)
        normal = (bits + int32((1 << drop - 1) - 1) + (bits >> int32(drop) & int32(1))) >> int32(drop)
        small = int32(cuda.libdevice.rintf(cuda.libdevice.fmul_rn(size, steps)))
        code = normal - int32((127 - bias) << mantissa) if size >= least else small
        sign = cuda.libdevice.float_as_int(x) >> int32(31) & int32(1)
        return (code if x == x else int32(nan)) | sign << int32(sign_at)

    return encode


@host
@cache
def decode(format: str) -> Any:
    """Return the function for kernels that turns a code into float32; e8m0 is a power of two without a sign."""
    from numba import cuda, float32, int32

    if format == "e8m0":
        return _power()
    mantissa, bias, _ = NARROW[format]
    sign_at, scale = 3 if format == "e2m1" else 7, float32(2.0 ** (127 - bias))
    infinity = {"e4m3": 128, "e5m2": 124, "e2m1": 8}[format]
    last = {"e4m3": 126, "e5m2": 124, "e2m1": 7}[format]

    @device_function
    def decode(code):
        size = int32(code) & int32((1 << sign_at) - 1)
        x = cuda.libdevice.fmul_rn(cuda.libdevice.int_as_float(size << int32(23 - mantissa)), scale)
        if size > int32(last):
            x = cuda.libdevice.int_as_float(int32(0x7FC00000))
        elif size == int32(infinity):
            x = cuda.libdevice.int_as_float(int32(0x7F800000))
        return -x if int32(code) >> int32(sign_at) & int32(1) else x

    return decode


def _power() -> Any:
    """Return the function that decodes e8m0: 0 is 2**-127, which float32 holds as a subnormal; 255 is NaN."""
    from numba import cuda, int32

    @device_function
    def power(code):
        bits = int32(code) << int32(23) if code else int32(0x00400000)
        return cuda.libdevice.int_as_float(bits if int32(code) != int32(255) else int32(0x7FC00000))

    return power
