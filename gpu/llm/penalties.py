"""Penalties and biases: a block owns a run of the vocabulary, whose tokens it counts among the ids in shared memory.

The arithmetic is in float64, as in the specification: an operation or two an element, and one launch.
"""

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

import numpy as np

from gpu import device
from gpu.compile import Kernel, numba_kernel
from gpu.grid import blocks_for
from gpu.number import DTYPES, named, read, storage, write_double
from gpu.registry import Variant
from refimpl.contract import Array, Float, Int, kernel, op, require

__all__ = [
    "VARIANTS", "frequency_penalty", "frequency_penalty_into", "logit_bias", "logit_bias_into", "presence_penalty",
    "presence_penalty_into", "repetition_penalty", "repetition_penalty_into",
]

_RUN, _THREADS = 2048, 256


@op
def repetition_penalty(logits: Float[Array, " V"], ids: Int[Array, " ids"], penalty: float) -> Float[Array, " V"]:
    """A block of 256 threads to 2048 tokens; their counts in shared memory."""
    require(0 < penalty < np.inf, "C2", f"the repetition penalty is positive and finite, got {penalty}")
    return _penalised(repetition_penalty_into, logits, ids, penalty)


@kernel
def repetition_penalty_into(
    out: Float[Array, " V"], logits: Float[Array, " V"], ids: Int[Array, " ids"], penalty: float
) -> None:
    """Write the logits, those of the ids divided or multiplied; ids are int64, ``out`` may be ``logits``."""
    _launch("repetition", out, logits, ids, penalty)


@op
def presence_penalty(logits: Float[Array, " V"], ids: Int[Array, " ids"], penalty: float) -> Float[Array, " V"]:
    """As ``repetition_penalty``."""
    require(bool(np.isfinite(penalty)), "C2", f"the presence penalty is finite, got {penalty}")
    return _penalised(presence_penalty_into, logits, ids, penalty)


@kernel
def presence_penalty_into(
    out: Float[Array, " V"], logits: Float[Array, " V"], ids: Int[Array, " ids"], penalty: float
) -> None:
    """Write the logits, those of the ids lowered; ids are int64, ``out`` may be ``logits``."""
    _launch("presence", out, logits, ids, penalty)


@op
def frequency_penalty(logits: Float[Array, " V"], ids: Int[Array, " ids"], penalty: float) -> Float[Array, " V"]:
    """As ``repetition_penalty``."""
    require(bool(np.isfinite(penalty)), "C2", f"the frequency penalty is finite, got {penalty}")
    return _penalised(frequency_penalty_into, logits, ids, penalty)


@kernel
def frequency_penalty_into(
    out: Float[Array, " V"], logits: Float[Array, " V"], ids: Int[Array, " ids"], penalty: float
) -> None:
    """Write the logits, those of the ids lowered as often as they occur; ids are int64, ``out`` may be ``logits``."""
    _launch("frequency", out, logits, ids, penalty)


@op
def logit_bias(
    logits: Float[Array, " V"], bias: Mapping[int, float] | Iterable[tuple[int, float]]
) -> Float[Array, " V"]:
    """A block of 256 threads to 2048 tokens: it copies them, waits, and adds the biases that are its own."""
    require(logits.ndim == 1, "C1", f"logits are one row, got shape {logits.shape}")
    biases = dict(bias)
    for token_id, value in biases.items():
        whole = isinstance(token_id, int | np.integer) and not isinstance(token_id, bool)
        inside = whole and 0 <= token_id < len(logits)
        require(inside, "C1", f"biased ids are integers in [0, {len(logits)}), got {token_id!r}")
        require(value < np.inf, "C2", f"a bias is a number below +inf, got {value} for token {token_id}")
    named(logits)
    ids, values = np.array([*biases.keys()], np.int64), np.array([*biases.values()], np.float64)
    out = device.empty(logits.shape, logits.dtype)
    logit_bias_into(out, device.array(logits), device.array(ids), device.array(values))
    return out


@kernel
def logit_bias_into(
    out: Float[Array, " V"], logits: Float[Array, " V"], ids: Int[Array, " ids"], values: Float[Array, " ids"]
) -> None:
    """Add values, float64, to the logits of ids, int64 and each there once; ``out`` may be ``logits``."""
    device.launch(_bias(named(logits)), blocks_for(len(logits), _RUN), _THREADS, out, logits, ids, values)


