"""Exponential integrators: solvers that treat the linear part of the flow exactly, in lambda = log(alpha / sigma).

DPM-Solver++ interpolates the model's x0 over lambda, DPM-Solver its noise. With h the width of a step in lambda, both
are sums of the newest estimates; the SDE forms go further down and add noise.
"""

from collections.abc import Iterator
from math import exp, expm1, inf, log, sqrt
from typing import Any

from refimpl.contract import Array, UsageError, composed, host
from refimpl.media.euler import ask
from refimpl.media.plan import Noise, Plan
from refimpl.media.step import combine, estimate_noise, estimate_x0

__all__ = ["ALGORITHMS", "dpm_multistep", "estimate", "lambda_at", "phi", "spread", "taylor_weights"]

ALGORITHMS = ("dpmsolver", "dpmsolver++", "sde-dpmsolver", "sde-dpmsolver++")


@host
def lambda_at(plan: Plan, i: int) -> float:
    """Return log(alpha / sigma) at stop i: half the log of the signal-to-noise ratio; infinite without noise.

    >>> import numpy as np
    >>> lambda_at(Plan(np.array([9.0]), np.array([0.5, 1.0]), np.array([0.5, 0.0])), 0)
    0.0
    """
    alpha, sigma = float(plan.alphas[i]), float(plan.sigmas[i])
    return log(alpha) - log(sigma) if alpha > 0 < sigma else inf if alpha > 0 else -inf


@host
def phi(k: int, z: float) -> float:
    """Return phi_k(z): (e^z - 1) / z and its followers phi_k = (phi_(k-1) - 1 / (k - 1)!) / z, with phi_0 = e^z.

    Source: Hochbruck, Ostermann, Exponential integrators, 2010, equation 2.6.

    >>> phi(0, 0.0), phi(1, -1.0), phi(2, 0.0)
    (1.0, 0.6321205588285577, 0.5)
    """
    if k == 0:
        return exp(z)
    if k == 1:
        return expm1(z) / z if z else 1.0
    if abs(z) < 0.05:  # the recursion would cancel: Taylor's series instead
        total, term, factorial = 0.0, 1.0, 1.0
        for j in range(1, k + 12):
            factorial *= j
            if j >= k:
                total += term / factorial
                term *= z
        return total
    factorials = 1.0
    for j in range(2, k):
        factorials *= j
    return (phi(k - 1, z) - 1 / factorials) / z


@composed
def estimate(x: Array, output: Any, plan: Plan, i: int, algorithm: str, ops: Any) -> Array:
    """Return what an algorithm interpolates: the picture (++), or the noise that fits the picture held in its range.

    Source: the definition.
    """
    if algorithm.endswith("++"):
        return estimate_x0(x, output, plan, i, ops)
    if plan.limit is None:
        return estimate_noise(x, output, plan, i, ops)
    x0, sigma = estimate_x0(x, output, plan, i, ops), float(plan.sigmas[i])
    return combine(((1 / sigma, x), (-float(plan.alphas[i]) / sigma, x0)), ops)


@host
def taylor_weights(algorithm: str, kind: str, order: int, h: float) -> tuple[float, ...]:
    """Return the weights of the derivatives D0, D1, D2 of what is interpolated, in a step of width h; times -alpha'
    (++) or -sigma' of the end.

    With z = -h (++), h, or twice that for an SDE: z phi_1(z), z phi_2(z), z phi_3(z). A midpoint rule of order 2
    takes half of the first for the second.

    >>> taylor_weights("dpmsolver++", "midpoint", 1, float("inf"))
    (-1.0,)
    """
    sde, plus = algorithm.startswith("sde"), algorithm.endswith("++")
    z = (-h if plus else h) * (2 if sde and plus else 1)
    first = expm1(z)
    double = 2 if sde and not plus else 1  # the noise form counts the drift twice
    if order == 1:
        return (double * first,)
    if order == 2:
        return double * first, double * (first / 2 if kind == "midpoint" else z * phi(2, z))
    return double * first, double * z * phi(2, z), double * z * phi(3, z)


