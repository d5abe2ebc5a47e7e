"""The toolkits' own float32 functions, as NVRTC and Numba compile them, within the errors the CUDA guide tells."""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numba import cuda

from gpu import device
from gpu.compile import cuda_kernel, numba_kernel

N = 256
RNG = np.random.default_rng(12)
X = (RNG.standard_normal(N) * 2.0 ** RNG.integers(-20, 7, N)).astype(np.float32)
X[:12] = [0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan, 1e-40, 1e5, -3e9, 88.0, -104.0]
Y = (RNG.standard_normal(N) * 2.0 ** RNG.integers(-6, 4, N)).astype(np.float32)
Y[Y == 0] = 1.0
Reference = Callable[[np.ndarray, np.ndarray], np.ndarray]
FUNCTIONS: dict[str, tuple[Reference, float]] = {  # in float64; the largest distance from the nearest float32, in ulp
    "sinf(x)": (lambda x, y: np.sin(x), 2), "cosf(x)": (lambda x, y: np.cos(x), 2),
    "tanf(x)": (lambda x, y: np.tan(x), 4), "expf(x)": (lambda x, y: np.exp(x), 2),
    "exp2f(x)": (lambda x, y: np.exp2(x), 2), "expm1f(x)": (lambda x, y: np.expm1(x), 1),
    "logf(fabsf(x))": (lambda x, y: np.log(abs(x)), 1), "log2f(fabsf(x))": (lambda x, y: np.log2(abs(x)), 1),
    "log1pf(fabsf(x))": (lambda x, y: np.log1p(abs(x)), 1), "tanhf(x)": (lambda x, y: np.tanh(x), 2),
    "powf(fabsf(x), y)": (lambda x, y: abs(x) ** y, 4), "cbrtf(x)": (lambda x, y: np.cbrt(x), 1),
    "rsqrtf(fabsf(x))": (lambda x, y: 1 / np.sqrt(abs(x)), 2), "sqrtf(fabsf(x))": (lambda x, y: np.sqrt(abs(x)), 0),
    "x / y": (lambda x, y: x / y, 0), "1 / x": (lambda x, y: 1 / x, 0),
    "fmaf(x, y, x)": (lambda x, y: x * y + x, 0),
    "atan2f(x, y)": (lambda x, y: np.arctan2(x, y), 3), "hypotf(x, y)": (lambda x, y: np.hypot(x, y), 3),
    "erff(x)": (lambda x, y: np.vectorize(math.erf)(x), 2), "sinhf(x)": (lambda x, y: np.sinh(x), 3),
    "coshf(x)": (lambda x, y: np.cosh(x), 2), "fmodf(x, y)": (lambda x, y: np.fmod(x, y), 0),
    "rintf(x)": (lambda x, y: np.rint(x), 0), "roundf(x)": (lambda x, y: np.trunc(x + np.copysign(0.5, x)), 0),
    "floorf(x)": (lambda x, y: np.floor(x), 0), "truncf(x)": (lambda x, y: np.trunc(x), 0),
    "fmaxf(x, y)": (lambda x, y: np.fmax(x, y), 0), "fminf(x, y)": (lambda x, y: np.fmin(x, y), 0),
    "copysignf(x, y)": (lambda x, y: np.copysign(x, y), 0), "ldexpf(x, 5)": (lambda x, y: x * 32, 0),
    "(float)(int)y": (lambda x, y: np.trunc(y), 0), "__int_as_float(__float_as_int(y) ^ 1 << 31)": (lambda x, y: -y, 0),
    "__fadd_rz(x, y) <= fabsf(x + y) ? 1 : 0": (lambda x, y: abs(x) <= np.inf, 0),
}  # fmt: skip


def close(got: np.ndarray, reference: Reference, ulp: float) -> bool:
    """Tell whether a float32 row is within so many units of its last place from the nearest one."""
    with np.errstate(all="ignore"):
        want = np.asarray(reference(X.astype(np.float64), Y.astype(np.float64)), np.float64)
        nearest = want.astype(np.float32)
        plain = np.isfinite(nearest)
        unit = np.maximum(np.spacing(np.abs(nearest)), np.float32(1.5e-45)).astype(np.float64)
        error = np.abs(got.astype(np.float64) - nearest)[plain] / unit[plain]
    return bool((error <= ulp).all()) and np.array_equal(got[~plain], nearest[~plain], equal_nan=True)


@pytest.mark.parametrize("option", ["-DPLAIN", "--fmad=false"])
def test_of_nvrtc(option: str):
    rows = " ".join(f"ROW({expression})" for expression in FUNCTIONS)
    kinds = (("out", "float32*"), ("a", "float32*"), ("b", "float32*"), ("n", "int32"))
    path = Path(__file__).with_name("functions.cu")
    kernel = cuda_kernel(path, "functions", kinds, options=(f"-DFUNCTIONS={rows}", option))
    out = np.zeros((len(FUNCTIONS), N), np.float32)
    with device.use("emulated"):
        device.launch(kernel, N // 64, 64, out, X, Y, N)
    pairs = zip(FUNCTIONS.items(), out, strict=True)
    assert [name for (name, (reference, ulp)), row in pairs if not close(row, reference, ulp)] == []


@numba_kernel("float32[:, ::1]", "float32[::1]", "float32[::1]")
def math_of_numba(out, a, b):
    i = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    x, y = a[i], b[i]
    out[0, i], out[1, i], out[2, i] = math.sin(x), math.cos(x), math.exp(x)
    out[3, i], out[4, i], out[5, i] = math.log(abs(x)), math.tanh(x), math.pow(abs(x), y)
    out[6, i], out[7, i], out[8, i] = math.sqrt(abs(x)), math.floor(x), math.erf(x)


def test_of_numba():
    names = ("sinf(x)", "cosf(x)", "expf(x)", "logf(fabsf(x))", "tanhf(x)", "powf(fabsf(x), y)", "sqrtf(fabsf(x))",
             "floorf(x)", "erff(x)")  # fmt: skip
    out = np.zeros((len(names), N), np.float32)
    with device.use("emulated"):
        device.launch(math_of_numba, N // 64, 64, out, X, Y)
    assert [name for name, row in zip(names, out, strict=True) if not close(row, *FUNCTIONS[name])] == []
