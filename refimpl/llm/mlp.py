"""The feed-forward block: each token goes by itself through a wider layer and back."""

from collections.abc import Callable
from types import MappingProxyType

from refimpl.basics.activation import gelu_erf, gelu_quick, gelu_tanh, relu, silu
from refimpl.basics.gated import geglu, swiglu, swiglu_clamped
from refimpl.basics.linear import linear
from refimpl.contract import Array, Float, op, require, widen

__all__ = ["gated_mlp", "mlp"]

_ACTIVATIONS: MappingProxyType[str, Callable[[Array], Array]] = MappingProxyType(
    {"gelu_erf": gelu_erf, "gelu_quick": gelu_quick, "gelu_tanh": gelu_tanh, "relu": relu, "silu": silu}
)
_GATED: MappingProxyType[str, Callable[..., Array]] = MappingProxyType(
    {"gelu_tanh": geglu, "silu": swiglu, "swiglu_clamped": swiglu_clamped}
)


@op
def mlp(
    x: Float[Array, "T D"], w_up: Float[Array, "F D"], w_down: Float[Array, "D F"],
    b_up: Float[Array, " F"] | None = None, b_down: Float[Array, " D"] | None = None, *, activation: str = "gelu_tanh",
) -> Float[Array, "T D"]:
    """Map each token to a wider layer, apply the activation, and map it back (GPT-2, BERT).

    Math: y = act(x w_up^T + b_up) w_down^T + b_down.
    Cost: 4 T D F flop over 2 D F weights: bound by their bytes in decode, by arithmetic in prefill.
    Numerics: float32 or wider from end to end, one cast.
    Constraints:
        (C1) the activation is gelu_erf, gelu_quick, gelu_tanh, relu or silu.
    Source: Vaswani et al., Attention is all you need, 2017, section 3.3.

    >>> import numpy as np
    >>> mlp(np.array([[1.0, -2.0]]), np.eye(2), np.eye(2), activation="relu")
    array([[1., 0.]])
    """
    hidden = _named(activation)(linear(widen(x), w_up, b_up))
    return linear(hidden, w_down, b_down).astype(x.dtype, copy=False)


@op
def gated_mlp(
    x: Float[Array, "T D"], w_gate: Float[Array, "F D"], w_up: Float[Array, "F D"], w_down: Float[Array, "D F"],
    b_gate: Float[Array, " F"] | None = None, b_up: Float[Array, " F"] | None = None,
    b_down: Float[Array, " D"] | None = None, *, activation: str = "silu", limit: float = 7.0,
) -> Float[Array, "T D"]:
    """Map each token to a wider layer twice, let one result gate the other, and map it back (Llama, Qwen, gpt-oss).

    Math: y = (act(x w_gate^T + b_gate) (x w_up^T + b_up)) w_down^T + b_down; the middle is
        swiglu for silu, geglu for gelu_tanh, and swiglu_clamped, which adds 1 to the second factor, for its own name;
        it alone reads ``limit``.
    Cost: 6 T D F flop over 3 D F weights: bound by their bytes in decode, by arithmetic in prefill.
    Numerics: float32 or wider from end to end, one cast.
    Constraints:
        (C1) the activation is gelu_erf, gelu_quick, gelu_tanh, relu, silu or swiglu_clamped.
        (C2) w_gate and w_up have one shape.
        (C3) limit is positive.
    Source: Shazeer, GLU variants improve transformer, 2020.

    >>> import numpy as np
    >>> gated_mlp(np.array([[1.0, -2.0]]), np.eye(2), 3 * np.eye(2), np.eye(2), activation="relu")
    array([[3., 0.]])
    """
    require(w_gate.shape == w_up.shape, "C2", f"w_gate has shape {w_gate.shape}, w_up {w_up.shape}")
    require(limit > 0, "C3", f"limit is {limit}, not positive")
    wide, bound = widen(x), {"limit": limit} if activation == "swiglu_clamped" else {}
    gate, up = linear(wide, w_gate, b_gate), linear(wide, w_up, b_up)
    hidden = _GATED[activation](gate, up, **bound) if activation in _GATED else _named(activation, *_GATED)(gate) * up
    return linear(hidden, w_down, b_down).astype(x.dtype, copy=False)


def _named(activation: str, *gated: str) -> Callable[[Array], Array]:
    names = ", ".join(dict.fromkeys((*_ACTIVATIONS, *gated)))
    require(activation in _ACTIVATIONS, "C1", f"activation {activation!r}, not one of {names}")
    return _ACTIVATIONS[activation]
