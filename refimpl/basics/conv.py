"""Convolutions: over tokens, causal and with a state, and over images, forth and back. No batch axis.

As everywhere in deep learning the kernel is not flipped: what is computed is a correlation. Each of ``groups`` parts of
the outputs reads its own part of the channels; with as many groups as channels the convolution is depthwise.
"""

from collections.abc import Iterable
from typing import TypeAlias

import numpy as np

from refimpl.basics.activation import silu
from refimpl.contract import Array, Float, op, require, widen

__all__ = ["conv1d", "conv2d", "conv_transpose2d", "upsample_nearest"]

Pair: TypeAlias = tuple[int, int]


@op
def conv1d(
    x: Float[Array, "T C"], w: Float[Array, "O per_group taps"], b: Float[Array, " O"] | None = None,
    state: Float[Array, "past C"] | None = None, *, groups: int = 1, activation: str | None = None,
) -> tuple[Float[Array, "T O"], Float[Array, "past C"]]:
    """Mix every token with those just before it, and return beside the outputs what the next tokens need of these.

    The state is the last taps - 1 inputs; without one, zeros stand before the first token. Mamba and Gated DeltaNet
    use it depthwise, with silu.

    Math: y[t, o] = f(sum_{c, i} x[t - taps + 1 + i, c] w[o, c, i] + b[o]), c over the group of o, x[-1] the last of
        the state; f is silu if asked for.
    Cost: 2 T O taps C / groups flop over (T C + O taps C / groups + T O) elements: depthwise, bound by memory.
    Numerics: sums in float32 or wider, silu before the one cast of y. The state is x itself, not rounded again.
    Constraints:
        (C1) x is [T C], and w is [O, C / groups, taps]; groups divides C and O.
        (C2) b holds one value for each output.
        (C3) a state holds taps - 1 inputs in the dtype of x.
        (C4) the activation is None or "silu".
    Source: Gu, Dao, Mamba, 2023; ONNX CausalConvWithState.

    >>> y, state = conv1d(np.array([[1.0], [2.0], [3.0]]), np.array([[[10.0, 1.0]]]))
    >>> y[:, 0], state
    (array([ 1., 12., 23.]), array([[3.]]))
    """
    _check(x, w, b, groups, ndim=2)
    (T, C), (_, _, taps) = x.shape, w.shape
    state = np.zeros((taps - 1, C), x.dtype) if state is None else state
    fits = state.shape == (taps - 1, C) and state.dtype == x.dtype
    require(fits, "C3", f"a state of {state.dtype} {state.shape}, not {x.dtype} {(taps - 1, C)}")
    require(activation in (None, "silu"), "C4", f"activation {activation!r} is not None or 'silu'")
    seen = np.concatenate([state, x])
    y = sum(_mix(widen(w)[:, :, i], widen(seen)[i : i + T].T, groups) for i in range(taps))
    y = _with_bias(y, b).T
    return (silu(y) if activation else y).astype(x.dtype, copy=False), seen[T:]


