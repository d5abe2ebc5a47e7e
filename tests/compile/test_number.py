"""Numbers in memory and in registers: every 16-bit float read, and rounding as NumPy and ml_dtypes round."""

from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numba import cuda

from gpu import device
from gpu.compile import Kernel, numba_kernel
from gpu.number import DTYPES, read, storage, write

WIDTH = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


@cache
def converting(source: str, target: str) -> Kernel:
    wide, narrow = read(source), write(target)

    @numba_kernel(f"{storage(target)}[::1]", f"{storage(source)}[::1]", name=f"convert[{source}, {target}]")
    def convert(out, x):
        i = cuda.grid(1)
        if i < x.size:
            out[i] = narrow(wide(x[i]))

    return convert


def convert(x: np.ndarray, target: str) -> np.ndarray:
    out = device.empty(x.shape, WIDTH[target])
    with device.use("emulated"), device.checks(orders=1, races=False):
        device.launch(converting(x.dtype.name, target), -(-x.size // 256), 256, out, x)
    return out


def bits(x: Any) -> np.ndarray:
    return x.view(np.uint32 if x.dtype == np.float32 else np.uint16)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_every_stored_number_is_read(dtype: str) -> None:
    x = np.arange(65536, dtype=np.uint16).view(WIDTH[dtype])
    number = ~np.isnan(x.astype(np.float32))
    result = convert(x, "float32")
    assert np.array_equal(bits(result)[number], bits(x.astype(np.float32))[number])
    assert np.isnan(result[~number]).all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_numbers_and_their_neighbours_are_rounded(dtype: str) -> None:
    exact = np.arange(65536, dtype=np.uint16).view(WIDTH[dtype]).astype(np.float32)
    exact = exact[np.isfinite(exact)]
    with np.errstate(over="ignore"):
        between = (exact[:-1] + exact[1:]) / 2
    below, above = (np.nextafter(between, np.float32(end)) for end in (-np.inf, np.inf))
    x = np.concatenate([exact, between, below, above])
    with np.errstate(over="ignore"):
        expected = x.astype(WIDTH[dtype])
    assert np.array_equal(bits(convert(x, dtype)), bits(expected))


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_no_number_stays_so(dtype: str) -> None:
    x = np.array([np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 3.4e38], np.float32)
    x[1] = np.array(0xFF800001, np.uint32).view(np.float32)
    result = convert(x, dtype).astype(np.float32)
    assert np.isnan(result[:2]).all() and not np.isnan(result[2:]).any()
    assert result[2:6].tolist() == x[2:6].tolist() and np.signbit(result[3:6]).tolist() == [True, False, True]


def test_float32_is_kept_to_the_bit() -> None:
    x = np.random.default_rng(0).integers(0, 2**32, 4096, np.uint64).astype(np.uint32).view(np.float32)
    assert np.array_equal(bits(convert(x, "float32")), bits(x))


@pytest.mark.parametrize("source", DTYPES)
@pytest.mark.parametrize("target", DTYPES)
def test_no_float64_and_no_call(source: str, target: str) -> None:
    ptx = converting(source, target).ptx()
    assert ".f64" not in ptx and "call" not in ptx
