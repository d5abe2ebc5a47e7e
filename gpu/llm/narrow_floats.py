"""Numbers of few bits with their scales beside them: a thread an element; the largest of a block by a block."""

import numpy as np

from gpu import device
from gpu.grid import blocks_for, threads_for
from gpu.llm.narrow_kernels import absmax_kernel, dequantize_linear_kernel, held, quantize_linear_kernel
from gpu.narrow import NARROW
from gpu.number import DTYPES, named
from gpu.registry import Variant
from refimpl.contract import Array, Float, kernel, op, require
from refimpl.llm.narrow_floats import NUMBERS

__all__ = [
    "VARIANTS", "dequantize_linear", "dequantize_linear_into", "quantize_absmax", "quantize_absmax_into",
    "quantize_linear", "quantize_linear_into",
]  # fmt: skip

_THREADS = 256


@op
def quantize_linear(
    x: Float[Array, "..."], scale: Float[Array, "..."], zero_point: Array | None = None, *, format: str = "int8",
    block: tuple[int, ...] = (),
) -> Array:
    """A thread an element, 256 a block: it finds its scale by dividing its index by the axes, and writes one code."""
    _check(scale, zero_point, format, x.shape, block)
    q = device.empty(x.shape, NUMBERS[format][2])
    zero = None if zero_point is None else device.array(zero_point)
    quantize_linear_into(q, device.array(x), device.array(scale), zero, format=format, block=block)
    return q


@kernel
def quantize_linear_into(
    q: Array, x: Float[Array, "..."], scale: Float[Array, "..."], zero_point: Array | None = None, *,
    format: str = "int8", block: tuple[int, ...] = (),
) -> None:
    """Write codes."""
    made, axes = quantize_linear_kernel(format, named(x), named(scale)), _axes(x.shape, scale, block)
    runs = q.reshape(-1), x.reshape(-1), scale.reshape(-1), _zeros(zero_point)
    device.launch(made, blocks_for(x.size, _THREADS), _THREADS, *runs, axes)


@op
def dequantize_linear(
    q: Array, scale: Float[Array, "..."], zero_point: Array | None = None, *, format: str = "int8",
    block: tuple[int, ...] = (),
) -> Float[Array, "..."]:
    """A thread an element, 256 a block, as in quantize_linear; a float's code becomes float32 by its bits."""
    _check(scale, zero_point, format, q.shape, block)
    require(q.dtype == NUMBERS[format][2], "C4", f"codes of {format} are {held(format)}, got {q.dtype}")
    x = device.empty(q.shape, scale.dtype)
    zero = None if zero_point is None else device.array(zero_point)
    dequantize_linear_into(x, device.array(q), device.array(scale), zero, format=format, block=block)
    return x


@kernel
def dequantize_linear_into(
    x: Float[Array, "..."], q: Array, scale: Float[Array, "..."], zero_point: Array | None = None, *,
    format: str = "int8", block: tuple[int, ...] = (),
) -> None:
    """Write the numbers of codes."""
    made, axes = dequantize_linear_kernel(format, named(scale)), _axes(q.shape, scale, block)
    runs = x.reshape(-1), q.reshape(-1), scale.reshape(-1), _zeros(zero_point)
    device.launch(made, blocks_for(q.size, _THREADS), _THREADS, *runs, axes)


@op
def quantize_absmax(
    x: Float[Array, "O D"], *, format: str = "int8", block: tuple[int, int] | None = None
) -> tuple[Array, Float[Array, "rows columns"]]:
    """A block of threads a scale, its largest magnitude through shared memory; then quantize_linear's kernel."""
    require(format in NUMBERS, "C1", f"formats are {', '.join(NUMBERS)}, got {format!r}")
    rows, columns = block or (1, max((1, *x.shape[1:])))
    require(x.ndim == 2 and min(rows, columns) > 0, "C2", f"a matrix in blocks, got {x.shape} in blocks of {block}")
    scale = device.empty((blocks_for(len(x), rows), blocks_for(x.shape[1], columns)), np.float32)
    q = device.empty(x.shape, NUMBERS[format][2])
    quantize_absmax_into(q, scale, device.array(x), format=format, block=(rows, columns))
    require(bool(np.isfinite(device.to_host(scale)).all()), "C3", "what is quantised is finite")
    return q, scale


