"""A model's weights as the compiled step reads them: matrices in tiles, vectors in float32, and the tables of both."""

import mmap
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np

from gpu.executor.linear_int8 import has_int8
from gpu.executor.pack import Packed, pack
from gpu.executor.program import LAYER, MATRICES, MATRIX
from refimpl.contract import Array, UsageError
from refimpl.models.spec import ModelSpec
from refimpl.models.tensor import Tensor

__all__ = ["DTYPES", "Weights"]

DTYPES: Mapping[str, Any] = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
_EVERYTHING = 1 << 40  # keys that a query sees without a window


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
    """Packed weights; ``layers`` [L] of LAYER and ``matrices`` [7 L + 2] of MATRIX hold their addresses.

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
        self._alive: dict[str, Array] = {}
        self.layers = np.zeros(spec.num_layers, LAYER)
        self.matrices = np.zeros(len(MATRICES) * spec.num_layers + 2, MATRIX)
        for layer in range(spec.num_layers):
            self._fill_layer(f"layers.{layer}.", self.layers[layer], spec.windows[layer])
            for place, name in enumerate(MATRICES, len(MATRICES) * layer):
                self._fill_matrix(f"layers.{layer}.", name, self.matrices[place])
        self._fill_matrix("", "embedding", self.matrices[-2])
        if "lm_head" in tensors:
            self._fill_matrix("", "lm_head", self.matrices[-1])
        else:
            self.matrices[-1] = self.matrices[-2]

    def vector(self, name: str) -> int:
        """Return the address of a vector or table in float32, 0 where the model has none."""
        if name not in self._tensors:
            return 0
        if name not in self._alive:
            self._alive[name] = np.array(self._tensors[name].read(np.float32), np.float32, order="C")
            self.bytes += self._alive[name].nbytes
        return int(self._alive[name].ctypes.data)

    def _fill_layer(self, prefix: str, record: Any, window: int | None) -> None:
        for field, name in (
            ("attention_gain", "attention_norm.gain"), ("attention_bias", "attention_norm.bias"),
            ("mlp_gain", "mlp_norm.gain"), ("mlp_bias", "mlp_norm.bias"),
            ("q_gain", "q_norm.gain"), ("k_gain", "k_norm.gain"),
        ):  # fmt: skip
            record[field] = self.vector(prefix + name)
        record["window"] = _EVERYTHING if window is None else window

    def _fill_matrix(self, prefix: str, name: str, record: Any) -> None:
        tensor = self._tensors.get(prefix + name)
        if tensor is None:
            return
        if self._dtype is not None and tensor.format != self._dtype:
            tensor = Tensor(self._dtype, tensor.shape, tensor.read(DTYPES[self._dtype]))
        packed: Packed = pack(tensor)
        _forget_pages(self._tensors[prefix + name].data)
        self._alive[prefix + name] = packed.data
        self.bytes += packed.data.nbytes
        bias = self.vector(prefix + name.replace("w_", "b_")) if name in MATRICES else 0
        record["form"], record["address"], record["bias"] = packed.code, packed.address, bias
        record["rows"], record["width"] = packed.rows, packed.columns
        record["int8"] = self._int8 and has_int8(packed.code)