@composed
def dpm_multistep(
    x: Array, model: Any, plan: Plan, noise: Noise, ops: Any, *, algorithm: str = "dpmsolver++", order: int = 2,
    kind: str = "midpoint", lower_order_final: bool = True, euler_at_final: bool = False, full_curvature: bool = False,
) -> Iterator[Array]:
    """Step by a polynomial in lambda through the newest estimates, of degree order - 1; fewer at the start and the end.

    As published (the authors' code, diffusers, k-diffusion), order 3 takes half of the polynomial's curvature, and
    converges at order 2; with ``full_curvature`` it takes all of it, and converges at order 3.

    Source: Lu et al., DPM-Solver++, 2022, algorithm 2 and appendix B; Lu et al., DPM-Solver, 2022.
    """
    if algorithm not in ALGORITHMS or kind not in ("midpoint", "heun") or order not in (1, 2, 3):
        raise UsageError(f"DPM-Solver has no {algorithm!r} of order {order} with {kind!r}")
    draws, n, estimates = iter(noise), len(plan.timesteps), list[Array]()
    for i in range(n):
        yield x
        estimates = [estimate(x, ask(x, model, plan, i, ops), plan, i, algorithm, ops), *estimates[: order - 1]]
        use = min(order, len(estimates))
        if i == n - 1 and (euler_at_final or (lower_order_final and n < 15) or plan.sigmas[-1] == 0):
            use = 1
        elif i == n - 2 and lower_order_final and n < 15:
            use = min(use, 2)
        stops = [lambda_at(plan, j) for j in range(i - use + 1, i + 2)][::-1]
        curvature = 2.0 if full_curvature else 1.0
        x = combine(_step(x, estimates[:use], stops, plan, i, algorithm, kind, curvature, draws), ops)
    yield x


def _step(
    x: Array, estimates: list[Array], stops: list[float], plan: Plan, i: int, algorithm: str, kind: str,
    curvature: float, draws: Iterator[Array],
) -> list[tuple[float, Array]]:
    """Return the terms of a step; ``stops`` are lambdas from its end backwards."""
    alpha, sigma = float(plan.alphas[i]), float(plan.sigmas[i])
    alpha_end, sigma_end = float(plan.alphas[i + 1]), float(plan.sigmas[i + 1])
    h, plus, scale = stops[0] - stops[1], algorithm.endswith("++"), (1.0, 1.0, curvature)
    taylor = zip(scale, taylor_weights(algorithm, kind, len(estimates), h), strict=False)
    weights = [-(alpha_end if plus else sigma_end) * times * weight for times, weight in taylor]
    kept = sigma_end / sigma if plus else alpha_end / alpha
    fresh: list[tuple[float, Array]] = []
    if algorithm.startswith("sde"):
        kept *= exp(-h) if plus else 1.0
        fresh = [(sigma_end * sqrt(-expm1(-2 * h) if plus else expm1(2 * h)), next(draws))]
    return [(kept, x), *zip(spread(weights, stops, h), estimates, strict=True), *fresh]


@host
def spread(weights: list[float], stops: list[float], h: float) -> list[float]:
    """Turn weights of divided differences in lambda / h into weights of the estimates, the newest first.

    >>> spread([1.0, 0.5], [3.0, 2.0, 1.0], 1.0)
    [1.5, -0.5]
    """
    if len(weights) == 1:
        return weights
    r0 = (stops[1] - stops[2]) / h
    if len(weights) == 2:
        return [weights[0] + weights[1] / r0, -weights[1] / r0]
    r1, (w0, w1, w2) = (stops[2] - stops[3]) / h, weights
    # D1 = (m0 - m1) / r0 + r0 / (r0 + r1) ((m0 - m1) / r0 - (m1 - m2) / r1),  D2 = (first - second) / (r0 + r1)
    first, second = w1 * (1 + r0 / (r0 + r1)) + w2 / (r0 + r1), -w1 * r0 / (r0 + r1) - w2 / (r0 + r1)
    return [w0 + first / r0, -first / r0 + second / r1, -second / r1]
