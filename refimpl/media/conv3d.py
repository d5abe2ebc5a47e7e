"""Convolution over videos: causal in time, so that frames can come one after the other."""

from typing import TypeAlias

import numpy as np

from refimpl.basics.conv import are_whole
from refimpl.contract import Array, Float, op, require, widen

__all__ = ["conv3d"]

Pair: TypeAlias = tuple[int, int]


@op
def conv3d(
    x: Float[Array, "C frames Y X"], w: Float[Array, "O C taps ky kx"], b: Float[Array, " O"] | None = None,
    state: Float[Array, "C past Y X"] | None = None, *, stride: tuple[int, int, int] = (1, 1, 1),
    padding: tuple[Pair, Pair] = ((0, 0), (0, 0)),
) -> tuple[Float[Array, "O out_frames out_y out_x"], Float[Array, "C kept Y X"]]:
    """Move a kernel over a video whose frames see no later ones; return beside the outputs what the next frames need.

    Without a state, taps - 1 frames of zeros stand before the first, so that a video of one frame is a picture. The
    state is every frame that the next output still reads: at most taps - 1, fewer where a stride has passed some.
    Strides are of frames, Y and X; the padding of Y and X says how many zeros stand before and behind.

    Math: y[o, t, u, v] = sum_{c, h, i, j} z[c, t s + h, u s_y + i, v s_x + j] w[o, c, h, i, j] + b[o], z the state and
        x, one after the other; out_frames = floor((past + frames - taps) / s) + 1, or 0; the state is z from the frame
        out_frames s on.
    Cost: 2 O out_frames out_y out_x taps ky kx C flop over (C frames Y X + O C taps ky kx + O out_frames out_y out_x)
        elements: bound by arithmetic.
    Numerics: sums in float32 or wider, one cast of y. The state is x itself. On kernels chunks change no bit; here the
        products are BLAS's, whose order follows the size, so they may change the last ones.
    Constraints:
        (C1) x is [C frames Y X] with at least one channel, row and column; w is [O, C, taps, ky, kx], none of them 0.
        (C2) b holds one value for each output.
        (C3) a state is [C past Y X] in the dtype of x, with fewer than taps frames.
        (C4) strides are three whole numbers from 1, that of frames at most taps; paddings are two pairs from 0; the
            kernel fits into the padded frame.
    Source: Yu et al., MAGVIT-v2, 2023, section 3.3 (causal 3D convolution); Wan Team, 2025 (its cache of frames).

    >>> x, w = np.arange(1.0, 4.0).reshape(1, 3, 1, 1), np.array([10.0, 1.0]).reshape(1, 1, 2, 1, 1)
    >>> y, state = conv3d(x, w)
    >>> y.ravel(), conv3d(x[:, :1] * 4, w, state=state)[0].ravel()
    (array([ 1., 12., 23.]), array([34.]))
    """
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
    seen = np.concatenate([before, x], axis=1)
    padded, wide_w = np.pad(widen(seen), ((0, 0), (0, 0), *padding)), widen(w)
    counts = [max((n - k) // s + 1, 0) for n, k, s in zip(padded.shape[1:], w.shape[2:], stride, strict=True)]
    y = np.zeros((len(w), *counts), np.result_type(padded, wide_w))
    for tap in np.ndindex(w.shape[2:]) if y.size else ():
        places = [slice(i, i + (n - 1) * s + 1, s) for i, n, s in zip(tap, counts, stride, strict=True)]
        y += np.tensordot(wide_w[(..., *tap)], padded[:, *places], 1)
    y = y if b is None else y + widen(b)[:, None, None, None]
    return y.astype(x.dtype, copy=False), seen[:, counts[0] * stride[0] :]
