"""Convolutions over tokens and images: one thread an output, which sums in one order, so that chunks change no bit."""

from typing import Any, TypeAlias

import ml_dtypes
import numpy as np

from gpu import device
from gpu.basics.conv_kernels import THREADS, over_image, over_tokens, painted, repeated
from gpu.grid import blocks_for
from gpu.number import named
from gpu.registry import Variant
from refimpl.basics.conv import are_whole
from refimpl.contract import Array, Float, kernel, op, require, whole

__all__ = [
    "VARIANTS", "conv1d", "conv1d_into", "conv2d", "conv2d_into", "conv_transpose2d", "conv_transpose2d_into",
    "upsample_nearest", "upsample_nearest_into",
]  # fmt: skip

Pair: TypeAlias = tuple[int, int]


@op
def conv1d(
    x: Float[Array, "T C"], w: Float[Array, "O per_group taps"], b: Float[Array, " O"] | None = None,
    state: Float[Array, "past C"] | None = None, *, groups: int = 1, activation: str | None = None,
) -> tuple[Float[Array, "T O"], Float[Array, "past C"]]:
    """One thread an output, blocks of 256, neighbours in O; further threads copy the new state, in the same launch."""
    _check(x, w, b, groups, ndim=2)
    (T, C), (outputs, _, taps) = x.shape, w.shape
    fits = state is None or (state.shape == (taps - 1, C) and state.dtype == x.dtype)
    require(fits, "C3", f"a state that is not {x.dtype} {(taps - 1, C)}")
    require(activation in (None, "silu"), "C4", f"activation {activation!r} is not None or 'silu'")
    y, new_state = device.empty((T, outputs), x.dtype), device.empty((taps - 1, C), x.dtype)
    given = (None if each is None else device.array(each) for each in (b, state))
    conv1d_into(y, new_state, device.array(x), device.array(w), *given, activation=activation)
    return y, new_state


@kernel
def conv1d_into(
    y: Float[Array, "T O"], new_state: Float[Array, "past C"], x: Float[Array, "T C"],
    w: Float[Array, "O per_group taps"], b: Float[Array, " O"] | None = None,
    state: Float[Array, "past C"] | None = None, *, activation: str | None = None,
) -> None:
    """Write the causal convolution of ``x`` into ``y``, and the state after it; neither may be one of the inputs."""
    b, state = _or_nothing(b, w), x[:0] if state is None else state
    made = over_tokens(named(x), named(w), named(b), activation)
    device.launch(made, blocks_for(y.size + new_state.size, THREADS), THREADS, y, new_state, x, w, b, state)


