"""Arrays and clocks for gpu_check.py: on a GPU by graphs and events; in a dry run NumPy, and no clock at all."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

from gpu import device

__all__ = ["Bench", "Dry", "Gpu", "Row"]


@dataclass(frozen=True)
class Row:
    section: str
    what: str
    value: float
    unit: str
    note: str = ""
    kernels: Mapping[str, str] = field(default_factory=dict)  # those that ran, each with the hash of its PTX


class Bench(ABC):
    """Random data, never zeros, and the seconds of a call."""

    xp: Any = np
    stream: Any = nullcontext()

    @abstractmethod
    def size(self, full: int, dry: int) -> int:
        """Return how large a measurement is here."""

    @abstractmethod
    def seconds(self, call: Callable[[int], Any], calls: int = 20) -> float:
        """Return the seconds that ``call(i)`` takes on the device, launched from a graph."""

    @abstractmethod
    def eager_seconds(self, call: Callable[[], Any], calls: int = 200) -> float:
        """Return the seconds that ``call()`` takes one after the other, launched from Python."""

    def normal(self, shape: tuple[int, ...], dtype: str = "float32") -> Any:
        """Return normal numbers, made on the device; bfloat16 by cutting float32."""
        random = self.xp.random.default_rng(0) if self.xp is np else self.xp.random
        x = random.standard_normal(shape, dtype=np.float32)
        if dtype == "bfloat16":
            return (x.view(np.uint32) >> 16).astype(np.uint16).view(ml_dtypes.bfloat16)
        return x.astype(dtype)

    def blocks(self, rows: int, columns: int, format: str) -> Any:
        """Return random quantised weights whose scales are small and finite."""
        from refimpl.blocks import FORMATS

        form = FORMATS[format]
        shape = (rows, columns // form.elements, form.bytes)
        data = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
        data[..., 0:2] = np.array([0.01], np.float16).view(np.uint8)
        if format == "q4_1":
            data[..., 2:4] = np.array([-0.08], np.float16).view(np.uint8)
        return device.array(data.reshape(rows, -1))


class Dry(Bench):
    """Every call once, on the interpreter, at sizes that it runs in a moment."""

    def size(self, full: int, dry: int) -> int:
        return dry

    def seconds(self, call: Callable[[int], Any], calls: int = 20) -> float:
        call(0)
        return math.nan

    def eager_seconds(self, call: Callable[[], Any], calls: int = 200) -> float:
        call()
        return math.nan


class Gpu(Bench):
    def __init__(self) -> None:
        import cupy

        self.xp = cupy
        self.stream = cupy.cuda.Stream(non_blocking=True)

    def size(self, full: int, dry: int) -> int:
        return full

    def seconds(self, call: Callable[[int], Any], calls: int = 20) -> float:
        kept = [call(i) for i in range(min(calls, 2))]  # compiles, and fills the pool of memory
        self.stream.synchronize()
        self.stream.begin_capture()
        try:
            kept += [call(i) for i in range(calls)]  # results live until the last replay: no buffer is reused
        finally:
            graph = self.stream.end_capture()
        graph.upload(self.stream)
        return min(self._elapsed(lambda: graph.launch(self.stream)) for _ in range(6)) / calls

    def eager_seconds(self, call: Callable[[], Any], calls: int = 200) -> float:
        call()

        def all_of_them() -> None:
            for _ in range(calls):
                call()

        return min(self._elapsed(all_of_them) for _ in range(3)) / calls

    def _elapsed(self, work: Callable[[], None]) -> float:
        start, end = self.xp.cuda.Event(), self.xp.cuda.Event()
        start.record(self.stream)
        work()
        end.record(self.stream)
        end.synchronize()
        return self.xp.cuda.get_elapsed_time(start, end) / 1e3
