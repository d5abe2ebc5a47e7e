"""Floats of eight and four bits in kernels: every code, every tie and its neighbours, as ml_dtypes rounds."""

from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numba import cuda

from gpu import device
from gpu.compile import Kernel, numba_kernel
from gpu.narrow import NARROW, decode, encode

WIDTH: Any = {
    "e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2, "e2m1": ml_dtypes.float4_e2m1fn,
    "e8m0": ml_dtypes.float8_e8m0fnu,
}  # fmt: skip
CODES = {"e4m3": 256, "e5m2": 256, "e2m1": 16, "e8m0": 256}


@cache
def kernel(format: str, is_reader: bool) -> Kernel:
    convert = (decode if is_reader else encode)(format)
    types = ("float32[::1]", "uint8[::1]") if is_reader else ("uint8[::1]", "float32[::1]")

    @numba_kernel(*types, name=f"{'decode' if is_reader else 'encode'}[{format}]")
    def one(out, x):
        i = cuda.grid(1)
        if i < x.size:
            out[i] = convert(x[i])

    return one


def run(format: str, x: np.ndarray, is_reader: bool) -> np.ndarray:
    out = device.empty(x.shape, np.float32 if is_reader else np.uint8)
    with device.use("emulated"), device.checks(orders=1, races=False):
        device.launch(kernel(format, is_reader), -(-x.size // 256), 256, out, x)
    return out


def values(format: str) -> np.ndarray:
    return np.arange(CODES[format], dtype=np.uint8).view(WIDTH[format]).astype(np.float32)


@pytest.mark.parametrize("format", CODES)
def test_every_code_is_read(format: str) -> None:
    read, wanted = run(format, np.arange(CODES[format], dtype=np.uint8), True), values(format)
    number = ~np.isnan(wanted)
    assert np.array_equal(read[number].view(np.uint32), wanted[number].view(np.uint32))
    assert np.isnan(read[~number]).all()


@pytest.mark.parametrize("format", NARROW)
def test_numbers_ties_and_neighbours_are_rounded(format: str) -> None:
    exact = np.unique(values(format)[np.isfinite(values(format))])
    assert exact[-1] == NARROW[format][2]
    between = (exact[:-1] + exact[1:]) / 2
    below, above = (np.nextafter(between, np.float32(end)) for end in (-np.inf, np.inf))
    tiny = np.float32([0.0, -0.0, 1e-45, -1e-45, 1e-38, 1e-8, -1e-7])
    random = np.random.default_rng(0).integers(0, 2**32, 4096, np.uint64).astype(np.uint32).view(np.float32)
    random = np.clip(random[np.isfinite(random)], exact[0], exact[-1])
    x = np.concatenate([exact, between, below, above, tiny, random])
    assert np.array_equal(run(format, x, False), x.astype(WIDTH[format]).view(np.uint8))


@pytest.mark.parametrize("format", NARROW)
def test_what_is_too_large_becomes_the_largest(format: str) -> None:
    largest = np.float32(NARROW[format][2])
    x = np.float32([np.nextafter(largest, np.float32(np.inf)), 1.06 * largest, 2 * largest, 3e38, np.inf])
    for signed in (x, -x):
        wanted = np.full(5, np.copysign(largest, signed[0])).astype(WIDTH[format]).view(np.uint8)
        assert np.array_equal(run(format, signed, False), wanted)


@pytest.mark.parametrize("format", NARROW)
def test_what_is_no_number_stays_so(format: str) -> None:
    x = np.array([0x7FC00000, 0xFFC00000, 0x7F800001, 0xFF800001], np.uint32).view(np.float32)
    codes = run(format, x, False)
    wanted = {"e4m3": [0x7F, 0xFF], "e5m2": [0x7E, 0xFE], "e2m1": [0, 8]}[format]
    assert codes.tolist() == wanted * 2


@pytest.mark.parametrize("format", NARROW)
def test_no_float64_and_no_call(format: str) -> None:
    for is_reader in (False, True):
        ptx = kernel(format, is_reader).ptx()
        assert ".f64" not in ptx and "call" not in ptx