@op
def conv2d(
    x: Float[Array, "C Y X"], w: Float[Array, "O per_group ky kx"], b: Float[Array, " O"] | None = None, *,
    stride: Pair = (1, 1), padding: tuple[Pair, Pair] = ((0, 0), (0, 0)), dilation: Pair = (1, 1), groups: int = 1,
) -> Float[Array, "O out_y out_x"]:
    """Move a kernel over an image; every place makes one output a kernel.

    Pairs are of the two axes, Y and X; the padding of an axis says how many zeros stand before and behind it.

    Math: y[o, u, v] = sum_{c, i, j} x[c, u stride + i dilation - before, likewise in v] w[o, c, i, j] + b[o], c over
        the group of o; out_y = floor((Y + before + behind - dilation (ky - 1) - 1) / stride) + 1.
    Cost: 2 O out_y out_x ky kx C / groups flop over (C Y X + O ky kx C / groups + O out_y out_x) elements: bound by
        arithmetic, unless depthwise. This plain form also holds every window: up to ky kx times the image.
    Numerics: sums in float32 or wider, one cast. Padding is multiplied as zeros.
    Constraints:
        (C1) x is [C Y X], and w is [O, C / groups, ky, kx]; groups divides C and O.
        (C2) b holds one value for each output.
        (C3) stride and dilation are at least 1, padding is not negative.
        (C4) the kernel fits into the padded image.
    Source: Dumoulin, Visin, A guide to convolution arithmetic for deep learning, 2016; PyTorch ``conv2d``.

    >>> conv2d(np.arange(9.0).reshape(1, 3, 3), np.ones((1, 1, 2, 2)), stride=(1, 2), padding=((0, 0), (1, 0)))
    array([[[ 3., 12.],
            [ 9., 24.]]])
    """
    _check(x, w, b, groups)
    _check_steps(stride, dilation, *padding)
    padded = np.pad(widen(x), ((0, 0), *padding))
    reach = [d * (taps - 1) + 1 for d, taps in zip(dilation, w.shape[2:], strict=True)]
    counts = [(n - r) // s + 1 for n, r, s in zip(padded.shape[1:], reach, stride, strict=True)]
    require(min(counts) >= 1, "C4", f"a kernel that spans {reach} does not fit into a padded image {padded.shape[1:]}")
    y = sum(
        _mix(widen(w)[:, :, *tap], padded[:, *_places(tap, counts, stride, dilation)], groups)
        for tap in np.ndindex(*w.shape[2:])
    )
    return _with_bias(y, b).astype(x.dtype, copy=False)


@op
def conv_transpose2d(
    x: Float[Array, "C Y X"], w: Float[Array, "C per_group ky kx"], b: Float[Array, " O"] | None = None, *,
    stride: Pair = (1, 1), padding: tuple[Pair, Pair] = ((0, 0), (0, 0)), output_padding: Pair = (0, 0),
    dilation: Pair = (1, 1), groups: int = 1,
) -> Float[Array, "O out_y out_x"]:
    """Let every value of an image paint a kernel: the adjoint of conv2d, by which decoders make images larger.

    Math: y[o, u stride + i dilation - before, likewise in v] += x[c, u, v] w[c, o, i, j], c over the group of o, and
        b[o] once; out_y = (Y - 1) stride + dilation (ky - 1) + 1 + output_padding - before - behind.
    Cost: 2 C Y X ky kx O / groups flop over (C Y X + C ky kx O / groups + O out_y out_x) elements: bound by arithmetic.
    Numerics: sums in float32 or wider, one cast. Nothing is multiplied by a zero that is not in x.
    Constraints:
        (C1) x is [C Y X], and w is [C, O / groups, ky, kx]; groups divides C.
        (C2) b holds one value for each output.
        (C3) stride and dilation are at least 1, paddings are not negative.
        (C4) output_padding is less than stride or dilation, and something of the output is left.
    Source: Dumoulin, Visin, 2016, section 4; PyTorch ``conv_transpose2d``, which stores w as [in, out] too.

    >>> conv_transpose2d(np.array([[[1.0, 2.0]]]), np.array([[[[1.0, 1.0, 1.0]]]]), stride=(1, 2))
    array([[[1., 1., 3., 2., 2.]]])
    """
    _check(x, w, b, groups, transposed=True)
    _check_steps(stride, dilation, *padding, output_padding)
    each = zip(x.shape[1:], w.shape[2:], stride, dilation, output_padding, strict=True)
    sizes = [(n - 1) * s + d * (taps - 1) + 1 + more for n, taps, s, d, more in each]
    fits = all(more < max(s, d) for more, s, d in zip(output_padding, stride, dilation, strict=True))
    require(fits, "C4", f"output_padding {output_padding} is not less than stride {stride} or dilation {dilation}")
    left = [size - sum(cut) for size, cut in zip(sizes, padding, strict=True)]
    require(min(left) >= 1, "C4", f"padding {padding} leaves nothing of an output of {sizes}")
    w_by_output = widen(w).reshape(groups, -1, *w.shape[1:]).swapaxes(1, 2).reshape(-1, len(w) // groups, *w.shape[2:])
    painted = np.zeros((len(w_by_output), *sizes), np.result_type(widen(x), widen(w)))
    for tap in np.ndindex(*w.shape[2:]):
        painted[:, *_places(tap, x.shape[1:], stride, dilation)] += _mix(w_by_output[:, :, *tap], widen(x), groups)
    y = painted[:, *(slice(cut[0], cut[0] + n) for cut, n in zip(padding, left, strict=True))]
    return _with_bias(y, b).astype(x.dtype, copy=False)


@op
def upsample_nearest(x: Float[Array, "C Y X"], scale: Pair) -> Float[Array, "C out_y out_x"]:
    """Repeat every value of an image along Y and X.

    Math: y[c, u, v] = x[c, u // scale_y, v // scale_x].
    Cost: no flop; one read, and scale_y scale_x times as much written: bound by memory.
    Numerics: exact in every dtype.
    Constraints:
        (C1) x is [C Y X], and both scales are at least 1.
    Source: PyTorch ``interpolate`` with mode="nearest".

    >>> upsample_nearest(np.array([[[1.0, 2.0]]]), (2, 2))
    array([[[1., 1., 2., 2.],
            [1., 1., 2., 2.]]])
    """
    require(x.ndim == 3 and min(scale) >= 1, "C1", f"an image [C Y X] at scales of 1 or more, got {x.shape}, {scale}")
    return x.repeat(scale[0], 1).repeat(scale[1], 2)


def _check(x: Array, w: Array, b: Array | None, groups: int, *, ndim: int = 3, transposed: bool = False) -> None:
    fits = x.ndim == ndim and w.ndim == ndim + 1 and groups >= 1 and len(w) % groups == 0 and w.size > 0
    channels = x.shape[-1] if ndim == 2 else len(x)
    read, made = (len(w), w.shape[1] * groups) if transposed else (w.shape[1] * groups, len(w))
    message = f"{groups} groups of w {w.shape} do not read x {x.shape}"
    require(fits and read == channels and (ndim == 2 or x.size > 0), "C1", message)
    require(b is None or b.shape == (made,), "C2", f"b has shape {b is not None and b.shape}, not {(made,)}")


def _check_steps(stride: Pair, dilation: Pair, *paddings: Pair) -> None:
    require(min(*stride, *dilation) >= 1, "C3", f"stride {stride} and dilation {dilation} are not 1 or more")
    require(min(map(min, paddings)) >= 0, "C3", f"a padding of {paddings} is negative")


def _places(tap: Pair, counts: Iterable[int], stride: Pair, dilation: Pair) -> list[slice]:
    """Return where a tap of the kernel stands while the kernel moves: on each axis, from first to last."""
    each = zip(tap, counts, stride, dilation, strict=True)
    return [slice(i * d, i * d + (n - 1) * s + 1, s) for i, n, s, d in each]


def _mix(w: Array, x: Array, groups: int) -> Array:
    """Apply one matrix [O, C / groups] to all places of x [C ...], group by group."""
    y = w.reshape(groups, -1, w.shape[1]) @ x.reshape(groups, w.shape[1], -1)
    return y.reshape(len(w), *x.shape[1:])


def _with_bias(y: Array, b: Array | None) -> Array:
    return y if b is None else y + widen(b).reshape(-1, *[1] * (y.ndim - 1))
