"""What an executor allocates once: the program that describes the model, buffers of activations, scratch memory."""

import os
import resource
from collections.abc import Mapping
from typing import Any

import numpy as np

from gpu.executor.attention import SPLIT
from gpu.executor.cache import block_bytes, head_bytes, value_dim
from gpu.executor.linear import SCRATCH_BYTES
from gpu.executor.memory import aligned, row_bytes
from gpu.executor.page import BLOCK, PAGE
from gpu.executor.plan import CHUNK, TILE_ROWS, Plan
from gpu.executor.positions import Positions
from gpu.executor.program import GROUP, MATRICES, PROGRAM
from gpu.executor.router import router_bytes
from gpu.executor.weights import Weights
from refimpl.contract import Array, host
from refimpl.models.spec import ModelSpec, MoeSpec
from refimpl.models.tensor import Tensor

__all__ = ["Workspace", "memory_bytes", "scratch_bytes", "usual_capacity"]


def _widths(spec: ModelSpec) -> dict[str, int]:
    """Return the floats of a token's row in each buffer of activations."""
    queries, keys, hidden = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim, spec.hidden_size
    networks, mixtures = [layer.network for layer in spec.layers], _mixtures(spec)
    ffn = max(each.shared_size if isinstance(each, MoeSpec) else each.size for each in networks)
    return {
        "x": hidden, "normed": hidden, "q": queries, "k": keys, "v": keys, "mixed": queries, "gate": ffn, "up": ffn,
    } | ({"logit": max(moe.num_experts for moe in mixtures), "share": 1} if mixtures else {})  # fmt: skip


def _mixtures(spec: ModelSpec) -> list[MoeSpec]:
    return [layer.network for layer in spec.layers if isinstance(layer.network, MoeSpec)]


def _choices(spec: ModelSpec) -> int:
    """Return the choices of a step, of which each has a row."""
    return CHUNK * max((moe.num_active for moe in _mixtures(spec)), default=0)


def _chosen_widths(spec: ModelSpec) -> dict[str, int]:
    """Return the floats of a choice's row in each buffer of choices."""
    inner = max((moe.size for moe in _mixtures(spec)), default=0)
    return {"chosen": spec.hidden_size, "chosen_gate": inner, "chosen_up": inner}


def _part_bytes(spec: ModelSpec) -> int:
    """Return the bytes of all heads' parts of a query in one split: sums, maximum and denominator."""
    return 4 * (value_dim(spec) + 32) * spec.num_heads


