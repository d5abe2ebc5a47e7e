"""An estimate of x0 held in its range: one thread an element; a quantile is one block's work."""

from typing import Any

import numpy as np

from gpu import device
from gpu.basics.flat import applied, launch_flat
from gpu.grid import threads_for
from gpu.media.step_kernels import clip_kernel, quantile_kernel, scale_kernel
from gpu.number import named
from gpu.registry import Variant
from refimpl.contract import Array, Float, kernel, op, require

__all__ = ["VARIANTS", "clip_x0", "clip_x0_into", "threshold_x0", "threshold_x0_into"]


@op
def clip_x0(x0: Float[Array, "*image"], largest: float) -> Float[Array, "*image"]:
    """One thread an element, blocks of 256."""
    require(largest > 0, "C1", f"values are cut at a positive number, not {largest}")
    return applied(lambda out, x: clip_x0_into(out, x, largest), x0)


@kernel
def clip_x0_into(out: Float[Array, "*image"], x0: Float[Array, "*image"], largest: float) -> None:
    """Write the cut estimate into ``out``, which may be ``x0``."""
    launch_flat(clip_kernel(named(x0)), out, x0, float(largest))


@op
def threshold_x0(x0: Float[Array, "*image"], quantile: float, largest: float = 1.0) -> Float[Array, "*image"]:
    """Two launches: one block finds the quantile by halving the range of the bits and counting, without sorting or
    memory; then one thread an element."""
    require(0 <= quantile <= 1 <= largest, "C1", f"a quantile {quantile} in 0..1 and a largest {largest} from 1")
    require(x0.size > 0, "C2", f"a quantile of nothing: x0 is {x0.shape}")
    return applied(lambda out, x: threshold_x0_into(out, x, quantile, largest), x0)


@kernel
def threshold_x0_into(
    out: Float[Array, "*image"], x0: Float[Array, "*image"], quantile: float, largest: float = 1.0
) -> None:
    """Write the estimate in its range into ``out``, which may be ``x0``."""
    numbers, place = device.empty(2, np.dtype(np.float32)), (x0.size - 1) * float(quantile)
    given = (numbers, x0.reshape(-1), np.int64(place), place - int(place), float(largest))
    device.launch(quantile_kernel(named(x0)), 1, threads_for(x0.size), *given)
    launch_flat(scale_kernel(named(x0)), out, x0, numbers)


def _picture() -> dict[str, Any]:
    return {"x0": np.random.default_rng(0).standard_normal((16, 64, 64), np.float32) * 2}


VARIANTS = (
    Variant("numba", "clip_x0", clip_x0, lambda *_, **__: True, lambda: _picture() | {"largest": 1.0}),
    Variant(
        "numba", "threshold_x0", threshold_x0, lambda *_, **__: True,
        lambda: _picture() | {"quantile": 0.995, "largest": 1.5},
    ),
)  # fmt: skip
