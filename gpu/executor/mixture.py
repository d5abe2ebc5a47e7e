"""Mixtures of experts in the CUDA executor: room for the choices of a step, made once, and a token's way through it."""

from math import prod
from typing import Any

from gpu import device
from gpu.basics.gated import gated_into
from gpu.executor.matrices import DeviceWeights
from gpu.executor.plan import CHUNK
from gpu.grid import blocks_for
from gpu.llm import expert_kernels, router
from gpu.llm.experts import expert_permutation_into
from gpu.llm.moe import mix_into, share_into, spread_into
from refimpl.contract import Array
from refimpl.models.spec import ModelSpec, MoeSpec

__all__ = ["Mixtures"]

_FEW = 8  # tokens up to which every choice reads its matrices by itself


class Mixtures:
    """The mixtures of a model's layers, over one room as large as the largest needs."""

    def __init__(self, spec: ModelSpec, weights: DeviceWeights) -> None:
        self.weights = weights
        kinds = [layer.network for layer in spec.layers if isinstance(layer.network, MoeSpec)]
        most: dict[str, int] = {}
        for moe in kinds:
            for name, (shape, _) in _buffers(moe, CHUNK, spec.hidden_size).items():
                most[name] = max(most.get(name, 0), prod(shape))
        dtypes = {name: dtype for moe in kinds for name, (_, dtype) in _buffers(moe, 1, 1).items()}
        self._room = {name: device.empty(size, dtypes[name]) for name, size in most.items()}

    def run(self, y: Array, x: Array, moe: MoeSpec, prefix: str) -> None:
        """Write what the experts of a layer make of its tokens into ``y``."""
        wanted = _buffers(moe, len(x), x.shape[1])
        room = {name: self._room[name][: prod(shape)].reshape(shape) for name, (shape, _) in wanted.items()}
        self._route(room, x, moe, prefix)
        stacks = [self.weights.stacks[f"{prefix}experts.w_{name}"] for name in ("gate", "up", "down")]
        if len(x) <= _FEW and not any(stack.is_quantised for stack in stacks):
            self._indexed(room, y, x, moe, stacks)
        else:
            self._grouped(room, y, x, moe, stacks)
        if moe.shared_size:
            self._share(room, y, x, moe, prefix)

    def _route(self, room: dict[str, Array], x: Array, moe: MoeSpec, prefix: str) -> None:
        self.weights.matrices[prefix + "router"].multiply(room["logits"], x)
        settings = dict[str, Any](moe.routing)
        if moe.correction:
            settings["bias"] = self.weights.vectors[prefix + "router.correction"]
        if "closed" in room:
            settings["room"] = room["closed"], room["scores"]
        getattr(router, f"{moe.router}_into")(room["ids"], room["shares"], room["logits"], **settings)

    def _indexed(self, room: dict[str, Array], y: Array, x: Array, moe: MoeSpec, stacks: list[Any]) -> None:
        gate, up, down = stacks
        each = room["ids"].reshape(-1, 1)
        rows, chosen = (room["rows"], each) if moe.weight_inputs else (x, room["ids"])
        if moe.weight_inputs:
            spread_into(rows, x, room["shares"], is_weighed=True)
        gate.indexed(room["gate"], rows, chosen)
        up.indexed(room["up"], rows, chosen)
        gated_into(room["up"], room["gate"], room["up"], moe.activation, limit=moe.limit)
        down.indexed(room["down"], room["up"], each)
        mix_into(y, room["down"], room["shares"], is_weighed=not moe.weight_inputs)

    def _grouped(self, room: dict[str, Array], y: Array, x: Array, moe: MoeSpec, stacks: list[Any]) -> None:
        gate, up, down = stacks
        places, offsets = room["places"], room["offsets"]
        expert_permutation_into(room["order"], offsets, room["ids"], places, room["counts"])
        spread_into(room["rows"], x, room["shares"], places, is_weighed=moe.weight_inputs)
        gate.grouped(room["gate"], room["rows"], offsets)
        up.grouped(room["up"], room["rows"], offsets)
        gated_into(room["up"], room["gate"], room["up"], moe.activation, limit=moe.limit)
        down.grouped(room["down"], room["up"], offsets)
        mix_into(y, room["down"], room["shares"], places, is_weighed=not moe.weight_inputs)

    def _share(self, room: dict[str, Array], y: Array, x: Array, moe: MoeSpec, prefix: str) -> None:
        gate, up, down = (self.weights.matrices[f"{prefix}shared.w_{name}"] for name in ("gate", "up", "down"))
        gate.multiply(room["shared_gate"], x)
        up.multiply(room["shared_up"], x)
        gated_into(room["shared_up"], room["shared_gate"], room["shared_up"], moe.activation)
        if moe.shared_gate:
            self.weights.matrices[prefix + "shared.w_share"].multiply(room["share"], x)
            share_into(room["shared_up"], room["share"])
        down.multiply(y, room["shared_up"], residual=y)


def _buffers(moe: MoeSpec, T: int, D: int) -> dict[str, tuple[tuple[int, ...], str]]:
    """Return what T tokens of width D need: shapes and dtypes by name."""
    E, A, F, S = moe.num_experts, moe.num_active, moe.size, moe.shared_size
    shapes = {"logits": (T, E), "shares": (T, A), "rows": (T * A, D), "gate": (T * A, F), "up": (T * A, F)}
    shapes |= {"down": (T * A, D)} | ({"shared_gate": (T, S), "shared_up": (T, S), "share": (T, 1)} if S else {})
    whole = {"ids": (T, A), "order": (T * A,), "places": (T * A,), "offsets": (E + 1,)}
    whole |= {"counts": (blocks_for(T * A, expert_kernels.CHUNK) + 1, E)}
    groups = int(dict[str, Any](moe.routing).get("groups", 1))
    if groups > 1:
        shapes, whole = shapes | {"scores": (T, groups)}, whole | {"closed": (T, groups)}
    dtyped = ((shapes, "float32"), (whole, "int32"))
    return {name: (shape, dtype) for each, dtype in dtyped for name, shape in each.items()}
