"""The fast side: on cuda and emulated every twin, and each kernel behind it; on cpu the executor's kernels.

Functions of the host have no twin: they are the same on every device.
"""

import importlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

import refimpl
from golden.adapters import refimpl as reference
from golden.adapters.refimpl import ROOMS
from golden.verify import Candidate, NotOffered

__all__ = ["candidates"]


def candidates(device: str | None = None) -> list[Candidate]:
    """Return what computes on a device; without one, on the CUDA device where there is one, else emulated."""
    devices: Any = importlib.import_module("gpu.device")
    name = devices.pick(devices.current() if device is None else device)
    if name == "cpu":
        return _on_the_cpu()
    registry: Any = importlib.import_module("gpu.registry")
    found = [Candidate(op, _on(name, _offering(call))) for op, call in _twins().items()]
    found += [Candidate(v.op, _on(name, _offering(v.call, v.takes)), v.name) for v in registry.variants()]
    return found + _refused()


def _on_the_cpu() -> list[Candidate]:
    """The executor's kernels, and the reference's own functions, which run where it has none."""
    kernels: Any = importlib.import_module("gpu.executor.operations")
    found = [Candidate(op, _offering(each.call, each.takes), "numba") for op, each in kernels.OPERATIONS.items()]
    return found + [replace(each, kernel="numpy") for each in reference.candidates()]


def _twins() -> dict[str, Callable[..., Any]]:
    found: dict[str, Callable[..., Any]] = {}
    for name in (name for name, _ in refimpl.CONTENTS if name.split(".")[0] in ROOMS):
        try:
            module = importlib.import_module(f"gpu.{name}")
        except ModuleNotFoundError as error:
            if error.name != f"gpu.{name}":
                raise
            continue
        found |= {key: value for key, value in vars(module).items() if getattr(value, "role", None) == "op"}
    return found


def _refused() -> list[Candidate]:
    """Host functions, which have no twin."""
    found = []
    for name in (name for name, _ in refimpl.CONTENTS if name.split(".")[0] in ROOMS):
        for key, value in vars(importlib.import_module(f"refimpl.{name}")).items():
            role = getattr(value, "role", None)
            if role == "host":
                found.append(Candidate(key, _refusal("runs on the host, whatever the device")))
    return found


def _refusal(reason: str) -> Callable[..., Any]:
    def refuse(**arguments: Any) -> Any:
        raise NotOffered(reason)

    return refuse


def _offering(call: Callable[..., Any], takes: Callable[..., bool] | None = None) -> Callable[..., Any]:
    """Turn away what a kernel does not take: float64, and what it says itself."""
    call = _fields_of_cache(call) if call.__name__.startswith("cache_append") else call

    def offered(**arguments: Any) -> Any:
        if any(isinstance(value, np.ndarray) and value.dtype == np.float64 for value in arguments.values()):
            raise NotOffered("kernels compute in float32")
        if takes is not None and not takes(**arguments):
            raise NotOffered("the kernel does not take these arguments")
        return call(**arguments)

    return offered


def _fields_of_cache(call: Callable[..., Any]) -> Callable[..., Any]:
    from refimpl.llm.kv_cache import KVCache

    def cache_append(k_cache: Any, v_cache: Any, length: int, k: Any, v: Any) -> tuple[Any, Any, int]:
        cache = call(KVCache(k_cache, v_cache, length), k, v)
        return cache.k, cache.v, cache.length

    return cache_append


def _on(device: str, call: Callable[..., Any]) -> Callable[..., Any]:
    devices: Any = importlib.import_module("gpu.device")

    def judged(**arguments: Any) -> Any:
        with devices.use(device):
            result = call(**arguments)
            several = result if isinstance(result, tuple) else (result,)
            given = tuple(each if isinstance(each, int | float) else devices.to_host(each) for each in several)
        return given if isinstance(result, tuple) else given[0]

    return judged
