"""DEIS: the noise as a polynomial in log(rho), rho = sigma / alpha, integrated exactly."""

from collections.abc import Iterator
from math import log
from typing import Any

import numpy as np

from refimpl.contract import Array, composed, host
from refimpl.media.dpm import estimate
from refimpl.media.euler import ask
from refimpl.media.plan import Noise, Plan
from refimpl.media.step import combine

__all__ = ["deis", "deis_weights"]


@host
def deis_weights(rho: list[float]) -> list[float]:
    """Return the weights of the noises at ``rho[1:]`` (the newest first) in a step from rho[1] to rho[0].

    Math: the integral over rho of each Lagrange polynomial p in log(rho) through them. That of p(log(rho)) is
        rho (p - p' + p'' - ...)(log(rho)).

    >>> deis_weights([1.0, 3.0])
    [-2.0]
    """
    nodes, weights = [log(each / rho[1]) for each in rho[1:]], []  # about the newest: nothing cancels
    for j, node in enumerate(nodes):
        others = [other for k, other in enumerate(nodes) if k != j]
        p = np.poly1d(np.poly(others) if others else [1.0]) / np.prod([node - other for other in others])
        q = sum(((-1) ** k * p.deriv(k) for k in range(1, len(nodes))), p)
        area = [each * float(q(log(each / rho[1]))) if each > 0 else 0.0 for each in rho[:2]]
        weights.append(area[0] - area[1])
    return weights


@composed
def deis(
    x: Array, model: Any, plan: Plan, noise: Noise, ops: Any, *, order: int = 2, lower_order_final: bool = True
) -> Iterator[Array]:
    """Step by the polynomial in log(rho) through the newest noises; fewer at the start and, of few steps, at the end.

    Math: x' = alpha' (x / alpha + sum_j weight_j noise_j).
    Source: Zhang, Chen, Fast sampling of diffusion models with exponential integrator, 2022 (tAB-DEIS in log(rho)).
    """
    n, noises = len(plan.timesteps), list[Array]()
    rho = [float(sigma / alpha) for sigma, alpha in zip(plan.sigmas, plan.alphas, strict=True)]
    for i in range(n):
        yield x
        noises = [estimate(x, ask(x, model, plan, i, ops), plan, i, "dpmsolver", ops), *noises[: order - 1]]
        use = min(len(noises), n - i) if lower_order_final and n < 15 else len(noises)
        weights = deis_weights(rho[i - use + 1 : i + 2][::-1])
        alpha, end = float(plan.alphas[i]), float(plan.alphas[i + 1])
        terms = [(end * weight, each) for weight, each in zip(weights, noises, strict=False)]
        x = combine(((end / alpha, x), *terms), ops)
    yield x
