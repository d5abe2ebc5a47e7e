"""ONNX's operators as calls of refimpl. The batch, axes and layouts are arranged here, the mathematics is refimpl's."""

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import numpy as np

from refimpl.basics.activation import gelu_erf, gelu_tanh, log_softmax, silu, softmax
from refimpl.basics.conv import conv1d
from refimpl.basics.linear import linear
from refimpl.basics.norm import group_norm, layer_norm, rms_norm
from refimpl.llm.cache_forms import ring_append
from refimpl.llm.cuts import top_k
from refimpl.llm.kv_cache import KVCache, cache_append
from refimpl.llm.position import rope
from tests.onnx.attending import attention_node
from tests.onnx.convolving import conv_node, conv_transpose_node
from tests.onnx.quantizing import dequantize_node, quantize_node
from tests.onnx.scope import OutOfScope

__all__ = ["NODES"]


def _gelu(x: np.ndarray, *, approximate: str = "none") -> np.ndarray:
    return (gelu_tanh if approximate == "tanh" else gelu_erf)(x)


def _swish(x: np.ndarray, *, alpha: float = 1.0) -> np.ndarray:
    if alpha != 1:
        raise OutOfScope(f"silu has no alpha of {alpha}")
    return silu(x)


def _rows(x: np.ndarray, axis: int) -> np.ndarray:
    """Return x as rows that hold all axes from ``axis`` on."""
    return x.reshape(int(np.prod(x.shape[: axis % x.ndim])), -1)


def _rms_normalization(x: np.ndarray, gain: np.ndarray, *, axis: int = -1, epsilon: float = 1e-5) -> np.ndarray:
    return rms_norm(_rows(x, axis), gain.reshape(-1), epsilon).reshape(x.shape)


def _layer_normalization(
    x: np.ndarray, gain: np.ndarray, bias: np.ndarray | None = None, *, axis: int = -1, epsilon: float = 1e-5
) -> tuple[np.ndarray, ...]:
    """Return the normalised rows, their means, and the factor by which layer_norm shrank them."""
    rows, axis = _rows(x, axis), axis % x.ndim
    D, one = rows.shape[1], (*x.shape[:axis], *[1] * (x.ndim - axis))
    y = layer_norm(rows, gain.reshape(-1), None if bias is None else bias.reshape(-1), epsilon)
    mean = linear(rows, np.full((1, D), 1 / D, x.dtype))
    centred, plain = rows - mean, layer_norm(rows, np.ones(D, x.dtype), eps=epsilon)
    shrunk = (plain * centred).sum(-1) / (centred * centred).sum(-1)
    return y.reshape(x.shape), mean.reshape(one), shrunk.reshape(one)


def _group_normalization(
    x: np.ndarray, gain: np.ndarray, bias: np.ndarray, *, num_groups: int, epsilon: float = 1e-5
) -> np.ndarray:
    return np.stack([group_norm(image, gain, bias, groups=num_groups, eps=epsilon) for image in x])


def _rotary_embedding(
    x: np.ndarray, cos: np.ndarray, sin: np.ndarray, positions: np.ndarray | None = None, *,
    interleaved: int = 0, num_heads: int = 0, rotary_embedding_dim: int = 0,
) -> np.ndarray:  # fmt: skip
    if positions is not None:
        cos, sin = cos[positions], sin[positions]
    assert rotary_embedding_dim in (0, 2 * cos.shape[-1])
    tokens = x.reshape(*x.shape[:2], num_heads, -1) if x.ndim == 3 else x.swapaxes(1, 2)
    turned = np.stack([rope(*each, interleaved=bool(interleaved)) for each in zip(tokens, cos, sin, strict=True)])
    return turned.reshape(x.shape) if x.ndim == 3 else turned.swapaxes(1, 2)


def _top_k(
    x: np.ndarray, k: np.ndarray, *, axis: int = -1, largest: int = 1, sorted: int = 1
) -> tuple[np.ndarray, np.ndarray]:
    """Return values and indices, best first: what the cut to i + 1 keeps and the cut to i does not."""
    rows = np.moveaxis(x, axis, -1).astype(np.float64)  # whole numbers too
    picked = np.apply_along_axis(lambda row: _best_first(row if largest else -row, int(k[0])), -1, rows)
    picked = np.moveaxis(picked, -1, axis)
    return np.take_along_axis(x, picked, axis), picked


def _best_first(row: np.ndarray, k: int) -> np.ndarray:
    kept = [set(np.flatnonzero(np.isfinite(top_k(row, i)))) if i else set() for i in range(k + 1)]
    return np.array([(more - less).pop() for less, more in pairwise(kept)], np.int64)


def _tensor_scatter(
    past: np.ndarray, update: np.ndarray, at: np.ndarray | None = None, *, axis: int = -2, mode: str = "linear"
) -> np.ndarray:
    at, present = np.zeros(len(past), np.int64) if at is None else at, past.copy()
    for b, start in enumerate(at):
        slots, new = (np.moveaxis(x, axis, 1)[b] for x in (present, update))
        slots, new = (x.reshape(len(x), -1, x.shape[-1]) for x in (slots, new))
        if mode == "circular":
            ring_append(slots, slots.copy(), new, new, int(start))
        else:
            cache_append(KVCache(slots, slots.copy(), int(start)), new, new)
    return present


def _causal_conv(
    x: np.ndarray, w: np.ndarray, b: np.ndarray | None = None, past: np.ndarray | None = None, *,
    activation: str = "none",
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    keywords = {"groups": len(w), "activation": None if activation == "none" else "silu"}
    states = [None] * len(x) if past is None else [state.T for state in past]
    y, state = zip(*(conv1d(tokens.T, w, b, s, **keywords) for tokens, s in zip(x, states, strict=True)), strict=True)
    return np.stack(y).swapaxes(1, 2), np.stack(state).swapaxes(1, 2)


NODES: Mapping[str, Callable[..., Any]] = {
    "Attention": attention_node,
    "RotaryEmbedding": _rotary_embedding,
    "RMSNormalization": _rms_normalization,
    "LayerNormalization": _layer_normalization,
    "GroupNormalization": _group_normalization,
    "Gelu": _gelu,
    "Swish": _swish,
    "Softmax": lambda x, *, axis=-1: softmax(x, axis),
    "LogSoftmax": lambda x, *, axis=-1: log_softmax(x, axis),
    "TopK": _top_k,
    "TensorScatter": _tensor_scatter,
    "Conv": conv_node,
    "ConvTranspose": conv_transpose_node,
    "CausalConvWithState": _causal_conv,
    "QuantizeLinear": quantize_node,
    "DequantizeLinear": dequantize_node,
}
