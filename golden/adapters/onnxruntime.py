"""ONNX Runtime on the CPU: every operation is a model of one node of the standard's operator set."""

import functools
from typing import Any

import ml_dtypes
import numpy as np
import onnxruntime
from onnx import TensorProto, helper

from golden.deviations import HIDDEN_TIMES_ZERO, MEAN_ONCE, TAIL_CUT, TOP_LEFT
from golden.verify import Candidate, NotOffered

__all__ = ["DEVIATIONS", "candidates"]

_OPSET, _IR = 24, 10
_TYPES = {
    "float16": TensorProto.FLOAT16, "float32": TensorProto.FLOAT, "float64": TensorProto.DOUBLE,
    "bfloat16": TensorProto.BFLOAT16, "int8": TensorProto.INT8, "uint8": TensorProto.UINT8,
    "int16": TensorProto.INT16, "uint16": TensorProto.UINT16, "int32": TensorProto.INT32, "int64": TensorProto.INT64,
    "bool": TensorProto.BOOL,
}  # fmt: skip


DEVIATIONS = (TOP_LEFT, HIDDEN_TIMES_ZERO, MEAN_ONCE, TAIL_CUT)


def candidates() -> list[Candidate]:
    """Return the operations that the standard has as one node."""
    return [Candidate(name.removeprefix("_"), call) for name, call in _OPERATIONS.items()]


@functools.cache
def _session(op: str, types: tuple[str, ...], result: str, attributes: tuple[tuple[str, Any], ...]) -> Any:
    places = [f"input_{number}" if type else "" for number, type in enumerate(types)]
    given = {place: type for place, type in zip(places, types, strict=True) if type}
    inputs = [helper.make_tensor_value_info(name, _TYPES[type], None) for name, type in given.items()]
    node = helper.make_node(op, places, ["output"], **dict(attributes))
    output = helper.make_tensor_value_info("output", _TYPES[result], None)
    model = helper.make_model(
        helper.make_graph([node], op, inputs, [output]), opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR
    )
    options = onnxruntime.SessionOptions()
    # Its optimiser ends the process on some models of one node (1.32: Gelu).
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4  # a refusal is an answer, not a log
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def _run(op: str, *inputs: Any, result: str | None = None, **attributes: Any) -> Any:
    """Run one node; its result has the dtype of its first input, or the one named. An input of None is left out."""
    types = tuple("" if x is None else x.dtype.name for x in inputs)
    if any(x is not None and x.dtype == ml_dtypes.bfloat16 for x in inputs):
        raise NotOffered("ONNX Runtime's Python face takes no bfloat16 arrays")
    if any(x is not None and x.dtype == np.float64 for x in inputs):
        raise NotOffered("ONNX's attributes (eps, alpha, scale) are float32")
    kept = tuple((name, value) for name, value in attributes.items() if value is not None)
    try:
        session = _session(op, types, result or types[0], kept)
    except Exception as error:
        if "NOT_IMPLEMENTED" in str(error) or "not support" in str(error):
            raise NotOffered(f"ONNX Runtime has no {op} for these types on the CPU") from error
        raise
    return session.run(None, {f"input_{i}": x for i, x in enumerate(inputs) if x is not None})[0]


def _attention(
    q: Any, k: Any, v: Any, *, scale: float | None = None, causal: bool = True, mask: Any = None,
    window: int | None = None, softcap: float | None = None, return_lse: bool = False, sinks: Any = None,
    prefix: int = 0, chunk: int | None = None,
) -> Any:  # fmt: skip
    asked = {"window": window, "log-sum-exp": return_lse, "sinks": sinks is not None, "prefix": prefix, "chunk": chunk}
    for name, value in asked.items():
        if value:
            raise NotOffered(f"ONNX's Attention has no {name}")
    heads = [np.ascontiguousarray(x.transpose(1, 0, 2)[None]) for x in (q, k, v)]
    mixed = _run("Attention", *heads, mask, is_causal=int(causal), scale=scale, softcap=softcap)
    return mixed[0].transpose(1, 0, 2)


def _rms_norm(x: Any, gain: Any, eps: float = 1e-6, *, gain_offset: float = 0.0) -> Any:
    if gain_offset:
        raise NotOffered("ONNX's RMSNormalization has no offset of the gain")
    return _run("RMSNormalization", x, gain, axis=-1, epsilon=eps)


def _cross_entropy(logits: Any, targets: Any, *, ignore_index: int = -100) -> Any:
    labels = targets.astype(np.int64)
    return _run("SoftmaxCrossEntropyLoss", logits, labels, reduction="none", ignore_index=ignore_index)


def _group_norm(x: Any, gain: Any, bias: Any = None, *, groups: int, eps: float = 1e-5) -> Any:
    shift = np.zeros_like(gain) if bias is None else bias
    return _run("GroupNormalization", x[None], gain, shift, num_groups=groups, epsilon=eps)[0]


