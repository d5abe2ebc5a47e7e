"""Faults of convolutions."""

from typing import Any

import numpy as np

from golden.derive import conv
from golden.values import Array

__all__ = [
    "bias_after_silu", "bias_forgotten", "bias_only_where_painted", "dilation_of_the_other_axis",
    "empty_chunk_forgets", "groups_interleaved", "image_groups_interleaved", "image_kernel_flipped",
    "kernel_centred", "kernel_flipped", "output_padding_before", "padding_behind_first", "painted_kernel_flipped",
    "painted_out_in", "painted_padding_added", "scales_swapped", "state_forgotten", "state_of_this_chunk",
    "stride_from_the_end", "stride_swapped", "sums_in_dtype", "tiled",
]  # fmt: skip


def kernel_flipped(x: Array, w: Array, *rest: Any, **keywords: Any) -> tuple[Array, Array]:
    """The convolution of mathematics: the last tap meets the oldest token."""
    return conv.conv1d(x, w[..., ::-1], *rest, **keywords)


def kernel_centred(x: Array, w: Array, **keywords: Any) -> tuple[Array, Array]:
    """Padding on both sides: a token sees the next ones."""
    taps = w.shape[-1]
    ahead = np.concatenate([x, np.zeros((taps // 2, x.shape[1]))])
    y, _ = conv.conv1d(ahead, w, **keywords)
    return y[taps // 2 :], conv.conv1d(x, w, **keywords)[1]


def state_forgotten(x: Array, w: Array, b: Array | None = None, state: Array | None = None, **keywords: Any) -> Any:
    """Every chunk begins with zeros."""
    return conv.conv1d(x, w, b, None, **keywords)


def state_of_this_chunk(x: Array, w: Array, b: Array | None = None, state: Array | None = None, **keywords: Any) -> Any:
    """A chunk shorter than the state keeps nothing of the state before."""
    y, after = conv.conv1d(x, w, b, state, **keywords)
    return y, conv.conv1d(x, w, b, None, **keywords)[1] if len(x) < len(after) else after


def empty_chunk_forgets(x: Array, w: Array, b: Array | None = None, state: Array | None = None, **keywords: Any) -> Any:
    """Nothing new leaves zeros behind."""
    y, after = conv.conv1d(x, w, b, state, **keywords)
    return y, after if len(x) else np.zeros_like(after)


def groups_interleaved(x: Array, w: Array, *rest: Any, groups: int, **keywords: Any) -> tuple[Array, Array]:
    """Output o reads group o mod groups."""
    y, after = conv.conv1d(x, w[_dealt(len(w), groups)], *rest, groups=groups, **keywords)
    return y[:, np.argsort(_dealt(len(w), groups))], after


def bias_after_silu(x: Array, w: Array, b: Array, **keywords: Any) -> tuple[Array, Array]:
    """The bias is added to what silu gives."""
    y, after = conv.conv1d(x, w, None, **keywords)
    return y + b, after


def _dealt(outputs: int, groups: int) -> Array:
    return np.argsort(np.arange(outputs) % groups, kind="stable")


def bias_forgotten(x: Array, w: Array, b: Array, **keywords: Any) -> Array:
    """The bias is left out."""
    return conv.conv2d(x, w, **keywords)


def image_kernel_flipped(x: Array, w: Array, *rest: Any, **keywords: Any) -> Array:
    """The convolution of mathematics, on both axes."""
    return conv.conv2d(x, w[..., ::-1, ::-1], *rest, **keywords)


def image_groups_interleaved(x: Array, w: Array, *rest: Any, groups: int, **keywords: Any) -> Array:
    """Output o reads group o mod groups."""
    y = conv.conv2d(x, w[_dealt(len(w), groups)], *rest, groups=groups, **keywords)
    return y[np.argsort(_dealt(len(w), groups))]


def padding_behind_first(x: Array, w: Array, *rest: Any, padding: Any, **keywords: Any) -> Array:
    """What should stand behind an axis stands before it."""
    return conv.conv2d(x, w, *rest, padding=tuple(pair[::-1] for pair in padding), **keywords)


def stride_swapped(x: Array, w: Array, *rest: Any, stride: Any, **keywords: Any) -> Array:
    """The stride of Y moves along X."""
    return conv.conv2d(x, w, *rest, stride=stride[::-1], **keywords)


def stride_from_the_end(x: Array, w: Array, *rest: Any, stride: Any, **keywords: Any) -> Array:
    """The last place counts, not the first, where the stride does not come out even."""
    everywhere = conv.conv2d(x, w, *rest, **keywords)
    return everywhere[:, (everywhere.shape[1] - 1) % stride[0] :: stride[0]][..., :: stride[1]]


def dilation_of_the_other_axis(x: Array, w: Array, *rest: Any, dilation: Any, **keywords: Any) -> Array:
    """The dilation of Y spreads the kernel along X."""
    return conv.conv2d(x, w, *rest, dilation=dilation[::-1], **keywords)


def sums_in_dtype(x: Array, w: Array, *rest: Any, **keywords: Any) -> Array:
    """Products in the dtype of the input: float16 overflows above 65504."""
    terms = x[:, 0, 0] * w[:, :, 0, 0].astype(x.dtype)
    return terms.sum(-1, dtype=x.dtype)[:, None, None]


def painted_kernel_flipped(x: Array, w: Array, *rest: Any, **keywords: Any) -> Array:
    """Kernels are painted upside down."""
    return conv.conv_transpose2d(x, w[..., ::-1, ::-1], *rest, **keywords)


def painted_out_in(x: Array, w: Array, *rest: Any, **keywords: Any) -> Array:
    """The matrix of a tap is read as [out, in]; shapes tell only where it is not square."""
    return conv.conv_transpose2d(x, w.swapaxes(0, 1), *rest, **keywords)


def painted_padding_added(x: Array, w: Array, *rest: Any, padding: Any, **keywords: Any) -> Array:
    """Padding puts zeros around the output, and cuts nothing off."""
    whole = conv.conv_transpose2d(x, w, *rest, **keywords)
    return np.pad(whole, ((0, 0), *padding))


def output_padding_before(x: Array, w: Array, *rest: Any, output_padding: Any, **keywords: Any) -> Array:
    """What is added to the output stands before it."""
    y = conv.conv_transpose2d(x, w, *rest, output_padding=output_padding, **keywords)
    return np.roll(y, output_padding, (1, 2))


def bias_only_where_painted(x: Array, w: Array, b: Array, **keywords: Any) -> Array:
    """The bias is added only where a kernel was painted."""
    marks = conv.conv_transpose2d(np.ones_like(x), np.ones_like(w), **keywords)
    return conv.conv_transpose2d(x, w, **keywords) + np.where(marks > 0, b[:, None, None], 0)


def tiled(x: Array, scale: Any) -> Array:
    """The image is repeated, not its values."""
    return np.tile(x, (1, *scale))


def scales_swapped(x: Array, scale: Any) -> Array:
    """The scale of Y stretches X."""
    return conv.upsample_nearest(x, scale[::-1])