def _penalised(into: Any, logits: Array, ids: Array, penalty: float) -> Array:
    rows = logits.ndim == ids.ndim == 1 and ids.dtype.kind in "iu"
    require(rows, "C1", f"logits are one row, ids one of integers, got {logits.shape} and {ids.dtype} {ids.shape}")
    named(logits)
    lowest, highest = (int(ids.min()), int(ids.max())) if ids.size else (0, -1)
    inside = lowest >= 0 and highest < len(logits)
    require(inside, "C1", f"ids are in [0, {len(logits)}), got {lowest} to {highest}")
    out = device.empty(logits.shape, logits.dtype)
    into(out, device.array(logits), device.array(ids, np.int64), penalty)
    return out


def _launch(name: str, out: Array, logits: Array, ids: Array, penalty: float) -> None:
    made = _penalty(named(logits), name)
    device.launch(made, blocks_for(len(logits), _RUN), _THREADS, out, logits, ids, penalty)


@cache
def _penalty(dtype: str, name: str) -> Kernel:
    from numba import cuda, float64, int32, uint64

    from gpu.compile import device_function
    from gpu.warp import block, thread, threads

    def repetition(x, count, penalty):
        return x if count == 0 else x / penalty if x > 0 else x * penalty

    def presence(x, count, penalty):
        return x - penalty if count else x

    def frequency(x, count, penalty):
        return x - cuda.libdevice.dmul_rn(float64(count), penalty)  # rounded, where a multiply-add would not be

    held, wide, narrow = storage(dtype), read(dtype), write_double(dtype)
    changed = device_function({"repetition": repetition, "presence": presence, "frequency": frequency}[name])

    @numba_kernel(
        f"{held}[::1]", f"{held}[::1]", "int64[::1]", "float64", name=f"{name}_penalty[{dtype}]"
    )
    def penalty(out, logits, ids, penalty):
        counts = cuda.shared.array(_RUN, int32)
        first, i = block() * uint64(_RUN), thread()
        while i < uint64(_RUN):
            counts[i] = int32(0)
            i += threads()
        cuda.syncthreads()
        i = thread()
        while i < uint64(ids.size):
            own = uint64(ids[i]) - first
            if own < uint64(_RUN):  # an id below the run wraps around
                cuda.atomic.add(counts, own, int32(1))
            i += threads()
        cuda.syncthreads()
        i = thread()
        while i < min(uint64(_RUN), uint64(logits.size) - first):
            x = float64(wide(logits[first + i]))
            out[first + i] = narrow(changed(x, counts[i], penalty))
            i += threads()

    return penalty


@cache
def _bias(dtype: str) -> Kernel:
    from numba import cuda, float64, uint64

    from gpu.warp import block, thread, threads

    held, wide, narrow = storage(dtype), read(dtype), write_double(dtype)

    @numba_kernel(f"{held}[::1]", f"{held}[::1]", "int64[::1]", "float64[::1]", name=f"logit_bias[{dtype}]")
    def logit_bias(out, logits, ids, values):
        first = block() * uint64(_RUN)
        last, i = min(first + uint64(_RUN), uint64(logits.size)), first + thread()
        while i < last:
            out[i] = logits[i]
            i += threads()
        cuda.syncthreads()
        i = thread()
        while i < uint64(ids.size):
            own = uint64(ids[i])
            if first <= own < last:
                out[own] = narrow(float64(wide(out[own])) + values[i])
            i += threads()

    return logit_bias


def _takes(logits: Array, *_: Any, **__: Any) -> bool:
    return str(logits.dtype) in DTYPES


def _workload(penalty: float) -> dict[str, Any]:
    draw = np.random.default_rng(0)
    logits, ids = draw.standard_normal(32000).astype(np.float32), draw.integers(0, 32000, 500)
    return {"logits": logits, "ids": ids, "penalty": penalty}


def _bias_workload() -> dict[str, Any]:
    return {"logits": _workload(0.0)["logits"], "bias": {7: 1.0, 31999: -1.0}}


VARIANTS = (
    Variant("numba", "repetition_penalty", repetition_penalty, _takes, lambda: _workload(1.1)),
    Variant("numba", "presence_penalty", presence_penalty, _takes, lambda: _workload(0.5)),
    Variant("numba", "frequency_penalty", frequency_penalty, _takes, lambda: _workload(0.5)),
    Variant("numba", "logit_bias", logit_bias, _takes, _bias_workload),
)
