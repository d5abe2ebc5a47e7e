"""The blocks of convolutional networks over pictures: residual block, attention, half the size, twice the size.

``weights`` are those of one block by diffusers' short names (``norm1.weight``, ``conv1.bias`` ...).
"""

from collections.abc import Mapping
from typing import Any

from refimpl.contract import Array, Float, composed

__all__ = ["attention_block", "convolve", "downsample", "resnet_block", "upsample"]

Weights = Mapping[str, Array]
_SAME = ((1, 1), (1, 1))


@composed
def convolve(x: Array, weights: Weights, name: str, ops: Any, **settings: Any) -> Array:
    """Convolve with the kernel of a name and its bias; 3 x 3 kernels keep the size unless told otherwise.

    Source: the definition.
    """
    w = weights[f"{name}.weight"]
    padding = {"padding": _SAME} if w.shape[-1] == 3 else {}
    return ops.conv2d(x, w, weights[f"{name}.bias"], **{**padding, **settings})


def _normed(x: Array, weights: Weights, name: str, groups: int, eps: float, ops: Any) -> Array:
    return ops.group_norm(x, weights[f"{name}.weight"], weights[f"{name}.bias"], groups=groups, eps=eps)


@composed
def resnet_block(
    x: Float[Array, "C Y X"], weights: Weights, groups: int, ops: Any, *, eps: float = 1e-6
) -> Float[Array, "O Y X"]:
    """Add to a picture what two convolutions make of it.

    Math: h = conv1(silu(norm1(x)));  y = shortcut(x) + conv2(silu(norm2(h))), the shortcut a 1 x 1 convolution where
        the channels change.
    Cost: 18 Y X (C O + O^2) flop: bound by arithmetic.
    Source: He et al., Identity mappings in deep residual networks, 2016; Ho et al., 2020.
    """
    h = convolve(ops.silu(_normed(x, weights, "norm1", groups, eps, ops)), weights, "conv1", ops)
    h = convolve(ops.silu(_normed(h, weights, "norm2", groups, eps, ops)), weights, "conv2", ops)
    return (convolve(x, weights, "conv_shortcut", ops) if "conv_shortcut.weight" in weights else x) + h


@composed
def attention_block(
    x: Float[Array, "C Y X"], weights: Weights, groups: int, ops: Any, *, eps: float = 1e-6
) -> Float[Array, "C Y X"]:
    """Add to every place what it reads at all places: attention of one head, as wide as there are channels.

    Math: y = x + w_o attend(q, k, v) of norm(x).
    Cost: 8 Y X C^2 + 4 (Y X)^2 C flop: bound by arithmetic.
    Source: Ho et al., 2020, appendix B; Wang et al., Non-local neural networks, 2018.
    """
    C, height, width = x.shape
    normed = _normed(x, weights, "group_norm", groups, eps, ops).reshape(C, -1).T.copy()
    q, k, v = (ops.linear(normed, weights[f"to_{n}.weight"], weights[f"to_{n}.bias"])[:, None] for n in "qkv")
    o = ops.attention(q, k, v, causal=False)[:, 0]
    o = ops.linear(o, weights["to_out.0.weight"], weights["to_out.0.bias"])
    return x + o.T.copy().reshape(C, height, width)


@composed
def downsample(x: Float[Array, "C Y X"], weights: Weights, ops: Any) -> Float[Array, "C half_y half_x"]:
    """Halve a picture by a 3 x 3 convolution of stride 2; the zeros stand behind it alone, not around it.

    Source: Esser et al., VQGAN, 2021 (``asymmetric padding``).
    """
    return convolve(x, weights, "conv", ops, stride=(2, 2), padding=((0, 1), (0, 1)))


@composed
def upsample(x: Float[Array, "C Y X"], weights: Weights, ops: Any) -> Float[Array, "C twice_y twice_x"]:
    """Double a picture by repeating every value, then a 3 x 3 convolution.

    Source: Odena et al., Deconvolution and checkerboard artifacts, 2016.
    """
    return convolve(ops.upsample_nearest(x, (2, 2)), weights, "conv", ops)