@op
def conv2d(
    x: Float[Array, "C Y X"], w: Float[Array, "O per_group ky kx"], b: Float[Array, " O"] | None = None, *,
    stride: Pair = (1, 1), padding: tuple[Pair, Pair] = ((0, 0), (0, 0)), dilation: Pair = (1, 1), groups: int = 1,
) -> Float[Array, "O out_y out_x"]:
    """One thread an output, blocks of 256, neighbours in X: w is one value a warp, and x is read from the cache."""
    _check(x, w, b, groups)
    _check_steps(stride, dilation, padding)
    reach = [d * (taps - 1) + 1 for d, taps in zip(dilation, w.shape[2:], strict=True)]
    padded = [n + sum(zeros) for n, zeros in zip(x.shape[1:], padding, strict=True)]
    counts = [(n - r) // s + 1 for n, r, s in zip(padded, reach, stride, strict=True)]
    require(min(counts) >= 1, "C4", f"a kernel that spans {reach} does not fit into a padded image of {padded}")
    y = device.empty((len(w), *counts), x.dtype)
    before = padding[0][0], padding[1][0]
    bias = None if b is None else device.array(b)
    conv2d_into(y, device.array(x), device.array(w), bias, stride=stride, before=before, dilation=dilation)
    return y


@kernel
def conv2d_into(
    y: Float[Array, "O out_y out_x"], x: Float[Array, "C Y X"], w: Float[Array, "O per_group ky kx"],
    b: Float[Array, " O"] | None = None, *, stride: Pair = (1, 1), before: Pair = (0, 0), dilation: Pair = (1, 1),
) -> None:
    """Write the convolution of ``x`` into ``y``; ``before`` is the padding before the image."""
    _launch(over_image, y, x, w, b, stride, before, dilation)


@op
def conv_transpose2d(
    x: Float[Array, "C Y X"], w: Float[Array, "C per_group ky kx"], b: Float[Array, " O"] | None = None, *,
    stride: Pair = (1, 1), padding: tuple[Pair, Pair] = ((0, 0), (0, 0)), output_padding: Pair = (0, 0),
    dilation: Pair = (1, 1), groups: int = 1,
) -> Float[Array, "O out_y out_x"]:
    """One thread an output, which gathers: no two write one place, and the order of a sum is that of the kernel."""
    _check(x, w, b, groups, transposed=True)
    _check_steps(stride, dilation, padding, output_padding)
    fits = all(more < max(s, d) for more, s, d in zip(output_padding, stride, dilation, strict=True))
    require(fits, "C4", f"output_padding {output_padding} is not less than stride {stride} or dilation {dilation}")
    each = zip(x.shape[1:], w.shape[2:], stride, dilation, output_padding, padding, strict=True)
    counts = [(n - 1) * s + d * (taps - 1) + 1 + more - sum(cut) for n, taps, s, d, more, cut in each]
    require(min(counts) >= 1, "C4", f"padding {padding} leaves an output of {counts}")
    y = device.empty((w.shape[1] * groups, *counts), x.dtype)
    before = padding[0][0], padding[1][0]
    bias = None if b is None else device.array(b)
    conv_transpose2d_into(y, device.array(x), device.array(w), bias, stride=stride, before=before, dilation=dilation)
    return y


@kernel
def conv_transpose2d_into(
    y: Float[Array, "O out_y out_x"], x: Float[Array, "C Y X"], w: Float[Array, "C per_group ky kx"],
    b: Float[Array, " O"] | None = None, *, stride: Pair = (1, 1), before: Pair = (0, 0), dilation: Pair = (1, 1),
) -> None:
    """Write the transposed convolution of ``x`` into ``y``; ``before`` is what is cut off before it."""
    _launch(painted, y, x, w, b, stride, before, dilation)


@op
def upsample_nearest(x: Float[Array, "C Y X"], scale: Pair) -> Float[Array, "C out_y out_x"]:
    """One thread an output, blocks of 256: a read and a write, no arithmetic."""
    require(x.ndim == 3 and are_whole(scale, (2,), 1), "C1", f"images [C Y X] at scales from 1, not {x.shape}, {scale}")
    out = device.empty((len(x), x.shape[1] * scale[0], x.shape[2] * scale[1]), x.dtype)
    upsample_nearest_into(out, device.array(x), scale)
    return out


@kernel
def upsample_nearest_into(out: Float[Array, "C out_y out_x"], x: Float[Array, "C Y X"], scale: Pair) -> None:
    """Write every value of ``x`` as often as ``scale`` says into ``out``."""
    device.launch(repeated(named(x)), blocks_for(out.size, THREADS), THREADS, out, x, *scale)


def _check(x: Array, w: Array, b: Array | None, groups: int, ndim: int = 3, transposed: bool = False) -> None:
    groups, (rows, per_group) = whole("groups", groups), (*w.shape, 0, 0)[:2]
    read, made = (rows, per_group * groups) if transposed else (per_group * groups, rows)
    fits = x.ndim == ndim == w.ndim - 1 and w.size > 0 and groups > 0 and rows % groups == 0
    fits = fits and read == x.shape[1 if ndim == 2 else 0]
    require(fits and (ndim == 2 or x.size > 0), "C1", f"{groups} groups of w {w.shape} do not fit x {x.shape}")
    require(b is None or b.shape == (made,), "C2", f"b has shape {b is not None and b.shape}, not {(made,)}")


def _check_steps(stride: Pair, dilation: Pair, padding: tuple[Pair, Pair], more: Pair = (0, 0)) -> None:
    fits = are_whole([stride, dilation], (2, 2), 1) and are_whole(padding, (2, 2)) and are_whole(more, (2,))
    require(fits, "C3", f"stride {stride}, dilation {dilation} from 1, paddings {padding}, {more} from 0: not pairs")


def _or_nothing(b: Array | None, w: Array) -> Array:
    return w.reshape(-1)[:0] if b is None else b


def _launch(make: Any, y: Array, x: Array, w: Array, b: Array | None, *pairs: Pair) -> None:
    b = _or_nothing(b, w)
    made = make(named(x), named(w), named(b))
    device.launch(made, blocks_for(y.size, THREADS), THREADS, y, x, w, b, *(int(n) for pair in pairs for n in pair))


def _drawn(*shape: int) -> Array:
    return np.random.default_rng(0).standard_normal(shape).astype(ml_dtypes.bfloat16)


def _tokens() -> dict[str, Any]:
    return {"x": _drawn(16, 1024), "w": _drawn(1024, 1, 4), "groups": 1024, "activation": "silu"}


def _image() -> dict[str, Any]:
    return {"x": _drawn(8, 32, 32), "w": _drawn(8, 8, 3, 3), "padding": ((1, 1), (1, 1))}


def _small_image() -> dict[str, Any]:
    return {"x": _drawn(8, 16, 16), "w": _drawn(8, 8, 4, 4), "stride": (2, 2), "padding": ((1, 1), (1, 1))}


VARIANTS = (
    Variant("numba", "conv1d", conv1d, lambda *_, **__: True, _tokens),
    Variant("numba", "conv2d", conv2d, lambda *_, **__: True, _image),
    Variant("numba", "conv_transpose2d", conv_transpose2d, lambda *_, **__: True, _small_image),
    Variant("numba", "upsample_nearest", upsample_nearest, lambda *_, **__: True,
            lambda: {"x": _drawn(16, 64, 64), "scale": (2, 2)}),
)  # fmt: skip