@host
def scratch_bytes(spec: ModelSpec) -> int:
    """Return the bytes of a thread's scratch: a matrix's, or a tile of queries with its scores, parts and totals."""
    rows = max(TILE_ROWS, spec.num_heads // spec.num_kv_heads)
    attention = 4 * rows * (spec.head_dim + SPLIT + 2 * (value_dim(spec) + 32)) + 64
    routes = max((router_bytes.py_func(moe.num_experts) for moe in _mixtures(spec)), default=0)
    return max(SCRATCH_BYTES, attention, routes)


@host
def memory_bytes(spec: ModelSpec, weights: Mapping[str, Tensor], tokens: int) -> int:
    """Return the bytes of packed weights, activations, and a cache in which ``tokens`` tokens stand."""
    packed = sum(tensor.nbytes for tensor in weights.values())
    buffers = CHUNK * sum(row_bytes(width) for width in _widths(spec).values())
    buffers += _choices(spec) * sum(row_bytes(width) for width in _chosen_widths(spec).values())
    return packed + buffers + -(-tokens // (PAGE * BLOCK)) * block_bytes(spec)


@host
def usual_capacity(spec: ModelSpec, context: int) -> int:
    """Return tokens of eight contexts, or as many as fit in half of the memory, but one context at least."""
    token = block_bytes(spec) // (BLOCK * PAGE)
    memory, limit = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), resource.getrlimit(resource.RLIMIT_AS)[0]
    half = (memory if limit == resource.RLIM_INFINITY else min(memory, limit)) // 2
    return max(context, min(8 * context, half // token))


_WAYS = {  # of a layer's matrices, from buffer to buffer
    "w_q": ("normed", "q"), "w_k": ("normed", "k"), "w_v": ("normed", "v"), "w_o": ("mixed", "normed"),
    "w_gate": ("normed", "gate"), "w_up": ("normed", "up"), "w_down": ("gate", "normed"),
    "router": ("normed", "logit"), "share": ("normed", "share"),
}  # fmt: skip
_EXPERT_WAYS = (("chosen", "chosen_gate"), ("chosen", "chosen_up"), ("chosen_gate", "chosen"))


class Workspace:
    """The program, whose fields are set by name, and in ``memory``, by name, the bytes of the buffers it points to."""

    def __init__(self, spec: ModelSpec, weights: Weights, plan: Plan, teams: Array, int8: bool) -> None:
        self._table, self._teams = np.zeros(1, PROGRAM), teams
        self.memory: dict[str, Array] = {}
        self.address = int(self._table.ctypes.data)
        self.positions = Positions(spec)
        for record, mixer in zip(weights.layers, spec.mixers, strict=True):
            for name, value in self.positions.describe(mixer).items():
                record[name] = value
        self._describe(spec, weights)
        self._allocate(spec, plan, int8)
        self._head = weights.matrices[weights.head : weights.head + 1]
        self._connect(weights)
        self.set(
            int8=int8, teams=teams.ctypes.data, token_ids=plan.ids.ctypes.data, positions=plan.positions.ctypes.data,
            tables=plan.tables.ctypes.data, wanted=plan.wanted.ctypes.data, last_tiles=plan.last.tiles.ctypes.data,
            last_merges=plan.last.merges.ctypes.data,
        )  # fmt: skip

    def answer_to(self, logits: Array | None, states: Array | None) -> None:
        """Set where a step writes logits and hidden states, None: nowhere."""
        place = 0 if logits is None else logits.ctypes.data
        self._head["target"], self._head["target_stride"] = place, 0 if logits is None else logits.strides[0]
        self.set(logits=place, states=0 if states is None else states.ctypes.data)

    def set(self, **fields: float) -> None:
        """Set fields of the program."""
        for name, value in fields.items():
            self._table[name] = value

    def _describe(self, spec: ModelSpec, weights: Weights) -> None:
        self.set(
            layers=spec.num_layers, hidden=spec.hidden_size, heads=spec.num_heads, kv_heads=spec.num_kv_heads,
            group=spec.num_heads // spec.num_kv_heads, head_dim=spec.head_dim, value_dim=value_dim(spec),
            layer_norm=spec.norm == "layer", eps=spec.norm_eps, embedding_scale=spec.embedding_scale,
            residual_scale=spec.residual_scale, logit_scale=spec.logit_scale, logit_softcap=spec.logit_softcap or 0.0,
            layer_table=weights.layers.ctypes.data, matrices=weights.matrices.ctypes.data,
            final_gain=weights.vector("final_norm.gain"), final_bias=weights.vector("final_norm.bias"),
            position_table=weights.vector("position_embedding"), position_stride=4 * spec.hidden_size,
            layer_bytes=spec.num_kv_heads * head_bytes(spec), head_bytes=head_bytes(spec),
        )  # fmt: skip

    def _connect(self, weights: Weights) -> None:
        """Tell every matrix which buffer it reads, and which it writes."""
        for i, layer in enumerate(weights.layers):
            ways = _WAYS if layer["gated"] else _WAYS | {"w_up": ("normed", "gate")}
            for matrix, name in zip(weights.matrices[len(MATRICES) * i :], MATRICES, strict=False):
                self._lead(matrix, *ways[name])
            experts = weights.matrices[layer["expert_matrices"] :][: 3 * layer["experts"]]
            for place, way in enumerate(_EXPERT_WAYS):
                self._lead(experts[place::3], *way)
        self._lead(self._head, "normed", "normed")

    def _lead(self, matrix: Any, source: str, target: str) -> None:
        for end, name in (("source", source), ("target", target)):
            for suffix in ("", "_stride"):
                matrix[end + suffix] = self._table[name + suffix][0]

    def _allocate(self, spec: ModelSpec, plan: Plan, int8: bool) -> None:
        widths, chosen, choices = _widths(spec), _chosen_widths(spec), _choices(spec)
        for count, names in ((CHUNK, widths), (choices, chosen)):
            for name, width in names.items():
                self._take(name, count * row_bytes(width))
                self.set(**{name + "_stride": row_bytes(width)})
        self._take("parts", plan.max_parts * _part_bytes(spec))
        for name in ("ids", "shares", "places", "order"):
            self._take(name, 8 * choices)
        groups = max((moe.num_experts for moe in _mixtures(spec)), default=0)
        self._take("group_table", GROUP.itemsize * groups)
        codes = max(CHUNK * max(widths.values()), choices * max(chosen.values())) if int8 else 0
        for name, size in (("codes", codes), ("scales", codes // 8), ("sums", codes // 8)):
            self._take(name, size)

    def _take(self, name: str, size: int) -> None:
        self.memory[name] = aligned(size)
        self.set(**{name: self.memory[name].ctypes.data})
