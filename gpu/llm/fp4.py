"""Weights in four bits as floats: a lane an element; the codes of a block come together by shuffles."""

import numpy as np

from gpu import device
from gpu.grid import blocks_for
from gpu.llm.fp4_kernels import (
    WARPS,
    dequantize_mxfp4_kernel,
    dequantize_nvfp4_kernel,
    quantize_mxfp4_kernel,
    quantize_nvfp4_kernel,
)
from gpu.llm.narrow_kernels import absmax_kernel
from gpu.number import DTYPES, named
from gpu.registry import Variant
from refimpl.contract import Array, Float, UInt8, kernel, op, require, whole

__all__ = [
    "VARIANTS", "dequantize_mxfp4", "dequantize_mxfp4_into", "dequantize_nvfp4", "dequantize_nvfp4_into",
    "quantize_mxfp4", "quantize_mxfp4_into", "quantize_nvfp4", "quantize_nvfp4_into",
]  # fmt: skip

_THREADS = 256


@op
def quantize_mxfp4(x: Float[Array, "O D"], *, run: int = 1) -> tuple[UInt8[Array, "O row_bytes"], UInt8[Array, "O B"]]:
    """A warp a block of 32, 8 a block of threads: the exponent is that of the largest magnitude's bits."""
    packed, scale = _packed(x, 32, run)
    quantize_mxfp4_into(packed, scale, device.array(x), run=run)
    require(not (device.to_host(scale) == 253).any(), "C3", "what is quantised is finite")
    return packed, scale


@kernel
def quantize_mxfp4_into(
    packed: UInt8[Array, "O row_bytes"], scale: UInt8[Array, "O B"], x: Float[Array, "O D"], *, run: int = 1
) -> None:
    """Write codes and scales; that of a block that is not finite is 253, which no other has."""
    made, runs = quantize_mxfp4_kernel(named(x)), (packed.reshape(-1), scale.reshape(-1), x.reshape(-1))
    device.launch(made, blocks_for(scale.size, WARPS), 32 * WARPS, *runs, run)


@op
def dequantize_mxfp4(
    packed: UInt8[Array, "O row_bytes"], scale: UInt8[Array, "O B"], *, run: int = 1
) -> Float[Array, "O D"]:
    """A thread an element, 256 a block: half a byte, and the byte of its scale as an exponent."""
    _check_packed(packed, scale, 32, run)
    x = device.empty((len(packed), 2 * packed.shape[1]), np.float32)
    dequantize_mxfp4_into(x, device.array(packed), device.array(scale), run=run)
    return x


@kernel
def dequantize_mxfp4_into(
    x: Float[Array, "O D"], packed: UInt8[Array, "O row_bytes"], scale: UInt8[Array, "O B"], *, run: int = 1
) -> None:
    """Write the numbers of codes."""
    runs = x.reshape(-1), packed.reshape(-1), scale.reshape(-1)
    device.launch(dequantize_mxfp4_kernel(), blocks_for(x.size, _THREADS), _THREADS, *runs, run)


@op
def quantize_nvfp4(
    x: Float[Array, "O D"], *, run: int = 1
) -> tuple[UInt8[Array, "O row_bytes"], UInt8[Array, "O B"], Float[Array, ""]]:
    """The largest of a row by a block, of all rows by one; then half a warp a block of 16, 16 a block of threads."""
    packed, scale = _packed(x, 16, run)
    tensor = device.empty((1, 1), np.float32)
    quantize_nvfp4_into(packed, scale, tensor, device.array(x), run=run)
    require(bool(np.isfinite(device.to_host(tensor)).all()), "C3", "what is quantised is finite")
    return packed, scale, tensor.reshape(())


