"""Gated activations: one thread an element of both projections."""

from functools import cache
from typing import Any

import numpy as np

from gpu.basics.activation_kernels import formulas
from gpu.basics.flat import applied, launch_flat
from gpu.compile import Kernel, numba_kernel
from gpu.number import named, read, storage, write
from gpu.registry import Variant
from refimpl.contract import Array, Float, kernel, op, require

__all__ = [
    "VARIANTS", "gated_into", "geglu", "geglu_into", "swiglu", "swiglu_clamped", "swiglu_clamped_into", "swiglu_into",
]  # fmt: skip


@op
def swiglu(gate: Float[Array, "..."], up: Float[Array, "..."]) -> Float[Array, "..."]:
    """One thread an element, blocks of 256."""
    _check(gate, up)
    return applied(swiglu_into, gate, up)


@kernel
def swiglu_into(out: Float[Array, "..."], gate: Float[Array, "..."], up: Float[Array, "..."]) -> None:
    """Write silu(gate) up into ``out``, which may be ``gate`` or ``up``."""
    gated_into(out, gate, up, "silu")


@op
def geglu(gate: Float[Array, "..."], up: Float[Array, "..."]) -> Float[Array, "..."]:
    """One thread an element, blocks of 256."""
    _check(gate, up)
    return applied(geglu_into, gate, up)


@kernel
def geglu_into(out: Float[Array, "..."], gate: Float[Array, "..."], up: Float[Array, "..."]) -> None:
    """Write gelu_tanh(gate) up into ``out``, which may be ``gate`` or ``up``."""
    gated_into(out, gate, up, "gelu_tanh")


@op
def swiglu_clamped(
    gate: Float[Array, "..."], up: Float[Array, "..."], *, alpha: float = 1.702, limit: float = 7.0
) -> Float[Array, "..."]:
    """One thread an element, blocks of 256."""
    _check(gate, up)
    require(limit > 0, "C2", f"limit is {limit}, not positive")
    return applied(lambda *arrays: swiglu_clamped_into(*arrays, alpha=alpha, limit=limit), gate, up)


@kernel
def swiglu_clamped_into(
    out: Float[Array, "..."], gate: Float[Array, "..."], up: Float[Array, "..."], *, alpha: float = 1.702,
    limit: float = 7.0,
) -> None:
    """Write the clamped gate times up plus 1 into ``out``, which may be ``gate`` or ``up``."""
    launch_flat(_clamped(named(gate), named(up)), out, gate, up, float(alpha), float(limit))


@kernel
def gated_into(
    out: Float[Array, "..."], gate: Float[Array, "..."], up: Float[Array, "..."], activation: str, *,
    limit: float = 7.0,
) -> None:
    """Write activation(gate) up, or their ``swiglu_clamped``, into ``out``, which may be ``gate`` or ``up``."""
    if activation == "swiglu_clamped":
        swiglu_clamped_into(out, gate, up, limit=limit)
    else:
        launch_flat(_gated(activation, named(gate), named(up)), out, gate, up)


@cache
def _gated(activation: str, dtype: str, up_dtype: str) -> Kernel:
    from numba import uint64

    from gpu.warp import block, thread, threads

    formula, wide, wide_up, narrow = formulas()[activation], read(dtype), read(up_dtype), write(dtype)
    array = f"{storage(dtype)}[::1]"

    @numba_kernel(array, array, f"{storage(up_dtype)}[::1]", name=f"{activation}_gated[{dtype}]")
    def gated(out, gate, up):
        i = block() * threads() + thread()
        if i < uint64(gate.size):
            out[i] = narrow(formula(wide(gate[i])) * wide_up(up[i]))

    return gated


@cache
def _clamped(dtype: str, up_dtype: str) -> Kernel:
    from numba import float32, uint64

    from gpu.warp import block, thread, threads

    sigmoid, wide, wide_up, narrow = formulas()["sigmoid"], read(dtype), read(up_dtype), write(dtype)
    array = f"{storage(dtype)}[::1]"

    @numba_kernel(
        array, array, f"{storage(up_dtype)}[::1]", "float32", "float32", name=f"swiglu_clamped[{dtype}]"
    )
    def swiglu_clamped(out, gate, up, alpha, limit):
        i = block() * threads() + thread()
        if i < uint64(gate.size):
            g, u = wide(gate[i]), wide_up(up[i])
            g = limit if g > limit else g  # NaN is neither, and stays
            u = limit if u > limit else u
            u = -limit if u < -limit else u
            out[i] = narrow((u + float32(1)) * (g * sigmoid(alpha * g)))

    return swiglu_clamped


def _check(gate: Array, up: Array) -> None:
    require(gate.shape == up.shape, "C1", f"gate has shape {gate.shape}, up {up.shape}")


def _gate_and_up() -> dict[str, Any]:
    gate, up = np.random.default_rng(0).standard_normal((2, 4, 14336), np.float32)
    return {"gate": gate, "up": up}


VARIANTS = tuple(
    Variant("numba", f.__name__, f, lambda *_, **__: True, _gate_and_up) for f in (swiglu, geglu, swiglu_clamped)
)