def _conv1d(x: Any, w: Any, b: Any = None, state: Any = None, *, groups: int = 1, activation: str | None = None) -> Any:
    if activation or len(x) == 0:
        raise NotOffered(f"ONNX's Conv has no {'activation' if activation else 'output without places'}")
    state = np.zeros((w.shape[-1] - 1, x.shape[1]), x.dtype) if state is None else state
    seen = np.concatenate([state, x])
    return _run("Conv", np.ascontiguousarray(seen.T[None]), w, b, group=groups)[0].T, seen[len(x) :]


def _conv(
    op: str, x: Any, w: Any, b: Any = None, *, stride: Any = (1, 1), padding: Any = ((0, 0), (0, 0)),
    output_padding: Any = None, dilation: Any = (1, 1), groups: int = 1,
) -> Any:  # fmt: skip
    pads = tuple(pair[side] for side in (0, 1) for pair in padding)
    places = {"strides": stride, "dilations": dilation, "pads": pads}
    return _run(op, x[None], w, b, **places, output_padding=output_padding, group=groups)[0]


def _upsample_nearest(x: Any, scale: Any) -> Any:
    scales = np.array([1, 1, *scale], np.float32)
    rule = {"coordinate_transformation_mode": "asymmetric", "mode": "nearest", "nearest_mode": "floor"}
    return _run("Resize", x[None], None, scales, **rule)[0]


def _rope(x: Any, cos: Any, sin: Any, *, interleaved: bool = False, trailing: bool = False) -> Any:
    if trailing:
        raise NotOffered("ONNX's RotaryEmbedding turns the leading values")
    if cos.dtype != x.dtype:
        raise NotOffered("ONNX's RotaryEmbedding has its tables in the dtype of x")
    heads, rotated = np.ascontiguousarray(x.transpose(1, 0, 2)[None]), 2 * cos.shape[1]
    rotated = rotated if rotated < x.shape[-1] else 0
    tables = (cos[None], sin[None])
    turned = _run("RotaryEmbedding", heads, *tables, interleaved=int(interleaved), rotary_embedding_dim=rotated)
    return turned[0].transpose(1, 0, 2)


def _scattered(mode: str, cache: Any, new: Any, index: int) -> Any:
    if len(new) > len(cache) or new.dtype != cache.dtype:
        raise NotOffered("ONNX's TensorScatter takes no more tokens than there are slots, in the cache's dtype")
    heads = [np.ascontiguousarray(x.transpose(1, 0, 2)[None]) for x in (cache, new)]
    return _run("TensorScatter", *heads, np.array([index]), mode=mode)[0].transpose(1, 0, 2)


def _cache_append(k_cache: Any, v_cache: Any, length: int, k: Any, v: Any) -> Any:
    return *(_scattered("linear", *pair, length) for pair in ((k_cache, k), (v_cache, v))), length + len(k)


def _ring_append(k_cache: Any, v_cache: Any, k: Any, v: Any, length: int) -> Any:
    return tuple(_scattered("circular", *pair, length % len(k_cache)) for pair in ((k_cache, k), (v_cache, v)))


def _dequantize_linear(q: Any, scale: Any, zero_point: Any = None, *, format: str = "int8", block: Any = ()) -> Any:
    if format != q.dtype.name or scale.ndim != q.ndim or len(block) > 1:
        raise NotOffered("codes that NumPy has, in blocks along one axis, are what is asked of ONNX Runtime")
    size, dtype = block[0] if block else 1, scale.dtype.name
    return _run("DequantizeLinear", q, scale, zero_point, result=dtype, axis=-1, block_size=size)


_OPERATIONS: dict[str, Any] = {
    "dequantize_linear": _dequantize_linear,
    "linear": lambda x, w, b=None: _run("Gemm", x, w, b, transB=1),
    "softmax": lambda x, axis=-1: _run("Softmax", x, axis=axis),
    "log_softmax": lambda x, axis=-1: _run("LogSoftmax", x, axis=axis),
    "logsumexp": lambda x, axis=-1: _run("ReduceLogSumExp", x, np.array([axis]), keepdims=0),
    "relu": lambda x: _run("Relu", x),
    "sigmoid": lambda x: _run("Sigmoid", x),
    "softplus": lambda x: _run("Softplus", x),
    "silu": lambda x: _run("Swish", x),
    "gelu_erf": lambda x: _run("Gelu", x),
    "gelu_tanh": lambda x: _run("Gelu", x, approximate="tanh"),
    "gelu_quick": lambda x: _run("Swish", x, alpha=1.702),
    "layer_norm": lambda x, gain, bias=None, eps=1e-5: _run("LayerNormalization", x, gain, bias, epsilon=eps),
    "group_norm": _group_norm,
    "cross_entropy": _cross_entropy,
    "rms_norm": _rms_norm,
    "conv1d": _conv1d,
    "conv2d": lambda *args, **keywords: _conv("Conv", *args, **keywords),
    "conv_transpose2d": lambda *args, **keywords: _conv("ConvTranspose", *args, **keywords),
    "upsample_nearest": _upsample_nearest,
    "embedding": lambda ids, table: _run("Gather", table, ids),
    "rope": _rope,
    "cache_append": _cache_append,
    "ring_append": _ring_append,
    "attention": _attention,
}
