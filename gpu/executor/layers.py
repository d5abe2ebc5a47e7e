"""A layer of a ModelSpec as the fields of LAYER that are numbers, and what the executor refuses to run."""

from typing import Any

from gpu.executor.elementary import GATED
from gpu.executor.router import ROUTERS
from refimpl.contract import UsageError, host
from refimpl.models.spec import AttentionSpec, LayerSpec, MlpSpec, MoeSpec

__all__ = ["layer_fields"]

_EVERYTHING = 1 << 40  # keys that a query sees without a window
_SIGMOIDS = ("sigmoid_group_top_k", "top_k_sigmoid")


@host
def layer_fields(layer: LayerSpec) -> dict[str, float]:
    """Return fields of LAYER by name.

    Errors: UsageError for what the CPU executor cannot run.
    """
    fields = _attention(layer.mixer) | {"parallel": layer.norms == "parallel", "by_rows": layer.mixer.qk_norm == "row"}
    return fields | (_mixture(layer.network) if isinstance(layer.network, MoeSpec) else _network(layer.network))


def _attention(mixer: AttentionSpec) -> dict[str, float]:
    if not isinstance(mixer, AttentionSpec):
        raise UsageError(f"the CPU executor runs layers of attention, got {type(mixer).__name__}")
    if mixer.window is not None and mixer.chunk is not None:
        raise UsageError(f"a layer sees a window or a chunk, got a window of {mixer.window} in chunks of {mixer.chunk}")
    window = mixer.window if mixer.chunk is None else -mixer.chunk
    return {
        "window": _EVERYTHING if window is None else window, "softcap": mixer.softcap or 0.0,
        "scale": mixer.head_dim**-0.5 if mixer.scale is None else mixer.scale,
    }  # fmt: skip


def _network(network: MlpSpec) -> dict[str, float]:
    return {"width": network.size, "gated": network.gated, "activation": _code(network.activation), "limit": 7.0}


def _mixture(moe: MoeSpec) -> dict[str, float]:
    if moe.router not in ROUTERS:
        raise UsageError(f"the CPU executor's routers are {', '.join(ROUTERS)}, not {moe.router!r}")
    by_sigmoid, routing = moe.router == "sigmoid_group_top_k", dict[str, Any](moe.routing)
    fields: dict[str, float] = {"groups": 1, "top_groups": 1, "scale": 1.0}
    fields["renormalise"] = moe.router != "top_k_sigmoid"
    known = {"softmax_top_k": {"renormalise"}, "sigmoid_group_top_k": set(fields)}.get(moe.router, set())
    if not set(routing) <= known or moe.correction > by_sigmoid:
        raise UsageError(f"{moe.router} does not take {', '.join(set(routing) - known) or 'a correction'}")
    fields |= routing
    groups, top = fields["groups"], fields["top_groups"]
    fits = groups >= 1 and moe.num_experts % groups == 0 and 1 <= top <= groups
    if not (fits and 1 <= moe.num_active <= top * (moe.num_experts // groups)):
        raise UsageError(f"{moe.num_active} of {moe.num_experts} experts, from the best {top} of {groups} groups")
    fields["route_scale"] = fields.pop("scale")
    return fields | {
        "chooses_by": by_sigmoid, "weighs_by": moe.router in _SIGMOIDS, "experts": moe.num_experts,
        "active": moe.num_active, "weight_inputs": moe.weight_inputs, "width": moe.shared_size,
        "shared_gate": moe.shared_gate, "gated": True, "activation": _code(moe.activation), "limit": moe.limit,
    }  # fmt: skip


def _code(activation: str) -> int:
    if activation not in GATED:
        raise UsageError(f"the CPU executor's activations are {', '.join(GATED)}, not {activation!r}")
    return GATED.index(activation)
