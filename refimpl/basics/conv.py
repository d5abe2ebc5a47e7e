"""Convolutions: over tokens, causal and with a state, and over images, forth and back. No batch axis.

As everywhere in deep learning the kernel is not flipped: what is computed is a correlation. Each of ``groups`` parts of
the outputs reads its own part of the channels; with as many groups as channels the convolution is depthwise.
"""

from collections.abc import Iterable

import numpy as np

from refimpl.basics.activation import silu
from refimpl.contract import Array, Float, host, op, require, whole, widen

__all__ = ["are_whole", "conv1d", "conv2d", "conv_transpose2d", "upsample_nearest"]

Pair = tuple[int, int]


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
    w_gOC, (T, C), past = _by_group(x.T, w, b, groups, ndim=2), x.shape, w.shape[-1] - 1
    state = np.zeros((past, C), x.dtype) if state is None else state
    require((state.shape, state.dtype) == ((past, C), x.dtype), "C3", f"a state that is not {x.dtype} {(past, C)}")
    require(activation in (None, "silu"), "C4", f"activation {activation!r} is not None or 'silu'")
    seen = np.concatenate([state, x])
    y = _biased(sum(_mix(w_gOC[..., i], widen(seen)[i : i + T].T) for i in range(past + 1)), b).T
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
        arithmetic, unless depthwise. Here each tap of the kernel is one product of matrices.
    Numerics: sums in float32 or wider, one cast. tuple[Pair, Pair] is multiplied as zeros.
    Constraints:
        (C1) x is [C Y X], and w is [O, C / groups, ky, kx]; groups divides C and O.
        (C2) b holds one value for each output.
        (C3) stride and dilation are pairs of whole numbers from 1, padding is pairs from 0.
        (C4) the kernel fits into the padded image.
    Source: Dumoulin, Visin, A guide to convolution arithmetic for deep learning, 2016; PyTorch ``conv2d``.

    >>> conv2d(np.arange(9.0).reshape(1, 3, 3), np.ones((1, 1, 2, 2)), stride=(1, 2), padding=((0, 0), (1, 0)))
    array([[[ 3., 12.],
            [ 9., 24.]]])
    """
    _check_steps(stride, dilation, padding)
    w_gOC, seen = _by_group(x, w, b, groups), np.pad(widen(x), ((0, 0), *padding))
    each = zip(seen.shape[1:], w.shape[2:], stride, dilation, strict=True)
    counts = [(n - d * (taps - 1) - 1) // s + 1 for n, taps, s, d in each]
    require(min(counts) >= 1, "C4", f"a kernel {w.shape} at {dilation} does not fit into an image {seen.shape}")
    y = sum(_mix(w_gOC[..., *tap], seen[:, *_places(tap, counts, stride, dilation)]) for tap in np.ndindex(w.shape[2:]))
    return _biased(y, b).astype(x.dtype, copy=False)


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
        (C3) stride and dilation are pairs of whole numbers from 1, paddings are pairs from 0.
        (C4) output_padding is less than stride or dilation, and something of the output is left.
    Source: Dumoulin, Visin, 2016, section 4; PyTorch ``conv_transpose2d``, which stores w as [in, out] too.

    >>> conv_transpose2d(np.array([[[1.0, 2.0]]]), np.array([[[[1.0, 1.0, 1.0]]]]), stride=(1, 2))
    array([[[1., 1., 3., 2., 2.]]])
    """
    _check_steps(stride, dilation, padding, output_padding)
    w_gOC = _by_group(x, w, b, groups, transposed=True)
    fits = all(more < max(s, d) for more, s, d in zip(output_padding, stride, dilation, strict=True))
    require(fits, "C4", f"output_padding {output_padding} is not less than stride {stride} or dilation {dilation}")
    each = zip(x.shape[1:], w.shape[2:], stride, dilation, output_padding, strict=True)
    sizes = [(n - 1) * s + d * (taps - 1) + 1 + more for n, taps, s, d, more in each]
    y = np.zeros((w.shape[1] * groups, *sizes), np.result_type(widen(x), w_gOC))
    for tap in np.ndindex(w.shape[2:]):
        y[:, *_places(tap, x.shape[1:], stride, dilation)] += _mix(w_gOC[..., *tap], widen(x))
    y = y[:, *(slice(before, max(n - behind, 0)) for n, (before, behind) in zip(sizes, padding, strict=True))]
    require(y.size > 0, "C4", f"padding {padding} leaves nothing of an output of {sizes}")
    return _biased(y, b).astype(x.dtype, copy=False)