@kernel
def quantize_nvfp4_into(
    packed: UInt8[Array, "O row_bytes"], scale: UInt8[Array, "O B"], tensor: Float[Array, "1 1"],
    x: Float[Array, "O D"], *, run: int = 1,
) -> None:
    """Write codes and scales; that of the tensor is not finite where a number is not."""
    most = device.empty((len(x), 1), np.float32)
    device.launch(absmax_kernel(named(x)), len(x), 256, most.reshape(-1), x, 1, max(1, x.shape[1]), 1.0)
    device.launch(absmax_kernel("float32"), 1, 256, tensor.reshape(-1), most, max(1, len(x)), 1, 448.0 * 6.0)
    made, tensor_run = quantize_nvfp4_kernel(named(x)), tensor.reshape(-1)
    runs = packed.reshape(-1), scale.reshape(-1), tensor_run, x.reshape(-1)
    device.launch(made, blocks_for(scale.size, 2 * WARPS), 32 * WARPS, *runs, run)


@op
def dequantize_nvfp4(
    packed: UInt8[Array, "O row_bytes"], scale: UInt8[Array, "O B"], tensor: Float[Array, ""], *, run: int = 1
) -> Float[Array, "O D"]:
    """A thread an element, 256 a block: half a byte, the byte of its scale, and the tensor's."""
    _check_packed(packed, scale, 16, run)
    x = device.empty((len(packed), 2 * packed.shape[1]), tensor.dtype)
    dequantize_nvfp4_into(x, device.array(packed), device.array(scale), device.array(tensor), run=run)
    return x


@kernel
def dequantize_nvfp4_into(
    x: Float[Array, "O D"], packed: UInt8[Array, "O row_bytes"], scale: UInt8[Array, "O B"], tensor: Float[Array, ""],
    *, run: int = 1,
) -> None:
    """Write the numbers of codes."""
    made, runs = dequantize_nvfp4_kernel(named(tensor)), (x.reshape(-1), packed.reshape(-1), scale.reshape(-1))
    device.launch(made, blocks_for(x.size, _THREADS), _THREADS, *runs, tensor.reshape(-1), run)


def _packed(x: Array, size: int, run: int) -> tuple[Array, Array]:
    """Return bytes and scales to write into."""
    fits = x.ndim == 2 and x.shape[1] % size == 0
    require(fits, "C1", f"rows are blocks of {size} elements, got shape {x.shape}")
    require(whole("run", run) > 0 and size // 2 % run == 0, "C2", f"run divides {size // 2}, got {run}")
    rows, width = x.shape
    return device.empty((rows, width // 2), np.uint8), device.empty((rows, width // size), np.uint8)


def _check_packed(packed: Array, scale: Array, size: int, run: int) -> None:
    fits = packed.ndim == 2 and packed.dtype == scale.dtype == np.uint8 and packed.shape[1] * 2 % size == 0
    fits = fits and scale.shape == (len(packed), packed.shape[1] * 2 // size)
    require(fits, "C1", f"bytes of blocks of {size} and a byte of scale each, got {packed.shape} and {scale.shape}")
    require(whole("run", run) > 0 and size // 2 % run == 0, "C2", f"run divides {size // 2}, got {run}")


def _weights() -> Array:
    return np.random.default_rng(0).standard_normal((64, 1024)).astype(np.float32)


def _codes(size: int) -> dict[str, Array]:
    draws = np.random.default_rng(0)
    packed, scale = draws.integers(0, 256, (64, 512), np.uint8), draws.integers(96, 126, (64, 1024 // size))
    return {"packed": packed, "scale": scale.astype(np.uint8)}


VARIANTS = (
    Variant("numba", "quantize_mxfp4", quantize_mxfp4, lambda x, **_: str(x.dtype) in DTYPES,
            lambda: {"x": _weights()}),
    Variant("numba", "dequantize_mxfp4", dequantize_mxfp4, lambda packed, scale, **_: True, lambda: _codes(32)),
    Variant("numba", "quantize_nvfp4", quantize_nvfp4, lambda x, **_: str(x.dtype) in DTYPES,
            lambda: {"x": _weights()}),
    Variant("numba", "dequantize_nvfp4", dequantize_nvfp4,
            lambda packed, scale, tensor, **_: str(tensor.dtype) in DTYPES,
            lambda: _codes(16) | {"tensor": np.float32(0.01)}),
)