@kernel
def quantize_absmax_into(
    q: Array, scale: Float[Array, "rows columns"], x: Float[Array, "O D"], *, format: str = "int8",
    block: tuple[int, int],
) -> None:
    """Write scales and codes; a block that is not finite has a scale that is not."""
    threads = threads_for(min(block[0], len(x)) * min(block[1], x.shape[1]))
    device.launch(absmax_kernel(named(x)), scale.size, threads, scale.reshape(-1), x, *block, NUMBERS[format][1])
    quantize_linear_into(q, x, scale, format=format, block=block)


def _check(scale: Array, zero_point: Array | None, format: str, shape: tuple[int, ...], block: tuple[int, ...]) -> None:
    require(format in NUMBERS, "C1", f"formats are {', '.join(NUMBERS)}, got {format!r}")
    fits = max(scale.ndim, len(block)) <= len(shape) and min(block, default=1) > 0
    if fits:
        counts, sizes = _aligned(scale.shape, shape), _aligned(block, shape)
        fits = all(n in (1, blocks_for(length, size)) for n, length, size in zip(counts, shape, sizes, strict=True))
    require(fits, "C2", f"scale of {shape} in blocks of {block} has a number a block or one an axis, got {scale.shape}")
    fits = zero_point is None or (format not in NARROW and zero_point.shape == scale.shape)
    require(fits, "C3", f"zero_point has the shape {scale.shape} of scale, and none is there for {', '.join(NARROW)}")


def _aligned(sizes: tuple[int, ...], shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return sizes of the last axes as sizes of all."""
    return (1,) * (len(shape) - len(sizes)) + sizes


def _axes(shape: tuple[int, ...], scale: Array, block: tuple[int, ...]) -> Array:
    """Return for each axis its length, its block and the distance between its scales, 0 where one is for all."""
    counts, strides, distance = _aligned(scale.shape, shape), [], 1
    for count in reversed(counts):
        strides.append(distance if count > 1 else 0)
        distance *= count
    rows = zip(shape, _aligned(block, shape), reversed(strides), strict=True)
    return device.array(np.array(list(rows), np.int64).reshape(len(shape), 3))


def _zeros(zero_point: Array | None) -> Array:
    return device.empty(0, np.int32) if zero_point is None else zero_point.reshape(-1).astype(np.int32)


def _weights(rows: int, columns: int) -> Array:
    return np.random.default_rng(0).standard_normal((rows, columns)).astype(np.float32)


def _takes(x: Array, scale: Array, zero_point: Array | None = None, **_: object) -> bool:
    return str(x.dtype) in DTYPES and str(scale.dtype) in DTYPES


VARIANTS = (
    Variant("numba", "quantize_linear", quantize_linear, _takes,
            lambda: {"x": _weights(64, 1024), "scale": np.full((64, 8), 0.01, np.float32), "format": "e4m3",
                     "block": (128,)}),
    Variant("numba", "dequantize_linear", dequantize_linear,
            lambda q, scale, zero_point=None, **_: str(scale.dtype) in DTYPES,
            lambda: {"q": np.full((64, 1024), 0x38, np.uint8), "scale": np.ones((64, 8), np.float32), "format": "e4m3",
                     "block": (128,)}),
    Variant("numba", "quantize_absmax", quantize_absmax, lambda x, **_: str(x.dtype) in DTYPES,
            lambda: {"x": _weights(64, 1024), "format": "e4m3", "block": (1, 128)}),
)