@op
def upsample_nearest(x: Float[Array, "C Y X"], scale: Pair) -> Float[Array, "C out_y out_x"]:
    """Repeat every value of an image along Y and X.

    Math: y[c, u, v] = x[c, u // scale_y, v // scale_x].
    Cost: no flop; one read, and scale_y scale_x times as much written: bound by memory.
    Numerics: exact in every dtype.
    Constraints:
        (C1) x is [C Y X], and the scales are a pair of whole numbers from 1.
    Source: PyTorch ``interpolate`` with mode="nearest".

    >>> upsample_nearest(np.array([[[1.0, 2.0]]]), (2, 2))
    array([[[1., 1., 2., 2.],
            [1., 1., 2., 2.]]])
    """
    require(x.ndim == 3 and are_whole(scale, (2,), 1), "C1", f"images [C Y X] at scales from 1, not {x.shape}, {scale}")
    return x.repeat(scale[0], 1).repeat(scale[1], 2)


def _by_group(x: Array, w: Array, b: Array | None, groups: int, ndim: int = 3, transposed: bool = False) -> Array:
    """Return the kernels as [groups, outputs of each, channels of each, ...]."""
    groups, (rows, per_group) = whole("groups", groups), (*w.shape, 0, 0)[:2]
    read, made = (rows, per_group * groups) if transposed else (per_group * groups, rows)
    fits = x.ndim == ndim == w.ndim - 1 and w.size > 0 and groups > 0 and rows % groups == 0 and len(x) == read
    require(fits and (ndim == 2 or x.size > 0), "C1", f"{groups} groups of w {w.shape} do not fit x {x.shape}")
    require(b is None or b.shape == (made,), "C2", f"b has shape {b is not None and b.shape}, not {(made,)}")
    w = widen(w).reshape(groups, -1, *w.shape[1:])
    return w.swapaxes(1, 2) if transposed else w


@host
def are_whole(numbers: object, shape: tuple[int, ...], least: int = 0) -> bool:
    """Tell whether numbers are whole, from ``least`` on, none too large for an index, and stand in a shape.

    >>> are_whole((2, 3), (2,)), are_whole((2, 3.0), (2,)), are_whole(2, (2,)), are_whole((0, 1), (2,), 1)
    (True, False, False, False)
    """
    found = np.array(numbers, object)
    return found.shape == shape and all(isinstance(n, int | np.integer) and least <= n < 2**63 for n in found.flat)


def _check_steps(stride: Pair, dilation: Pair, padding: tuple[Pair, Pair], more: Pair = (0, 0)) -> None:
    fits = are_whole([stride, dilation], (2, 2), 1) and are_whole(padding, (2, 2)) and are_whole(more, (2,))
    require(fits, "C3", f"stride {stride}, dilation {dilation} from 1, paddings {padding}, {more} from 0: not pairs")


def _places(tap: Pair, counts: Iterable[int], stride: Pair, dilation: Pair) -> list[slice]:
    """Return where a tap of the kernel stands while the kernel moves: on each axis, from first to last."""
    return [slice(i * d, i * d + (n - 1) * s + 1, s) for i, n, s, d in zip(tap, counts, stride, dilation, strict=True)]


def _mix(w: Array, x: Array) -> Array:
    """Apply a matrix for each group [groups, O, C] to all places of x [C ...]."""
    return (w @ x.reshape(len(w), w.shape[2], -1)).reshape(w[..., 0].size, *x.shape[1:])


def _biased(y: Array, b: Array | None) -> Array:
    return y if b is None else y + widen(b).reshape(-1, *[1] * (y.ndim - 1))
