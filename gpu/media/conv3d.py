"""Causal convolution of videos: one thread an output, which sums in one order, so that chunks change no bit."""

from typing import Any, TypeAlias

import numpy as np

from gpu import device
from gpu.basics.flat import THREADS
from gpu.grid import blocks_for
from gpu.media.conv3d_kernels import over_video
from gpu.number import named
from gpu.registry import Variant
from refimpl.basics.conv import are_whole
from refimpl.contract import Array, Float, kernel, op, require

__all__ = ["VARIANTS", "conv3d", "conv3d_into"]

Pair: TypeAlias = tuple[int, int]


@op
def conv3d(
    x: Float[Array, "C frames Y X"], w: Float[Array, "O C taps ky kx"], b: Float[Array, " O"] | None = None,
    state: Float[Array, "C past Y X"] | None = None, *, stride: tuple[int, int, int] = (1, 1, 1),
    padding: tuple[Pair, Pair] = ((0, 0), (0, 0)),
) -> tuple[Float[Array, "O out_frames out_y out_x"], Float[Array, "C kept Y X"]]:
    """One thread an output, blocks of 256, neighbours in X; state and x are put together first, in one array."""
    fits = x.ndim == 4 and w.ndim == 5 and x.shape[0] == w.shape[1] and w.size > 0 and 0 not in (*x.shape[2:], len(x))
    require(fits, "C1", f"w {w.shape} does not fit x {x.shape}")
    require(b is None or b.shape == (len(w),), "C2", f"b has shape {b is not None and b.shape}, not {(len(w),)}")
    before = np.zeros((len(x), w.shape[2] - 1, *x.shape[2:]), x.dtype) if state is None else state
    kept = before.ndim == 4 and before.dtype == x.dtype and before.shape[1] < w.shape[2]
    kept = kept and (before.shape[0], *before.shape[2:]) == (x.shape[0], *x.shape[2:])
    require(kept, "C3", f"a state {before.dtype} {before.shape}, x {x.dtype} {x.shape}, {w.shape[2]} taps")
    whole = are_whole(stride, (3,), 1) and are_whole(padding, (2, 2)) and stride[0] <= w.shape[2]
    room = whole and all(n + sum(p) >= k for n, p, k in zip(x.shape[2:], padding, w.shape[3:], strict=True))
    require(room, "C4", f"stride {stride}, padding {padding}: a kernel {w.shape[2:]} over frames {x.shape[2:]}")
    seen = np.concatenate([device.array(before), device.array(x)], axis=1)
    sides = [n + sum(p) for n, p in zip(x.shape[2:], padding, strict=True)]
    sizes = zip((seen.shape[1], *sides), w.shape[2:], stride, strict=True)
    counts = [max((n - k) // s + 1, 0) for n, k, s in sizes]
    y = device.empty((len(w), *counts), x.dtype)
    bias = None if b is None else device.array(b)
    conv3d_into(y, seen, device.array(w), bias, stride=stride, before=(padding[0][0], padding[1][0]))
    return y, seen[:, counts[0] * stride[0] :]


@kernel
def conv3d_into(
    y: Float[Array, "O out_frames out_y out_x"], seen: Float[Array, "C frames Y X"], w: Float[Array, "O C taps ky kx"],
    b: Float[Array, " O"] | None = None, *, stride: tuple[int, int, int] = (1, 1, 1), before: Pair = (0, 0),
) -> None:
    """Write the convolution of ``seen``, state and video, into ``y``; ``before`` is the padding before a frame."""
    if y.size:
        b = w.reshape(-1)[:0] if b is None else b
        made = over_video(named(seen), named(w), named(b))
        steps = [np.uint64(n) for n in (*stride, *before)]
        device.launch(made, blocks_for(y.size, THREADS), THREADS, y, seen, w, b, *steps)


def _video() -> dict[str, Any]:
    draw = np.random.default_rng(0).standard_normal
    x, w = draw((8, 5, 16, 16), np.float32), draw((16, 8, 3, 3, 3), np.float32)
    return {"x": x, "w": w, "b": draw(16, np.float32), "padding": ((1, 1), (1, 1))}


VARIANTS = (Variant("numba", "conv3d", conv3d, lambda *_, **__: True, _video),)
