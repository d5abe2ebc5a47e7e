"""PyTorch on the CPU, spelled as its users spell it. DEVIATIONS says where it chooses otherwise."""

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import torch
import torch.nn.functional as F

from golden.deviations import HIDDEN_TIMES_ZERO, MEAN_ONCE, TOP_LEFT
from golden.verify import Candidate, NotOffered

__all__ = ["DEVIATIONS", "candidates"]


DEVIATIONS = (TOP_LEFT, HIDDEN_TIMES_ZERO, MEAN_ONCE)


def candidates() -> list[Candidate]:
    """Return the operations that torch has."""
    return [Candidate(name, _in_torch(call)) for name, call in _OPERATIONS.items()]


def _tensor(x: Any) -> Any:
    if not isinstance(x, np.ndarray):
        return x
    if x.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(x.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(x.copy())


def _array(x: Any) -> Any:
    return x.view(torch.int16).numpy().view(ml_dtypes.bfloat16) if x.dtype == torch.bfloat16 else x.numpy()


def _in_torch(call: Callable[..., Any]) -> Callable[..., Any]:
    def judged(**arguments: Any) -> Any:
        with torch.no_grad():
            result = call(**{name: _tensor(value) for name, value in arguments.items()})
            return tuple(map(_array, result)) if isinstance(result, tuple) else _array(result)

    return judged


def _attention(
    q: Any, k: Any, v: Any, *, scale: float | None = None, causal: bool = True, mask: Any = None,
    window: int | None = None, softcap: float | None = None, return_lse: bool = False, sinks: Any = None,
    prefix: int = 0, chunk: int | None = None,
) -> Any:  # fmt: skip
    asked = {"window": window, "softcap": softcap, "return_lse": return_lse, "prefix": prefix, "chunk": chunk}
    for name, value in (asked | {"sinks": sinks is not None}).items():
        if value:
            raise NotOffered(f"scaled_dot_product_attention has no {name}")
    if mask is not None and causal:
        raise NotOffered("scaled_dot_product_attention takes a mask or is_causal, not both")
    if mask is not None and mask.dtype not in (torch.bool, q.dtype):
        mask = mask.to(q.dtype)
    heads = [x.transpose(0, 1)[None] for x in (q, k, v)]
    mixed = F.scaled_dot_product_attention(
        *heads, attn_mask=mask, is_causal=causal, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
    )
    return mixed[0].transpose(0, 1)


def _mlp(x: Any, w_up: Any, w_down: Any, b_up: Any = None, b_down: Any = None, *, activation: str = "gelu_tanh") -> Any:
    return F.linear(_OPERATIONS[activation](F.linear(x, w_up, b_up)), w_down, b_down)


def _gated_mlp(
    x: Any, w_gate: Any, w_up: Any, w_down: Any, b_gate: Any = None, b_up: Any = None, b_down: Any = None, *,
    activation: str = "silu", limit: float = 7.0,
) -> Any:  # fmt: skip
    gate, up = F.linear(x, w_gate, b_gate), F.linear(x, w_up, b_up)
    clamped = activation == "swiglu_clamped"
    gated = _swiglu_clamped(gate, up, limit=limit) if clamped else _OPERATIONS[activation](gate) * up
    return F.linear(gated, w_down, b_down)


def _swiglu_clamped(gate: Any, up: Any, *, alpha: float = 1.702, limit: float = 7.0) -> Any:
    gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return (up + 1) * (gate * torch.sigmoid(alpha * gate))


def _group_norm(x: Any, gain: Any, bias: Any = None, *, groups: int, eps: float = 1e-5) -> Any:
    return F.group_norm(x[None], groups, gain, bias, eps)[0]


def _cross_entropy(logits: Any, targets: Any, *, ignore_index: int = -100) -> Any:
    return F.cross_entropy(logits, targets.long(), ignore_index=ignore_index, reduction="none")


def _l2_norm(x: Any, eps: float = 1e-6, *, eps_is_floor: bool = False) -> Any:
    if not eps_is_floor:
        raise NotOffered("torch's normalize has its eps as a floor")
    return F.normalize(x, dim=-1, eps=eps)


def _conv1d(x: Any, w: Any, b: Any = None, state: Any = None, *, groups: int = 1, activation: str | None = None) -> Any:
    past = w.shape[-1] - 1
    seen = torch.cat([x.new_zeros(past, x.shape[1]) if state is None else state, x])
    if len(x) == 0:
        raise NotOffered("torch's conv1d takes no sequence shorter than its kernel")
    y = F.conv1d(seen.T[None], w, b, groups=groups)[0].T
    return (F.silu(y) if activation else y), seen[len(x) :]


def _conv2d(x: Any, w: Any, b: Any = None, *, padding: Any = ((0, 0), (0, 0)), **keywords: Any) -> Any:
    return F.conv2d(F.pad(x[None], (*padding[1], *padding[0])), w, b, **keywords)[0]


def _conv_transpose2d(x: Any, w: Any, b: Any = None, *, padding: Any = ((0, 0), (0, 0)), **keywords: Any) -> Any:
    if any(before != behind for before, behind in padding):
        raise NotOffered("torch's conv_transpose2d cuts off as much before as behind")
    return F.conv_transpose2d(x[None], w, b, padding=tuple(before for before, _ in padding), **keywords)[0]


def _patchify(x: Any, patch: Any, *, channels_last: bool = False) -> Any:
    if x.ndim != 3 or channels_last:
        raise NotOffered("torch's unfold takes images, and puts channels first")
    return F.unfold(x[None], patch, stride=patch)[0].T


def _unpatchify(x: Any, grid: Any, patch: Any, *, channels_last: bool = False) -> Any:
    if len(grid) != 2 or channels_last:
        raise NotOffered("torch's fold makes images, whose channels stand first")
    return F.fold(x.T[None], tuple(n * p for n, p in zip(grid, patch, strict=True)), patch, stride=patch)[0]


def _rms_norm(x: Any, gain: Any, eps: float = 1e-6, *, gain_offset: float = 0.0) -> Any:
    if gain_offset:
        raise NotOffered("torch's rms_norm has no offset of the gain")
    return F.rms_norm(x, gain.shape, gain, eps)


_OPERATIONS: dict[str, Callable[..., Any]] = {
    "linear": lambda x, w, b=None: F.linear(x, w, b),
    "softmax": lambda x, axis=-1: F.softmax(x, axis),
    "log_softmax": lambda x, axis=-1: F.log_softmax(x, axis),
    "logsumexp": lambda x, axis=-1: torch.logsumexp(x, axis),
    "relu": lambda x: F.relu(x),
    "sigmoid": lambda x: torch.sigmoid(x),
    "softplus": lambda x: F.softplus(x),
    "silu": lambda x: F.silu(x),
    "gelu_erf": lambda x: F.gelu(x),
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "gelu_quick": lambda x: x * torch.sigmoid(1.702 * x),
    "swiglu": lambda gate, up: F.silu(gate) * up,
    "geglu": lambda gate, up: F.gelu(gate, approximate="tanh") * up,
    "swiglu_clamped": _swiglu_clamped,
    "layer_norm": lambda x, gain, bias=None, eps=1e-5: F.layer_norm(x, gain.shape, gain, bias, eps),
    "group_norm": _group_norm,
    "rms_norm": _rms_norm,
    "l2_norm": _l2_norm,
    "cross_entropy": _cross_entropy,
    "relu_backward": lambda dy, x: torch.ops.aten.threshold_backward(dy, x, 0),
    "conv1d": _conv1d,
    "conv2d": _conv2d,
    "conv_transpose2d": _conv_transpose2d,
    "upsample_nearest": lambda x, scale: F.interpolate(x[None], scale_factor=tuple(map(float, scale)))[0],
    "patchify": _patchify,
    "unpatchify": _unpatchify,
    "embedding": lambda ids, table: F.embedding(ids.long(), table),
    "learned_position": lambda x, positions, table: x + F.embedding(positions.long(), table),
    "attention": _attention,
    "mlp": _mlp,
    "gated_mlp": _gated_mlp,
}
