"""The feed-forward block: linear maps and activations in a row, the wide layer between them in float32."""

from collections.abc import Callable
from types import MappingProxyType
from typing import Any

import ml_dtypes
import numpy as np

from gpu import device
from gpu.basics.activation import gelu_erf_into, gelu_quick_into, gelu_tanh_into, relu_into, silu_into
from gpu.basics.gated import gated_into
from gpu.basics.linear import linear_into
from gpu.registry import Variant
from refimpl.contract import Array, Float, kernel, op, require, rows

__all__ = ["VARIANTS", "gated_mlp", "gated_mlp_into", "mlp", "mlp_into"]

_ACTIVATIONS: MappingProxyType[str, Callable[[Array, Array], None]] = MappingProxyType({
    "gelu_erf": gelu_erf_into, "gelu_quick": gelu_quick_into, "gelu_tanh": gelu_tanh_into, "relu": relu_into,
    "silu": silu_into,
})  # fmt: skip


@op
def mlp(
    x: Float[Array, "T D"], w_up: Float[Array, "F D"], w_down: Float[Array, "D F"],
    b_up: Float[Array, " F"] | None = None, b_down: Float[Array, " D"] | None = None, *, activation: str = "gelu_tanh",
) -> Float[Array, "T D"]:
    """Three launches: a linear map, the activation in place, a linear map."""
    _check(activation)
    hidden = device.empty((rows(x), rows(w_up)), np.float32)
    y = device.empty((rows(x), rows(w_down)), x.dtype)
    mlp_into(y, hidden, *map(_there, (x, w_up, w_down, b_up, b_down)), activation=activation)
    return y


@kernel
def mlp_into(
    y: Float[Array, "T D"], hidden: Float[Array, "T F"], x: Float[Array, "T D"], w_up: Float[Array, "F D"],
    w_down: Float[Array, "D F"], b_up: Float[Array, " F"] | None = None, b_down: Float[Array, " D"] | None = None, *,
    activation: str = "gelu_tanh", residual: Float[Array, "T D"] | None = None,
) -> None:
    """Write the feed-forward network of ``x``, plus residual, into ``y``, by way of ``hidden``."""
    linear_into(hidden, x, w_up, b_up)
    _ACTIVATIONS[activation](hidden, hidden)
    linear_into(y, hidden, w_down, b_down, residual)


@op
def gated_mlp(
    x: Float[Array, "T D"], w_gate: Float[Array, "F D"], w_up: Float[Array, "F D"], w_down: Float[Array, "D F"],
    b_gate: Float[Array, " F"] | None = None, b_up: Float[Array, " F"] | None = None,
    b_down: Float[Array, " D"] | None = None, *, activation: str = "silu", limit: float = 7.0,
) -> Float[Array, "T D"]:
    """Four launches: two linear maps, the gate in place, a linear map."""
    require(w_gate.shape == w_up.shape, "C2", f"w_gate has shape {w_gate.shape}, w_up {w_up.shape}")
    require(limit > 0, "C3", f"limit is {limit}, not positive")
    _check(activation, "swiglu_clamped")
    gate, up = device.empty((2, rows(x), rows(w_up)), np.float32)
    y = device.empty((rows(x), rows(w_down)), x.dtype)
    weights = map(_there, (w_gate, w_up, w_down, b_gate, b_up, b_down))
    gated_mlp_into(y, gate, up, _there(x), *weights, activation=activation, limit=limit)
    return y


@kernel
def gated_mlp_into(
    y: Float[Array, "T D"], gate: Float[Array, "T F"], up: Float[Array, "T F"], x: Float[Array, "T D"],
    w_gate: Float[Array, "F D"], w_up: Float[Array, "F D"], w_down: Float[Array, "D F"],
    b_gate: Float[Array, " F"] | None = None, b_up: Float[Array, " F"] | None = None,
    b_down: Float[Array, " D"] | None = None, *, activation: str = "silu", limit: float = 7.0,
    residual: Float[Array, "T D"] | None = None,
) -> None:
    """Write the gated feed-forward network of ``x``, plus residual, into ``y``, by way of ``gate`` and ``up``."""
    linear_into(gate, x, w_gate, b_gate)
    linear_into(up, x, w_up, b_up)
    gated_into(gate, gate, up, activation, limit=limit)
    linear_into(y, gate, w_down, b_down, residual)


def _check(activation: str, *gated: str) -> None:
    named = (*_ACTIVATIONS, *gated)
    require(activation in named, "C1", f"activation {activation!r}, not one of {', '.join(named)}")


def _there(x: Array | None) -> Array | None:
    return None if x is None else device.array(x)


def _workload(gated: bool) -> dict[str, Any]:
    draw = np.random.default_rng(0).standard_normal
    shapes = {"x": (1, 512), "w_gate": (1024, 512), "w_up": (1024, 512), "w_down": (512, 1024)}
    return {name: draw(shape).astype(ml_dtypes.bfloat16) for name, shape in shapes.items() if gated or name != "w_gate"}


VARIANTS = (
    Variant("numba", "mlp", mlp, lambda *_, **__: True, lambda: _workload(False)),
    Variant("numba", "gated_mlp", gated_mlp, lambda *_, **__: True, lambda: _workload(True)),
)
