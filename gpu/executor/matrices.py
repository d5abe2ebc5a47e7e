"""A model's weights on a device: matrices as they are stored, quantised blocks included, vectors in float32."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from gpu import device
from gpu.basics.linear import linear_into
from gpu.executor.weights import DTYPES
from gpu.llm.embedding import embedding_into
from gpu.llm.experts import grouped_blocks_into, grouped_linear_into, indexed_linear_into
from gpu.llm.quantize import dequantize_into, linear_blocks_into
from refimpl.blocks import FORMATS
from refimpl.contract import Array, UsageError
from refimpl.models.spec import ModelSpec
from refimpl.models.tensor import Tensor

__all__ = ["DeviceWeights", "Matrix", "Stack"]


@dataclass(frozen=True, eq=False)
class Matrix:
    """Weights [O, D] of one linear map, and its bias."""

    format: str
    data: Array
    bias: Array | None

    def multiply(self, y: Array, x: Array, residual: Array | None = None) -> None:
        """Write x w^T + b + residual into ``y``, which may be ``residual``."""
        if self.format in FORMATS:
            linear_blocks_into(y, x, self.data, self.format, self.bias, residual)
        else:
            linear_into(y, x, self.data, self.bias, residual)

    def look_up(self, out: Array, ids: Array) -> None:
        """Write the rows ``ids`` into ``out``."""
        if self.format in FORMATS:
            dequantize_into(out, self.data, self.format, ids)
        else:
            embedding_into(out, ids, self.data)


@dataclass(frozen=True, eq=False)
class Stack:
    """Weights [E, O, D] of one linear map of every expert, and their biases [E, O]."""

    format: str
    data: Array
    bias: Array | None

    @property
    def is_quantised(self) -> bool:
        """Whether the weights are blocks, which only ``grouped`` takes."""
        return self.format in FORMATS

    def indexed(self, y: Array, x: Array, ids: Array) -> None:
        """Write what each token's own matrices make of it."""
        indexed_linear_into(y, x, self.data, ids, self.bias)

    def grouped(self, y: Array, x: Array, offsets: Array) -> None:
        """Write what each group's matrix makes of its rows."""
        if self.is_quantised:
            grouped_blocks_into(y, x, self.data, self.format, offsets, self.bias)
        else:
            grouped_linear_into(y, x, self.data, offsets, self.bias)


class DeviceWeights:
    """Every weight by its name; ``dtype`` None keeps matrices as they are stored, a name converts all of them.

    The gains of norms hold the offset of the model already.
    """

    def __init__(self, spec: ModelSpec, tensors: Mapping[str, Tensor], dtype: str | None = None) -> None:
        if dtype is not None and dtype not in DTYPES:
            raise UsageError(f"dtype is one of {', '.join(DTYPES)}, not {dtype!r}")
        self.vectors: dict[str, Array] = {}
        self.matrices: dict[str, Matrix] = {}
        self.stacks: dict[str, Stack] = {}
        for name, tensor in tensors.items():
            if len(tensor.shape) == 1 or name == "position_embedding" or ".b_" in name:
                offset = spec.gain_offset if name.endswith("norm.gain") else 0
                self.vectors[name] = device.array(tensor.read(np.float32) + np.float32(offset), np.float32)
        for name, tensor in tensors.items():
            if name not in self.vectors:
                bias = self.vectors.get(name.replace(".w_", ".b_") if ".w_" in name else name + ".bias")
                format = dtype or ("float32" if tensor.format == "float64" else tensor.format)
                data = _on_device(tensor, format)
                if len(tensor.shape) == 2:
                    self.matrices[name] = Matrix(format, data, bias)
                else:
                    self.stacks[name] = Stack(format, data, bias)
        tied = replace(self.matrices["embedding"], bias=self.vectors.get("lm_head.bias"))
        self.matrices.setdefault("lm_head", tied)
        held = [matrix.data for matrix in self.matrices.values()] + [stack.data for stack in self.stacks.values()]
        held += self.vectors.values()
        self.bytes = sum(array.nbytes for array in {id(array): array for array in held}.values())


def _on_device(tensor: Tensor, format: str) -> Array:
    """Return a tensor in a format, its own or a plain one; what must be made is made an expert at a time."""
    is_block = format in FORMATS
    if len(tensor.shape) < 3 or not (tensor.is_made or tensor.format != format):
        return device.array(tensor.data if is_block else tensor.read(DTYPES[format]))
    first = _on_device(tensor.part(0), format)
    whole = device.empty((tensor.shape[0], *first.shape), first.dtype)
    stored = whole.reshape(len(whole), -1).view(np.uint8)
    for e in range(len(whole)):
        stored[e] = _on_device(tensor.part(e), format).reshape(-1).view(np.uint8)
    return whole
