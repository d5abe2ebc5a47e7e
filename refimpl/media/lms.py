"""A multistep solver in the noise level: linear multistep, Adams-Bashforth with steps of any width."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from refimpl.contract import Array, composed, host
from refimpl.media.euler import ask
from refimpl.media.plan import Noise, Plan
from refimpl.media.step import combine, estimate_x0

__all__ = ["lms", "lms_weights"]


@host
def lms_weights(sigmas: Array, i: int, order: int) -> list[float]:
    """Return the weights of the newest ``order`` slopes in step i: each Lagrange polynomial through them, integrated.

    >>> lms_weights(np.array([3.0, 2.0, 1.0]), 1, 2)  # Adams-Bashforth: 3 / 2 and -1 / 2, times the width -1
    [-1.5, 0.5]
    """
    nodes = [float(sigmas[i - j] - sigmas[i]) for j in range(order)]  # about the newest: nothing cancels
    weights = []
    for j, node in enumerate(nodes):
        others = [other for k, other in enumerate(nodes) if k != j]
        polynomial = np.poly1d(np.poly(others) if others else [1.0]) / np.prod([node - other for other in others])
        weights.append(float(np.polyint(polynomial)(sigmas[i + 1] - sigmas[i])))
    return weights


@composed
def lms(x: Array, model: Any, plan: Plan, noise: Noise, ops: Any, *, order: int = 4) -> Iterator[Array]:
    """Go by the polynomial through the newest slopes d = (x - x0) / sigma.

    Source: Liu et al., PNDM, 2022; Hairer, Norsett, Wanner, Solving ordinary differential equations I, section III.5.
    """
    slopes: list[Array] = []
    for i in range(len(plan.timesteps)):
        yield x
        sigma = float(plan.sigmas[i])
        x0 = estimate_x0(x, ask(x, model, plan, i, ops), plan, i, ops)
        slopes = [combine(((1 / sigma, x), (-1 / sigma, x0)), ops), *slopes[: order - 1]]
        weights = lms_weights(plan.sigmas, i, len(slopes))
        x = combine(((1.0, x), *zip(weights, slopes, strict=True)), ops)
    yield x
