"""A model's weights on a device: matrices as they are stored, quantised blocks included, vectors in float32."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from gpu import device
from gpu.basics.linear import linear_into
from gpu.executor.weights import DTYPES
from gpu.llm.embedding import embedding_into
from gpu.llm.quantize import dequantize_into, linear_blocks_into
from refimpl.blocks import FORMATS
from refimpl.contract import Array, UsageError
from refimpl.models.tensor import Tensor

__all__ = ["DeviceWeights", "Matrix"]


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


class DeviceWeights:
    """Every weight by its name; ``dtype`` None keeps matrices as they are stored, a name converts all of them."""

    def __init__(self, tensors: Mapping[str, Tensor], dtype: str | None = None) -> None:
        if dtype is not None and dtype not in DTYPES:
            raise UsageError(f"dtype is one of {', '.join(DTYPES)}, not {dtype!r}")
        self.vectors: dict[str, Array] = {}
        self.matrices: dict[str, Matrix] = {}
        for name, tensor in tensors.items():
            if len(tensor.shape) == 1 or name == "position_embedding":
                self.vectors[name] = device.array(tensor.read(np.float32), np.float32)
        for name, tensor in tensors.items():
            if name not in self.vectors:
                bias = name.replace(".w_", ".b_") if ".w_" in name else ""
                self.matrices[name] = self._matrix(tensor, dtype, self.vectors.get(bias))
        self.matrices.setdefault("lm_head", self.matrices["embedding"])
        held = [*self.vectors.values(), *{id(m): m.data for m in self.matrices.values()}.values()]
        self.bytes = sum(array.nbytes for array in held)

    @staticmethod
    def _matrix(tensor: Tensor, dtype: str | None, bias: Array | None) -> Matrix:
        if tensor.format in FORMATS and dtype is None:
            return Matrix(tensor.format, device.array(tensor.data), bias)
        name = dtype or ("float32" if tensor.format == "float64" else tensor.format)
        return Matrix(name, device.array(tensor.read(DTYPES[name])), bias)
