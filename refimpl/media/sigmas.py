"""Noise levels between the largest and the smallest, and those of straight flows. float64 numbers of the host."""

import math

import numpy as np

from refimpl.contract import Array, UsageError, host

__all__ = [
    "beta_sigmas", "exponential_sigmas", "flow_sigmas", "karras_sigmas", "lu_sigmas", "shift", "shift_dynamic",
    "stretch_to", "timestep_of",
]


@host
def karras_sigmas(count: int, smallest: float, largest: float, rho: float = 7.0) -> Array:
    """Return noise levels that are dense near the end: linear in sigma^(1 / rho).

    Source: Karras et al., EDM, 2022, equation 5.

    >>> karras_sigmas(3, 1.0, 16.0, rho=2.0)
    array([16.  ,  6.25,  1.  ])
    """
    return np.linspace(largest ** (1 / rho), smallest ** (1 / rho), count) ** rho


@host
def exponential_sigmas(count: int, smallest: float, largest: float) -> Array:
    """Return noise levels that are linear in log(sigma).

    >>> exponential_sigmas(3, 1.0, 16.0).round(6)
    array([16.,  4.,  1.])
    """
    return np.exp(np.linspace(math.log(largest), math.log(smallest), count))


@host
def lu_sigmas(count: int, smallest: float, largest: float) -> Array:
    """Return noise levels that are linear in lambda = log(alpha / sigma), as DPM-Solver proposes: exponential in sigma.

    Source: Lu et al., DPM-Solver, 2022, section 3.3.

    >>> lu_sigmas(3, 1.0, 16.0).round(6)
    array([16.,  4.,  1.])
    """
    return exponential_sigmas(count, smallest, largest)


@host
def beta_sigmas(count: int, smallest: float, largest: float, a: float = 0.6, b: float = 0.6) -> Array:
    """Return noise levels at equal quantiles of a beta distribution: dense at both ends.

    Source: Lee et al., Beta sampling is all you need, 2024.

    >>> beta_sigmas(3, 0.0, 2.0).round(6)
    array([2., 1., 0.])
    """
    places = [_beta_quantile(1 - t, a, b) for t in np.linspace(0, 1, count)]
    return smallest + np.array(places) * (largest - smallest)


def _beta_quantile(probability: float, a: float, b: float) -> float:
    """Halve 0..1 until the regularised incomplete beta function is met."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _beta_below(middle, a, b) < probability else (low, middle)
    return (low + high) / 2 if 0 < probability < 1 else float(probability)


def _beta_below(x: float, a: float, b: float) -> float:
    """Sum the regularised incomplete beta function's power series, on the side where it converges fast.

    x^a (1 - x)^b / (a B(a, b)) sum_n x^n (a + b) ... (a + b + n - 1) / ((a + 1) ... (a + n))
    """
    if x > 0.5:
        return 1 - _beta_below(1 - x, b, a)
    if x == 0:
        return 0.0
    term = total = 1.0
    for n in range(200):
        term *= x * (a + b + n) / (a + 1 + n)
        total += term
    inverse = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    return total / a * math.exp(inverse + a * math.log(x) + b * math.log1p(-x))


@host
def timestep_of(sigma: Array, table: Array) -> Array:
    """Return at which training step a noise level lies, between steps linear in log(sigma).

    >>> timestep_of(np.array([2.0]), np.array([1.0, 4.0]))
    array([0.5])
    """
    return np.interp(np.log(np.maximum(sigma, 1e-10)), np.log(table), np.arange(len(table), dtype=np.float64))


@host
def shift(sigma: Array, factor: float) -> Array:
    """Give a flow more steps at much noise, as larger pictures need: factor sigma / (1 + (factor - 1) sigma).

    Source: Esser et al., Scaling rectified flow transformers, 2024, section 5.3.2.

    >>> shift(np.array([0.5]), 3.0)
    array([0.75])
    """
    return factor * sigma / (1 + (factor - 1) * sigma)


@host
def shift_dynamic(sigma: Array, mu: float, kind: str = "exponential") -> Array:
    """Shift by a factor that follows from the picture's size: e^mu, or mu itself (linear).

    >>> shift_dynamic(np.array([0.5]), 3.0, "linear")
    array([0.75])
    """
    if kind not in ("exponential", "linear"):
        raise UsageError(f"time_shift_type is exponential or linear, not {kind!r}")
    return shift(sigma, math.exp(mu) if kind == "exponential" else mu)


@host
def stretch_to(sigma: Array, terminal: float) -> Array:
    """Stretch 1 - sigma so that the last noise level before 0 is ``terminal``; one step, from 1, stays as it is.

    >>> stretch_to(np.array([1.0, 0.5]), 0.2)
    array([1. , 0.2])
    """
    return sigma if sigma[-1] == 1 else 1 - (1 - sigma) * (1 - terminal) / (1 - sigma[-1])


@host
def flow_sigmas(count: int, train: int, factor: float = 1.0, *, double_shift: bool = False) -> Array:
    """Return equal steps of a straight flow, from 1 to the noise level of the first training step, shifted once.

    ``double_shift``: as diffusers, which shifts the last level, takes equal steps down to that, and shifts them all.

    >>> flow_sigmas(2, 10), flow_sigmas(2, 10, 3.0).round(6), flow_sigmas(2, 10, 3.0, double_shift=True).round(6)
    (array([1. , 0.1]), array([1.  , 0.25]), array([1. , 0.5]))
    """
    last = shift(np.array(1 / train), factor if double_shift else 1.0)
    return shift(np.linspace(1, last, count), factor)
