"""A model's weights as the compiled step reads them: matrices in tiles, vectors in float32, and the tables of both."""

import mmap
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np

from gpu.executor.layers import layer_fields
from gpu.executor.linear_int8 import has_int8
from gpu.executor.pack import Packed, pack
from gpu.executor.program import LAYER, MATRICES, MATRIX
from refimpl.contract import Array, UsageError
from refimpl.models.spec import ModelSpec, MoeSpec
from refimpl.models.tensor import Tensor

__all__ = ["DTYPES", "Weights"]

DTYPES: Mapping[str, Any] = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
_VECTORS = {  # of a layer, by their fields
    "attention_gain": "attention_norm.gain", "attention_bias": "attention_norm.bias",
    "attention_post_gain": "attention_post_norm.gain", "attention_post_bias": "attention_post_norm.bias",
    "mlp_gain": "mlp_norm.gain", "mlp_bias": "mlp_norm.bias", "mlp_post_gain": "mlp_post_norm.gain",
    "mlp_post_bias": "mlp_post_norm.bias", "q_gain": "q_norm.gain", "q_bias": "q_norm.bias",
    "k_gain": "k_norm.gain", "k_bias": "k_norm.bias", "sinks": "sinks", "correction": "router.correction",
}  # fmt: skip
_KINDS = ("gate", "up", "down")  # of an expert's matrices


def _forget_pages(data: Array) -> None:
    """Let the system drop the file's pages behind an array: what is packed is not read there again soon.

    Done after each matrix, so that a file and its packed copy are never both in memory.
    """
    base: Any = data
    while base is not None and not isinstance(base, mmap.mmap):
        base = base.obj if isinstance(base, memoryview) else getattr(base, "base", None)
    if base is not None and hasattr(base, "madvise"):
        base.madvise(mmap.MADV_DONTNEED)


class Weights:
    """Packed weights; ``layers`` [L] of LAYER and ``matrices`` of MATRIX hold their addresses.

    The matrices are 9 of each layer, the embedding, the head, then three of each expert, layer after layer.
    ``dtype`` None keeps every matrix as it is stored, quantised or not; a name converts all of them. ``int8`` rounds
    the inputs of the matrices whose format takes that.
    """

    def __init__(
        self, spec: ModelSpec, tensors: Mapping[str, Tensor], dtype: str | None = None, int8: bool = False
    ) -> None:
        if dtype is not None and dtype not in DTYPES:
            raise UsageError(f"dtype is one of {', '.join(DTYPES)}, not {dtype!r}")
        self.bytes = 0
        self._tensors, self._dtype, self._int8 = tensors, dtype, int8
        self._offset = spec.gain_offset if spec.norm == "rms" else 0.0
        self._alive: dict[str, Array] = {}
        self.layers = np.zeros(spec.num_layers, LAYER)
        experts = [layer.network.num_experts for layer in spec.layers if isinstance(layer.network, MoeSpec)]
        self.head = head = len(MATRICES) * spec.num_layers + 1  # its place
        self.matrices = np.zeros(head + 1 + len(_KINDS) * sum(experts), MATRIX)
        self._free = head + 1  # the first record that nobody has
        for i in range(spec.num_layers):
            self._fill_layer(spec, i)
        self._fill("embedding", self.matrices[head - 1])
        self.matrices[head] = self.matrices[head - 1]
        if not spec.tied_embeddings:
            self._fill("lm_head", self.matrices[head])
        self.matrices[head]["bias"] = self.vector("lm_head.bias")

    def vector(self, name: str) -> int:
        """Return the address of a vector or table in float32, 0 where the model has none."""
        if name not in self._tensors:
            return 0
        if name not in self._alive:
            offset = self._offset if name.endswith("norm.gain") else 0.0
            values = np.array(self._tensors[name].read(np.float32), np.float32, order="C")
            self._alive[name] = values + np.float32(offset) if offset else values
            self.bytes += self._alive[name].nbytes
        return int(self._alive[name].ctypes.data)

    def _fill_layer(self, spec: ModelSpec, i: int) -> None:
        prefix, layer, record = f"layers.{i}.", spec.layers[i], self.layers[i]
        for field, value in layer_fields(layer).items():
            record[field] = value
        for field, name in _VECTORS.items():
            record[field] = self.vector(prefix + name)
        own = "shared." if isinstance(layer.network, MoeSpec) else ""
        names = (*MATRICES[:4], *(own + name for name in MATRICES[4:7]), "router", "shared.w_share")
        for place, name in enumerate(names, len(MATRICES) * i):
            bias = "router.bias" if name == "router" else name.replace("w_", "b_")
            self._fill(prefix + name, self.matrices[place], self.vector(prefix + bias))
        if isinstance(layer.network, MoeSpec):
            record["expert_matrices"] = self._free
            self._fill_experts(prefix + "experts.", layer.network)

    def _fill_experts(self, prefix: str, moe: MoeSpec) -> None:
        for kind, name in enumerate(_KINDS):
            stack, biases = self._tensors[f"{prefix}w_{name}"], self.vector(f"{prefix}b_{name}")
            for expert in range(moe.num_experts):
                bias = biases and biases + 4 * expert * stack.shape[1]
                record = self.matrices[self._free + len(_KINDS) * expert + kind]
                self._pack(f"{prefix}w_{name}.{expert}", stack.part(expert), record, bias)
        self._free += len(_KINDS) * moe.num_experts

    def _fill(self, name: str, record: Any, bias: int = 0) -> None:
        if name in self._tensors:
            self._pack(name, self._tensors[name], record, bias)

    def _pack(self, name: str, tensor: Tensor, record: Any, bias: int) -> None:
        stored = tensor
        if self._dtype is not None and tensor.format != self._dtype:
            tensor = Tensor(self._dtype, tensor.shape, tensor.read(DTYPES[self._dtype]))
        packed: Packed = pack(tensor)
        if not stored.is_made:
            _forget_pages(stored.data)
        self._alive[name] = packed.data
        self.bytes += packed.data.nbytes
        record["form"], record["address"], record["bias"] = packed.code, packed.address, bias
        record["rows"], record["width"] = packed.rows, packed.columns
        record["int8"] = self._int8 and has_int8(packed.code)
